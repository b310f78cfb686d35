"""A device for planner tests: tensors in tiled numpy memory, operations by plan and program model.

`Card.run` does what the runtime does with a plan (make outputs, bind symbols, launch), so planner
tests compare values without a card.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

import numpy as np
import program_model
import step_model
import torch

from torch_spyre import ir
from torch_spyre.backend.program import decode
from torch_spyre.ops import eager
from torch_spyre.ops.plan import Bind, OutputSpec, Plan, ScalarMeta, TensorMeta
from torch_spyre.ops.views import contiguous_strides, layout


@dataclass
class Tensor:
    """A view of a tiled storage; `memory` are its bytes on the card."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    storage: ir.Storage
    memory: np.ndarray

    def like(self, change: torch.Tensor) -> Tensor:
        """The view of this storage that `change` is of a host image with the same strides."""
        return replace(
            self,
            size=tuple(change.shape),
            stride=tuple(change.stride()),
            offset=change.storage_offset(),
        )

    def places(self) -> np.ndarray:
        """The device element of each element of the view, flattened."""
        index = torch.arange(self.storage.numel).as_strided(self.size, self.stride, self.offset)
        return np.array([self.storage.device_offset(i) for i in index.reshape(-1).tolist()], int)

    def elements(self) -> np.ndarray:
        return self.memory.view(step_model.RAW[step_model.FORMAT_OF[self.dtype]])

    def values(self) -> np.ndarray:
        """Widened values in the shape of the view."""
        fmt = step_model.FORMAT_OF[self.dtype]
        return step_model.widen(self.elements()[self.places()], fmt).reshape(self.size)


def _device_bytes(device_size: tuple[int, ...], dtype: torch.dtype) -> int:
    raw = step_model.RAW[step_model.FORMAT_OF[dtype]]
    return max(int(np.prod(device_size)), 1) * np.dtype(raw).itemsize


def empty(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device_size: tuple[int, ...],
    stride_map: tuple[int, ...],
) -> Tensor:
    memory = program_model.noise(_device_bytes(device_size, dtype), seed=len(device_size))
    numel = int(np.prod(size))
    return Tensor(size, stride, 0, dtype, ir.Storage(device_size, stride_map, numel), memory)


def put(host: torch.Tensor, order: tuple[int, ...] | None = None) -> Tensor:
    """A host tensor on the card, and the same view of it that `host` is of its own storage."""
    base = host._base if host._base is not None else host
    size = tuple(base.shape)
    stride = contiguous_strides(size)
    assert tuple(base.stride()) == stride
    device_size, stride_map = layout(size, stride, base.dtype, order or tuple(range(len(size))))
    tensor = empty(size, stride, base.dtype, device_size, stride_map)
    if base.numel():
        tensor.elements()[tensor.places()] = step_model.to_card(base)
    return tensor.like(host)


def _word(value: float, is_float: bool) -> int:
    return struct.unpack("<I", struct.pack("<f", value) if is_float else struct.pack("<i", value))[
        0
    ]


class Call:
    """The arguments of one operation as the runtime sees them."""

    def __init__(self, *args: object, seed: int = 0, counter: int = 0) -> None:
        self.args = args
        self.seed, self.counter = seed, counter
        self.metas = tuple(self._meta(index, arg) for index, arg in enumerate(args))

    def _meta(self, index: int, arg: object) -> object:
        if isinstance(arg, Tensor):
            alias = next(
                i
                for i, other in enumerate(self.args)
                if isinstance(other, Tensor) and other.memory is arg.memory
            )
            first = self.args[alias]
            assert isinstance(first, Tensor)
            return TensorMeta(
                arg.size,
                arg.stride,
                arg.offset,
                arg.dtype,
                arg.storage.device_size,
                arg.storage.stride_map,
                arg.storage.numel,
                index,
                alias,
                arg.offset - first.offset,
            )
        if isinstance(arg, torch.Tensor):
            return ScalarMeta(arg.dtype, index, False, arg.item())
        if isinstance(arg, bool | int | float):
            dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(arg)]
            return ScalarMeta(dtype, index, True, arg)
        return arg

    def plan(self, name: str) -> Plan:
        return eager.plan_for_cpp(name, [self._as_typed(name, meta) for meta in self.metas])

    def _as_typed(self, name: str, meta: object) -> object:
        """An argument that the schema calls a bool stands for itself: it is not a number."""
        operation, _, overload = name.partition(".")
        if isinstance(meta, ScalarMeta) and meta.is_wrapped:
            argument = torch._C._get_schema(operation, overload).arguments[meta.index]
            return meta.value if str(argument.type) == "bool" else meta
        return meta

    def run(self, name: str) -> Tensor:
        """Plan and launch; returns the first output."""
        plan = self.plan(name)
        assert not plan.resize
        (output,) = plan.outputs
        made: list[Tensor] = []
        if isinstance(output, OutputSpec):
            result = empty(
                output.size, output.stride, output.dtype, output.device_size, output.stride_map
            )
            made.append(result)
        else:
            argument = self.args[output]
            assert isinstance(argument, Tensor)
            result = argument
        pool = program_model.noise(plan.temp_bytes, seed=7)
        for launch in plan.launches:
            bindings = [self._bind(bind, made, pool) for bind in launch.symbols]
            program_model.Machine(decode(launch.program), bindings).run()
        return result

    def _bind(self, bind: Bind, made: list[Tensor], pool: np.ndarray) -> np.ndarray | int:
        kind, index = bind.kind, bind.index
        match kind:
            case "arg":
                argument = self.args[index]
                assert isinstance(argument, Tensor)
                return argument.memory
            case "out":
                return made[index].memory
            case "temp":
                return pool[index:]
            case "scalar_float" | "scalar_int":
                value = self.args[index]
                number = value.item() if isinstance(value, torch.Tensor) else value
                assert isinstance(number, bool | int | float)
                if bind.fits is not None:
                    torch.zeros(1, dtype=bind.fits).fill_(number)  # raises what PyTorch raises
                if kind == "scalar_int":
                    return _word(int(number), False)
                is_bounded = math.isfinite(number)
                bounded = min(max(number, -bind.limit), bind.limit) if is_bounded else number
                return _word(float(bounded), True)
            case "seed_low":
                return self.seed & 0xFFFFFFFF
            case "seed_high":
                return self.seed >> 32
            case _:
                return self.counter
