"""The host program: allocates tiled buffers, launches kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.virtualized import V

from . import layouts
from .errors import Unsupported
from .graph import Buffer
from .plan import Kernels, PlannedKernel, plan_graph


class FixedTiledLayout(ir.FixedLayout):
    """Inductor's fixed layout, and the device layout of the storage."""

    def __init__(
        self, layout: ir.Layout, device_size: tuple[int, ...], stride_map: tuple[int, ...]
    ) -> None:
        super().__init__(
            layout.device, layout.dtype, list(layout.size), list(layout.stride), layout.offset
        )
        self.device_size = device_size
        self.stride_map = stride_map


class SpyrePythonWrapperCodegen(PythonWrapperCodegen):
    """Writes `call(args)`. The plan is made when the wrapper is, which is when Inductor has lowered
    all operations and not yet scheduled them."""

    kernels: Kernels
    _defined: dict[str, str]  # kernel text to its name
    _made: set[str]  # arguments that the wrapper made itself
    _pending: Counter[str]  # how many kernels are still to come that take a buffer
    _kept: dict[str, Any]  # buffers that Inductor freed and such a kernel needs

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            raise Unsupported(
                "control flow inside a graph (torch.cond, while_loop)",
                "a kernel of the card is a fixed sequence of operations",
                way_out="use Python's if: the graph breaks there",
            )
        wrapper = SpyrePythonWrapperCodegen()
        wrapper.kernels = plan_graph(V.graph)
        wrapper._defined = {}
        wrapper._made = set()
        wrapper._pending = Counter(
            buffer.name for kernel in wrapper.kernels.kernels for buffer in kernel.arguments
        )
        wrapper._kept = {}
        return wrapper

    def write_header(self) -> None:
        super().write_header()
        self.imports.splice(
            """
            from torch_spyre._inductor.buckets import from_bucket, size_tensor
            from torch_spyre._inductor.buckets import to_bucket, write_back
            from torch_spyre._inductor.runtime import empty_strided_spyre, spyre_kernel
            """,
            strip=True,
        )

    def make_buffer_allocation(self, buffer: Any) -> str:
        layout = buffer.get_layout()
        if not isinstance(layout, FixedTiledLayout):
            return str(super().make_buffer_allocation(buffer))
        planned = self.kernels.tensors[buffer.get_name()]
        return f"{_name(planned)} = {self._empty(planned)}"

    def codegen_allocation(self, buffer: Any) -> None:
        if self._is_in_bucket(buffer):
            whole = buffer.get_output_spec().view.get_name()
            self.codegen_allocation(V.graph.get_buffer(whole))
        else:
            super().codegen_allocation(buffer)

    def _is_in_bucket(self, buffer: Any) -> bool:
        """Parts of a concatenation in a bucket are no tensors outside of its kernel."""
        layout = buffer.get_output_spec()
        if not isinstance(layout, ir.NonOwningLayout):
            return False
        whole = self.kernels.tensors.get(layout.view.get_name())
        return whole is not None and whole.is_dynamic

    def _empty(self, buffer: Buffer) -> str:
        assert buffer.storage is not None
        return (
            f"empty_strided_spyre({buffer.size}, {buffer.stride}, {buffer.dtype}, "
            f"{self._device()}, {buffer.storage.device_size}, {buffer.storage.stride_map})"
        )

    @staticmethod
    def _device() -> int:
        devices = sorted(V.graph.device_idxs)
        return int(devices[0]) if devices else 0

    def codegen_free(self, buffer: Any) -> None:
        """Inductor frees after the last operation that names a buffer; a kernel that is still to
        come may read it all the same, where the passes found a shorter way to a value."""
        if self._pending[buffer.get_name()] > 0:
            self._kept[buffer.get_name()] = buffer
        elif not self._is_in_bucket(buffer):
            super().codegen_free(buffer)

    def write_kernel(self, kernel: PlannedKernel) -> None:
        """Define the kernel if it is new, allocate what only kernels touch, and launch it."""
        for buffer in kernel.arguments:
            self._prepare(buffer, kernel)
        arguments = "".join(f"{_name(buffer)}, " for buffer in kernel.arguments)
        lengths = [self.kernels.extents[number] for number in kernel.draft.lengths]
        extents = "".join(f"{self.codegen_sizevar(length)}, " for length in lengths)
        self.writeline(f"{self._kernel_name(kernel)}.launch(({arguments}), ({extents}))")
        for buffer, argument in zip(kernel.arguments, kernel.draft.spec.args, strict=True):
            if buffer.is_dynamic and argument.is_written and not buffer.is_temporary:
                self._trim(buffer)
        for buffer in kernel.arguments:
            self._pending[buffer.name] -= 1
            if self._pending[buffer.name] == 0 and buffer.name in self._kept:
                super().codegen_free(self._kept.pop(buffer.name))

    def _prepare(self, buffer: Buffer, kernel: PlannedKernel) -> None:
        """Make an argument that is not simply there: a size, a bucket, a tensor between kernels."""
        if buffer in kernel.allocations:
            self.writeline(f"{_name(buffer)} = {self._empty(buffer)}")
        elif buffer.name in self.kernels.sizes and buffer.name not in self._made:
            number = self.codegen_sizevar(self.kernels.sizes[buffer.name])
            self.writeline(f"{buffer.name} = size_tensor({number}, {self._device()})")
        elif buffer in kernel.to_fill:
            self.writeline(f"{_name(buffer)} = to_bucket({buffer.name}, {self._bucket(buffer)})")
        self._made.add(buffer.name)

    def _trim(self, buffer: Buffer) -> None:
        """What leaves the kernels has its own size, not the bucket's."""
        if buffer.is_input:
            self.writeline(f"write_back({_name(buffer)}, {buffer.name})")
            return
        shape = self.codegen_python_shape_tuple(buffer.shape)
        stride = self.codegen_python_shape_tuple(_strides(buffer))
        own = self._own_map(buffer)
        self.writeline(f"{buffer.name} = from_bucket({_name(buffer)}, {shape}, {stride}, {own})")

    def _bucket(self, buffer: Buffer) -> str:
        assert buffer.storage is not None
        return (
            f"{buffer.size}, {buffer.stride}, {buffer.storage.device_size}, "
            f"{buffer.storage.stride_map}, {self._own_map(buffer)}"
        )

    def _own_map(self, buffer: Buffer) -> str:
        """The stride map of a tensor in the memory of a bucket, for the length at hand."""
        own = layouts.own_map(buffer, _strides(buffer))
        return "None" if own is None else self.codegen_python_shape_tuple(own)

    def _kernel_name(self, kernel: PlannedKernel) -> str:
        name = self._defined.get(kernel.text)
        if name is None:
            name = f"spyre_{_contents(kernel)}_{len(self._defined)}"
            self._defined[kernel.text] = name
            self.define_kernel(name, f"spyre_kernel({kernel.text!r}, {name!r})", gpu=False)
        return name


