"""Cores wait for each other where they must and nowhere else; chains keep results in registers."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_kernels import (
    FP16,
    FP32,
    INT32,
    arg,
    at,
    column,
    in_a_loop,
    kernels,
    lane,
    lx,
    matrix,
    pool,
    row,
    tile,
)

from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.backend.footprint import footprint
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import (
    Lanes,
    Loop,
    Operand,
    Program,
    Space,
    Step,
    StepFlags,
    StepKind,
)
from torch_spyre.ir.spec import (
    Coordinate,
    Dim,
    KernelArg,
    KernelSpec,
    LoopSpec,
    OpSpec,
    TensorArg,
)

RANDOM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)

# ---- Order ---------------------------------------------------------------------------------------


def unrolled(program: Program) -> list[tuple[Step, tuple[int, ...]]]:
    """Every execution of a step, with the loop indices."""

    def walk(body, loops):
        for node in body:
            if isinstance(node, Loop):
                for i in range(node.count):
                    yield from walk(node.body, (*loops, i))
            else:
                yield node, loops

    return list(walk(program.body, ()))


def touched(step: Step, operand: Operand, slot: int, loops: tuple[int, ...]) -> set[int]:
    """The sticks (or elements) of an operand on one core, by brute force."""
    extents = step.extents[slot if len(step.extents) > 1 else 0]
    base = operand.bases[slot if len(operand.bases) > 1 else 0]
    base += sum(i * n for i, n in zip(loops, operand.loop_strides, strict=True))
    lanes = max(
        128 // {FP16: 2, FP32: 4, INT32: 4}[o.format]
        for o in (*step.inputs, *step.outputs)
        if o.lanes is Lanes.VECTOR and o.space in (Space.DEVICE, Space.LX)
    )
    tiles = lanes * {FP16: 2, FP32: 4, INT32: 4}[operand.format] // 128
    found = set()
    for point in itertools.product(*map(range, extents)):
        first = base + sum(i * n for i, n in zip(point, operand.strides, strict=True))
        is_last = step.tail_cores and point[step.stick_dim] == extents[step.stick_dim] - 1
        count = operand.tail_tiles if is_last and operand.tail_tiles else tiles
        count = 1 if operand.lanes is Lanes.FIRST else count
        found |= {(first + t * operand.tile_stride) // 128 for t in range(count)}
    return found


def races(program: Program) -> list[str]:
    """Pairs of steps between barriers through which two cores meet in device memory."""
    found = []
    since: list[tuple[Step, int, int, bool, set[int]]] = []
    for step, loops in unrolled(program):
        if step.flags & StepFlags.BARRIER_BEFORE:
            since = []
        cores = [core for core in range(32) if step.cores >> core & 1]
        now = [
            (step, core, operand.symbol, operand is step.outputs[0], sticks)
            for operand in (*step.inputs, *step.outputs)
            if operand.space is Space.DEVICE
            for slot, core in enumerate(cores)
            if (sticks := touched(step, operand, slot, loops))
        ]
        for later, earlier in itertools.product(now, since):
            if (
                later[1] != earlier[1]
                and later[2] == earlier[2]
                and (later[3] or earlier[3])
                and later[4] & earlier[4]
            ):
                found.append(f"{earlier[0].opcode} on {earlier[1]}, {step.opcode} on {later[1]}")
        since += now
    return found


@RANDOM
@given(kernels())
def test_no_two_cores_meet_in_memory_between_barriers(kernel):
    assert not races(lower(bundle_of(kernel)))


@RANDOM
@given(kernels(most_operations=3), st.integers(2, 3))
def test_no_two_cores_meet_between_iterations_of_a_loop(kernel, count):
    assert not races(lower(bundle_of(in_a_loop(kernel, count))))


def pointwise(
    op: str, *args: TensorArg, rows: int = 8, columns: int = 128, slices=(4, 1)
) -> OpSpec:
    dims = (Dim("r", rows, slices[0]), Dim("c", columns, slices[1]))
    return OpSpec(op, "pointwise", dims, args, stick=1, lanes=64)


def program_of(*ops: OpSpec | LoopSpec, args: int = 3, pool_bytes: int = 1 << 14) -> Program:
    every = tuple(KernelArg(FP16, 1 << 14, True) for _ in range(args))
    return lower(bundle_of(KernelSpec(every, ops, pool_bytes)))


def flags(program: Program) -> list[StepFlags]:
    return [step.flags for step in program.body]


def m(is_input: bool, where, **kwargs) -> TensorArg:
    return matrix(is_input, where, 8, 128, **kwargs)


def test_a_core_that_reads_back_its_own_slice_needs_no_barrier():
    program = program_of(
        pointwise("neg", m(True, arg(0)), m(False, pool(0))),
        pointwise("neg", m(True, pool(0)), m(False, arg(1))),
    )
    assert flags(program) == [StepFlags.NONE, StepFlags.NONE]


def test_a_reader_that_is_divided_otherwise_waits():
    program = program_of(
        pointwise("neg", m(True, arg(0)), m(False, pool(0))),
        pointwise("neg", m(True, pool(0)), m(False, arg(1)), slices=(1, 2)),
    )
    assert flags(program) == [StepFlags.NONE, StepFlags.BARRIER_BEFORE]


def test_a_writer_waits_for_readers_on_other_cores():
    program = program_of(
        pointwise("neg", m(True, pool(0)), m(False, arg(1))),
        pointwise("neg", m(True, arg(0)), m(False, pool(0)), slices=(2, 1)),
    )
    assert flags(program)[1] == StepFlags.BARRIER_BEFORE


def test_other_parts_of_the_pool_do_not_matter():
    program = program_of(
        pointwise("neg", m(True, arg(0)), m(False, pool(0))),
        pointwise("neg", m(True, pool(2048)), m(False, pool(4096)), slices=(2, 1)),
    )
    assert flags(program) == [StepFlags.NONE, StepFlags.NONE]


def test_a_loop_over_parts_that_do_not_meet_has_no_barrier():
    """Rows in chunks: each iteration's bytes lie between those of the others."""
    place = {"dims": (0, 1), "loop_bytes": (4 * 128,)}
    whole = (
        matrix(True, arg(0), 16, 128, **place),
        matrix(False, arg(1), 16, 128, **place),
    )
    program = program_of(LoopSpec(4, (pointwise("neg", *whole, rows=4),)))
    (loop,) = program.body
    assert loop.body[0].flags == StepFlags.NONE
    assert not races(program)


