"""Operations of a kernel as text, with symbols: what people read instead of integers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from torch_spyre._C import DataFormats

from .spec import Arg, ConstantArg, IotaArg, KernelSpec, LoopSpec, Mask, OpSpec, TensorArg

_WHERE = {"arg": "hbm", "pool": "pool", "lx": "lx"}


def kernel_text(kernel: KernelSpec, sources: bool = False) -> str:
    """A whole kernel: what a launch binds, then its operations and loops in order.

    With `sources`, each operation says which line of the model it comes from.
    """
    lines = [
        f"arg{i}  {DataFormats(arg.device_dtype).name}, {arg.nbytes} bytes, "
        f"{'written' if arg.is_written else 'read'}"
        for i, arg in enumerate(kernel.args)
    ]
    if kernel.pool_bytes:
        lines.append(f"pool  {kernel.pool_bytes} bytes")
    lines += [f"extent{i}  at most {most}" for i, most in enumerate(kernel.extents)]
    for entry in kernel.body:
        lines += _lines(entry, sources)
    return "\n".join(lines)


def spec_text(spec: OpSpec | LoopSpec) -> str:
    """One operation, or a loop with its body."""
    return "\n".join(_lines(spec, sources=False))


def _lines(spec: OpSpec | LoopSpec, sources: bool) -> Iterator[str]:
    if isinstance(spec, LoopSpec):
        yield f"LoopSpec(count={spec.count}, body=["
        for entry in spec.body:
            yield from (f"  {line}" for line in _lines(entry, sources))
        yield "])"
        return
    names = tuple(dim.name for dim in spec.iteration_space)
    space = ", ".join(f"{dim.name}: ({dim.extent}, {dim.slices})" for dim in spec.iteration_space)
    if sources and spec.origin.file:
        yield f"# {spec.origin.file}:{spec.origin.line}  {spec.origin.code}"
    yield f'OpSpec(op="{spec.op}", kind="{spec.kind}",'
    yield f"       iteration_space={{{space}}},  # extent, core slices"
    if spec.reduced:
        yield f"       reduced=[{', '.join(names[i] for i in spec.reduced)}],"
    if spec.masks:
        yield f"       masks=[{', '.join(_mask(mask, names) for mask in spec.masks)}],"
    if spec.core_order:
        yield f"       core_order=[{', '.join(names[i] for i in spec.core_order)}],"
    if spec.owners:
        yield f"       parts=[{', '.join(names[i] for i in spec.parts)}],"
        yield f"       owners={[list(row) for row in spec.owners]},"
    yield "       args=["
    for number, arg in enumerate(spec.args):
        is_last = number == len(spec.args) - 1
        text = _argument(arg, names)
        yield from (f"         {line}" for line in text[:-1])
        yield f"         {text[-1]}{'])' if is_last else ','}"


def _mask(mask: Mask, names: tuple[str, ...]) -> str:
    valid = f"extent{mask.valid}" if mask.is_symbol else str(mask.valid)
    return f"{names[mask.dim]} < {valid}"


def _argument(arg: Arg, names: tuple[str, ...]) -> list[str]:
    if isinstance(arg, ConstantArg):
        word = struct.pack("<I", arg.bits & 0xFFFFFFFF)
        (value,) = struct.unpack("<f" if arg.domain == "F" else "<i", word)
        return [f"ConstantArg({value:.6g})" if arg.domain == "F" else f"ConstantArg({value})"]
    if isinstance(arg, IotaArg):
        terms = [f"{step}*{name}" for step, name in zip(arg.steps, names, strict=True) if step]
        return [f"IotaArg({' + '.join([*terms, str(arg.offset)])})"]
    return _tensor(arg, names)


def _tensor(arg: TensorArg, names: tuple[str, ...]) -> list[str]:
    coordinates = ", ".join(place.text(names) for place in arg.device_coordinates)
    where = f"{{{_WHERE[arg.allocation.component]}: {arg.allocation.index}}}"
    advance = f", loop_bytes={list(arg.loop_bytes)}" if any(arg.loop_bytes) else ""
    return [
        f"TensorArg(is_input={arg.is_input}, device_dtype={DataFormats(arg.device_dtype).name}, "
        f"device_size={list(arg.device_size)},",
        f"          device_coordinates=[{coordinates}], allocation={where}{advance})",
    ]