def _strides(buffer: Buffer) -> tuple[Any, ...]:
    """A tensor's strides as Inductor has them, with symbols."""
    known = V.graph.graph_inputs.get(buffer.name) or V.graph.get_buffer(buffer.name)
    return tuple(known.get_stride())


def _name(buffer: Buffer) -> str:
    """The variable that holds the tensor a kernel works on."""
    is_bucket = buffer.is_dynamic and not buffer.is_temporary
    return f"{buffer.name}_bucket" if is_bucket else buffer.name


_MOST_LETTERS = 40  # of a kernel's name
_COPIES = ("to_copy", "unsafe_view", "clone")  # and what else says little


def _contents(kernel: PlannedKernel) -> str:
    """The operations of the model that a kernel is made of, as far as a name can hold them."""
    found: dict[str, None] = {}
    for node in dict.fromkeys(op.node for op in kernel.draft.ops):
        for origin in V.graph.name_to_op[node].get_origins():
            aten = origin.meta.get("original_aten")
            if aten is not None and not aten.is_view:
                found[aten._overloadpacket.__name__.strip("_")] = None
    for copy in _COPIES:
        found.pop(copy, None)
    text = ""
    for name in found or {"kernel": None}:
        if len(text) + len(name) >= _MOST_LETTERS:
            return f"{text}_and_more"
        text = f"{text}_{name}" if text else name
    return text