def test_a_loop_that_reads_what_its_last_iteration_wrote_elsewhere_waits():
    reader = pointwise("neg", m(True, pool(0)), m(False, arg(1)), slices=(1, 2))
    writer = pointwise("neg", m(True, arg(0)), m(False, pool(0)))
    (loop,) = program_of(LoopSpec(3, (reader, writer))).body
    assert [step.flags for step in loop.body] == [StepFlags.BARRIER_BEFORE] * 2


# ---- Chains --------------------------------------------------------------------------------------


def slice_of(is_input: bool, address: int, rows: int = 2) -> TensorArg:
    """A core's own two rows of eight, in LX."""
    return matrix(is_input, lx(address), rows, 128)


def test_steps_that_pass_a_result_through_lx_form_a_chain():
    program = program_of(
        pointwise("neg", m(True, arg(0)), slice_of(False, 0)),
        pointwise("exp", slice_of(True, 0), slice_of(False, 1024)),
        pointwise("add", slice_of(True, 1024), m(True, arg(1)), m(False, arg(2))),
    )
    chained, discarded = StepFlags.CHAINED, StepFlags.DISCARDED
    assert flags(program) == [discarded, chained | discarded, chained]


def test_a_result_that_is_read_outside_the_chain_is_stored():
    chain = (
        pointwise("neg", m(True, arg(0)), slice_of(False, 0)),
        pointwise("exp", slice_of(True, 0), m(False, arg(1))),
    )
    total = OpSpec(
        "sum",
        "reduction",
        (Dim("r", 8, 4), Dim("c", 128)),
        (slice_of(True, 0), column(False, arg(2), 8)),
        stick=1,
        lanes=64,
        reduced=(1,),
    )
    assert flags(program_of(*chain, total))[0] == StepFlags.NONE
    # Unless it is overwritten before.
    again = pointwise("neg", m(True, arg(0)), slice_of(False, 0))
    between = OpSpec(
        "sum",
        "reduction",
        (Dim("r", 8, 4), Dim("c", 128)),
        (m(True, arg(0)), column(False, pool(0), 8)),
        stick=1,
        lanes=64,
        reduced=(1,),
    )
    assert flags(program_of(*chain, between, again, total))[0] == StepFlags.DISCARDED


def test_partners_of_a_ring_wait_for_the_one_that_stores_their_result():
    dims = (Dim("r", 8, 4), Dim("c", 128, 2))
    total = OpSpec(
        "sum",
        "reduction",
        dims,
        (m(True, arg(0)), column(False, pool(0), 8)),
        stick=1,
        lanes=64,
        reduced=(1,),
    )
    args = (m(True, arg(0)), column(True, pool(0), 8), m(False, arg(1)))
    use = OpSpec("sub", "pointwise", dims, args, stick=1, lanes=64)
    assert flags(program_of(total, use)) == [StepFlags.NONE, StepFlags.BARRIER_BEFORE]


def test_an_accumulator_of_a_loop_is_stored():
    step = pointwise("add", slice_of(True, 0), m(True, arg(0)), slice_of(False, 0))
    use = pointwise("neg", slice_of(True, 0), m(False, arg(1)))
    (loop,) = program_of(LoopSpec(3, (step, use))).body
    assert [s.flags for s in loop.body] == [StepFlags.NONE, StepFlags.CHAINED]


def test_a_step_that_reads_another_iteration_is_not_chained():
    shifted = TensorArg(
        True,
        FP16,
        (2, 2, 64),
        (tile(1), Coordinate(1, at(0, coefficient=-1).terms), lane(1)),
        lx(0),
    )
    program = program_of(
        pointwise("neg", m(True, arg(0)), slice_of(False, 0)),
        pointwise("exp", shifted, m(False, arg(1))),
    )
    assert flags(program) == [StepFlags.NONE, StepFlags.NONE]


def test_the_steps_of_a_chain_have_equal_extents():
    """A broadcast in one of them keeps dimensions apart in all."""
    program = program_of(
        pointwise("neg", m(True, arg(0)), slice_of(False, 0)),
        pointwise("add", slice_of(True, 0), row(True, arg(1), 128), m(False, arg(2))),
    )
    assert len({(s.extents, s.stick_dim) for s in program.body}) == 1


def test_a_short_last_slice_of_elements_ends_in_its_own_stick():
    """31 elements in three for each of eleven cores: the last core has one, and no second stick."""
    bases = tuple(range(0, 132, 12))
    walk = Operand(Space.DEVICE, 1, 0, Lanes.ELEMENT, bases, (4,))
    rows = ((3,),) * 10 + ((1,),)
    step = Step("identity", StepKind.RESTICKIFY, 0b11111111111, rows, (walk,), (walk,))
    touched = footprint(step, walk, 1, 4, (), is_write=False)
    assert (touched.low, touched.high) == (0, 128)
