"""The loop-level graph as text: what people compare before and after a pass."""

from __future__ import annotations

from .graph import Buffer, Constant, Index, Op, Operand, Read, SpyreGraph


def loops_text(graph: SpyreGraph) -> str:
    """One line per operation; then, as far as decided, its dimensions in sticks and core slices."""
    lines = []
    for number, op in enumerate(graph.ops):
        if number and op.kernel != graph.ops[number - 1].kernel:
            lines.append("-- next kernel")
        lines.append(op_text(op))
    return "\n".join(lines)


def op_text(op: Op) -> str:
    """One operation, as far as it is planned."""
    operands = ", ".join(_operand_text(operand) for operand in op.inputs)
    text = f"{_operand_text(op.output)} = {op.opcode}({operands})  over {_times(op.extents)}"
    if op.reduced:
        text += f", reduced {', '.join(f'i{d}' for d in op.reduced)}"
    if op.kind == "restickify":
        return f"{text}\n    element by element"
    if op.fit is not None:
        dims = _times(op.fit.extents)
        text += f"\n    {dims} of {op.fit.lanes} lanes"
        text += "".join(f", position {mask.valid} and on masked" for mask in op.masks)
        if op.slices:
            text += f", core slices {_times(op.slices)}"
    return text


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Constant):
        return f"{operand.value:g}" if operand.domain == "F" else str(operand.value)
    index = _index_text(operand)
    if isinstance(operand, Index):
        return f"index({index})"
    return f"{_buffer_name(operand.buffer)}[{index}]"


def _buffer_name(buffer: Buffer) -> str:
    if buffer.place is None:
        return buffer.name
    return f"{buffer.name}@{buffer.place.component}:{buffer.place.index}"


def _index_text(operand: Read | Index) -> str:
    terms = [
        f"i{d}" if step == 1 else f"{step}*i{d}" for d, step in enumerate(operand.strides) if step
    ]
    if operand.offset or not terms:
        terms.append(str(operand.offset))
    return " + ".join(terms)


def _times(numbers: tuple[int, ...]) -> str:
    return " x ".join(map(str, numbers)) or "1"


def buffers_text(graph: SpyreGraph) -> str:
    """Every buffer: host shape, device layout, place, and why it is not in the scratchpads."""
    lines = []
    for buffer in graph.buffers.values():
        dtype = str(buffer.dtype).removeprefix("torch.")
        lines.append(f"{buffer.name}  {dtype}{list(buffer.size)}")
        if buffer.storage is not None:
            size, strides = list(buffer.storage.device_size), list(buffer.storage.stride_map)
            lines.append(f"    device_size {size}, stride_map {strides}")
        if buffer.place is not None:
            lines.append(f"    {buffer.place.component} at byte {buffer.place.index}")
        if buffer.why_not_lx:
            lines.append(f"    not in LX: {buffer.why_not_lx}")
    return "\n".join(lines)
