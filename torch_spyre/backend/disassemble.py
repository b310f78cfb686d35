"""Readable text for a card program.

symbol 0  address SEN169_FP16 8192 bytes
symbol 1  address SEN169_FP16 8192 bytes, written
step identity  cores 0-3  extents 16  stick dim 0
  in   s0 SEN169_FP16 vector  base 0, 2048, 4096, 6144  stride 128
  out  s1 SEN169_FP16 vector  base 0, 2048, 4096, 6144  stride 128
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch_spyre.backend.program import (
    NO_STICK_DIM,
    TABLE_ROWS,
    Loop,
    Mask,
    Operand,
    Program,
    Space,
    Step,
    StepFlags,
    StepKind,
    Symbol,
    SymbolKind,
)


@functools.cache
def _format_names() -> dict[int, str]:
    from torch_spyre._C import DataFormats

    return {int(value): name for name, value in DataFormats.__members__.items()}


def _format(value: int) -> str:
    return _format_names().get(value, f"format {value}")


def _core_ranges(mask: int) -> str:
    cores = [core for core in range(mask.bit_length()) if mask >> core & 1]
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges) or "none"


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values)) or "-"


def _symbol(index: int, symbol: Symbol) -> str:
    text = f"symbol {index}  {symbol.kind.name.lower()} {_format(symbol.format)}"
    if symbol.kind is SymbolKind.ADDRESS:
        text += f" {symbol.nbytes} bytes"
    elif symbol.kind is SymbolKind.EXTENT:
        text += f" at most {symbol.nbytes}"
    return text + (", written" if symbol.is_written else "")


def _place(operand: Operand, constants: tuple[int, ...]) -> str:
    match operand.space:
        case Space.DEVICE | Space.SCALAR:
            return f"s{operand.symbol}"
        case Space.CONSTANT:
            return f"constant {constants[operand.symbol]:#010x}"
        case _:
            return operand.space.name.lower()


def _operand(role: str, operand: Operand, constants: tuple[int, ...]) -> str:
    text = f"  {role:4} {_place(operand, constants)} {_format(operand.format)}"
    if operand.space in (Space.SCALAR, Space.CONSTANT):
        return text
    text += f" {operand.lanes.name.lower()}  base {_list(operand.bases)}"
    if operand.owners:
        text += f"  owners {_list(operand.owners)}"
    text += f"  stride {_list(operand.strides)}"
    if operand.tile_stride:
        text += f"  tile stride {operand.tile_stride}"
    if operand.tail_tiles:
        text += f"  tail tiles {operand.tail_tiles}"
    if any(operand.loop_strides):
        text += f"  loop stride {_list(operand.loop_strides)}"
    return text


def _mask(mask: Mask) -> str:
    what = "rows" if mask.dim == TABLE_ROWS else f"dim {mask.dim}"
    valid = f"s{mask.valid}" if mask.is_symbol else str(mask.valid)
    text = f"  mask {what} below {valid}  base {_list(mask.bases)}"
    if any(mask.loop_strides):
        text += f"  loop stride {_list(mask.loop_strides)}"
    return text


def _dims(bits: int) -> str:
    return ", ".join(str(dim) for dim in range(bits.bit_length()) if bits >> dim & 1)


_REDUCED = {
    StepKind.ARGSORT: "along dim",
    StepKind.SCAN: "along dim",
    StepKind.RING: "parts along dims",
}
_FLAGS = {
    StepFlags.BARRIER_BEFORE: "after a barrier",
    StepFlags.CHAINED: "chained",
    StepFlags.DISCARDED: "result discarded",
}


def _step(step: Step, constants: tuple[int, ...]) -> Iterator[str]:
    kind = "" if step.kind is StepKind.POINTWISE else f" ({step.kind.name.lower()})"
    rows = "; ".join(" x ".join(map(str, row)) or "1" for row in step.extents)
    text = f"step {step.opcode}{kind}  cores {_core_ranges(step.cores)}  extents {rows}"
    if step.stick_dim != NO_STICK_DIM:
        text += f"  stick dim {step.stick_dim}"
    if step.lane_dim != NO_STICK_DIM:
        text += f"  lane dim {step.lane_dim}"
    if step.reduced:
        text += f"  {_REDUCED.get(step.kind, 'accumulates dims')} {_dims(step.reduced)}"
    if step.kind is StepKind.RING:
        text += f"  from {step.ring} owners"
    elif step.ring:
        text += f"  in rings of {step.ring}"
    if step.tail_cores:
        text += f"  tail on cores {_core_ranges(step.tail_cores)}"
    text += "".join(f"  {words}" for flag, words in _FLAGS.items() if step.flags & flag)
    yield text
    yield from map(_mask, step.masks)
    yield from (_operand("in", operand, constants) for operand in step.inputs)
    yield from (_operand("out", operand, constants) for operand in step.outputs)


def _body(body: tuple[Step | Loop, ...], constants: tuple[int, ...]) -> Iterator[str]:
    for node in body:
        if isinstance(node, Loop):
            yield f"loop {node.count} times"
            yield from ("  " + line for line in _body(node.body, constants))
        else:
            yield from _step(node, constants)


def disassemble(program: Program) -> str:
    """The program as text, a line per symbol, step and operand."""
    lines = [_symbol(index, symbol) for index, symbol in enumerate(program.symbols)]
    lines += _body(program.body, program.constants)
    return "\n".join(lines) + "\n"
