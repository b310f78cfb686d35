"""OpSpec and LoopSpec: a planned operation as people read it, and the kernel they form.

An operation has iteration dimensions, each with an extent and a number of core slices, and
arguments that say, per device dimension, where an iteration finds them. The stick dimension counts
elements and appears in coordinates as the pair `floor(c/64)`, `Mod(c, 64)`; so does the dimension
of k that runs through the sticks of a matmul's first operand. All other dimensions count
iterations. Everything is held as integers and printed with symbols.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from .terms import Term

Kind: TypeAlias = Literal["pointwise", "restickify", "reduction", "matmul", "gather", "relayout"]


class Dim(NamedTuple):
    """An iteration dimension: `extent` is divided among `slices` cores, ceil(extent / slices)
    each (in whole sticks, for dimensions that count elements of sticks)."""

    name: str
    extent: int
    slices: int = 1


class Coordinate(NamedTuple):
    """A place along one device dimension: offset + Σ terms (+ the value of an index argument).

    The variable of a term is the position of an iteration dimension.
    """

    offset: int = 0
    terms: tuple[Term, ...] = ()
    indirect: int | None = None  # position of the argument that holds the index, for a gather

    def text(self, names: tuple[str, ...]) -> str:
        parts = [_term_text(term, names) for term in self.terms]
        if self.indirect is not None:
            parts.append(f"IndirectAccess(arg{self.indirect})")
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts)


def _term_text(term: Term, names: tuple[str, ...]) -> str:
    text = names[term.variable]
    if term.modulo is not None:
        inner = text if term.floordiv == 1 else f"floor({text}/{term.floordiv})"
        text = f"Mod({inner}, {term.modulo})"
    elif term.floordiv != 1:
        text = f"floor({text}/{term.floordiv})"
    return text if term.coefficient == 1 else f"{term.coefficient}*{text}"


class Allocation(msgspec.Struct, frozen=True):
    """Where a tensor lies: argument `index` of the kernel, or a byte of the pool or of LX.

    An LX address is the same on all cores; there, `device_size` is that of one core's slice and
    coordinates count from the slice's start.
    """

    component: Literal["arg", "pool", "lx"]
    index: int


class TensorArg(msgspec.Struct, frozen=True):
    """A tensor operand: its device layout, where it lies and how iterations move through it.

    In the lane coordinate (the last one) `Mod(c, lanes)` stands for a whole stick per iteration;
    a constant 0 means lane 0, repeated over all lanes (an input) or alone in its stick (the
    result of a reduction of the lanes). Operands of a restickify, and the index of a gather, go
    element by element: any affine lane coordinate.
    """

    is_input: bool
    device_dtype: int  # DataFormats value
    device_size: tuple[int, ...]
    device_coordinates: tuple[Coordinate, ...]
    allocation: Allocation
    # For an LX tensor: where each core's slice starts in the whole tensor, per device dimension,
    # as a Coordinate in which dimension i counts the core's slice number along it. Documentation
    # and checks only; addresses do not need it.
    owner: tuple[Coordinate, ...] = ()
    loop_bytes: tuple[int, ...] = ()  # advance per iteration of the enclosing loops, outer first


class ConstantArg(msgspec.Struct, frozen=True):
    """One value for all lanes: a 32-bit word, fp32 or int32 by domain."""

    domain: Literal["F", "I"]
    bits: int


class IotaArg(msgspec.Struct, frozen=True):
    """An int32 that counts: offset + Σ step · c over the iteration dimensions."""

    offset: int
    steps: tuple[int, ...]
    loop_steps: tuple[int, ...] = ()  # advance per iteration of the enclosing loops, outer first


Arg: TypeAlias = TensorArg | ConstantArg | IotaArg


class Mask(msgspec.Struct, frozen=True):
    """Positions of a reduced dimension below the valid length count.

    The length is a number, or the launch's extent argument of that position. Where a loop takes
    the dimension in parts, `loop_positions` says how many positions each iteration advances.
    """

    dim: int
    valid: int
    is_symbol: bool = False
    loop_positions: tuple[int, ...] = ()


class Origin(msgspec.Struct, frozen=True):
    """Where an operation comes from. No part of a kernel's identity."""

    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""
    aten: str = ""
    buffer: str = ""
    operands: tuple[str, ...] = ()  # buffers that the tensor arguments lie in, in order
    original: str = ""  # of PyTorch's operations, the one before decompositions: "aten._softmax"
    layer: str = ""  # the module: "model.layers.3.mlp"; "" outside of modules


class OpSpec(msgspec.Struct, frozen=True, tag="op"):
    """One operation of the card on the cores that its iteration space is divided among.

    `args` are the inputs in the order of the opcode's operands, then the one output.
    """

    op: str  # a name of csrc/card/opcodes.h
    kind: Kind
    iteration_space: tuple[Dim, ...]
    args: tuple[Arg, ...]
    stick: int | None = None  # the dimension that runs through sticks, in elements
    lanes: int = 1  # elements of one iteration: those of a stick of the widest vector operand
    lane: int | None = None  # matmul: the dimension that runs through the sticks of k
    reduced: tuple[int, ...] = ()  # reduction, matmul
    masks: tuple[Mask, ...] = ()
    rows: int = 0  # gather: rows of the table
    # Cores count through the slices of these dimensions in this order, the last one fastest;
    # dimensions that are not named come after them.
    core_order: tuple[int, ...] = ()
    # relayout: for each core, the cores in whose scratchpads it finds the parts of its slice, in
    # the order of `parts`, the dimensions that count them. The source's coordinates are those in
    # the slice of any owner.
    owners: tuple[tuple[int, ...], ...] = ()
    parts: tuple[int, ...] = ()
    tiled_symbols: tuple[str, ...] = ()
    origin: Origin = Origin()

    @property
    def is_reduction(self) -> bool:
        return self.kind == "reduction"

    @property
    def inputs(self) -> tuple[Arg, ...]:
        return self.args[:-1]

    @property
    def output(self) -> TensorArg:
        result = self.args[-1]
        assert isinstance(result, TensorArg)
        return result


class LoopSpec(msgspec.Struct, frozen=True, tag="loop"):
    """A body that runs `count` times; arguments advance by their `loop_bytes`."""

    count: int
    body: tuple[OpSpec | LoopSpec, ...]


class KernelArg(msgspec.Struct, frozen=True):
    """A tensor that a launch binds: its format, and the bytes from its address that are used."""

    device_dtype: int
    nbytes: int
    is_written: bool


class KernelSpec(msgspec.Struct, frozen=True):
    """What becomes one bundle: operations and loops over bound tensors, a pool and extents."""

    args: tuple[KernelArg, ...]
    body: tuple[OpSpec | LoopSpec, ...]
    pool_bytes: int = 0
    extents: tuple[int, ...] = ()  # the largest value of each extent argument
