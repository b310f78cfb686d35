"""A lowered kernel computes what its OpSpecs say, and orders its cores as far as needed."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from card_runner import run_on_card
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_kernels import (
    FP16,
    INT32,
    arg,
    at,
    column,
    filled,
    in_a_loop,
    kernels,
    lane,
    matrix,
    row,
    tile,
    whole_args,
)
from spec_model import Memory, evaluate

from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.backend.lower import lower
from torch_spyre.backend.program import (
    Lanes,
    Loop,
    Program,
    StepKind,
    encode,
)
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.spec import (
    ConstantArg,
    Coordinate,
    Dim,
    IotaArg,
    KernelArg,
    KernelSpec,
    Mask,
    OpSpec,
    TensorArg,
)
from torch_spyre.ir.superdsc import BundleError, from_json, to_json

RANDOM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def check(kernel: KernelSpec, extents: tuple[int, ...] = (), fill=None) -> Program:
    """The program gives every element that the specs name the value that they say."""
    program = lower(bundle_of(kernel))
    memory = Memory.of(kernel, fill or filled(kernel))
    buffers = [*memory.args, *([memory.pool] if kernel.pool_bytes else [])]
    results = run_on_card(program, [b.copy() for b in buffers], extents)
    evaluate(kernel, memory, extents)
    for i, result in enumerate(results):
        key = ("arg", i) if i < len(memory.args) else ("pool", 0)
        wanted = memory.args[i] if i < len(memory.args) else memory.pool
        known = memory.computed[key]
        np.testing.assert_array_equal(result[known], wanted[known], err_msg=str(key))
    return program


# ---- Each kind of operation ----------------------------------------------------------------------


@RANDOM
@given(kernels())
def test_random_kernels_compute_what_their_specs_say(kernel):
    check(kernel)


@RANDOM
@given(kernels(most_operations=3), st.integers(2, 3))
def test_a_loop_does_the_same_to_each_part(kernel, count):
    program = check(in_a_loop(kernel, count))
    (loop,) = program.body
    assert isinstance(loop, Loop) and loop.count == count


@pytest.mark.parametrize("op", ["sum", "amax", "amin", "prod"])
@pytest.mark.parametrize("columns", [64, 100, 200])
def test_a_reduction_along_the_stick_does_not_see_padding(op, columns):
    x, y = matrix(True, arg(0), 6, columns), column(False, arg(1), 6)
    dims = (Dim("r", 6, 3), Dim("c", columns))
    spec = OpSpec(op, "reduction", dims, (x, y), stick=1, lanes=64, reduced=(1,))
    program = check(KernelSpec(whole_args(x, y), (spec,)))
    (step,) = program.body
    assert step.kind is StepKind.REDUCTION
    assert step.outputs[0].lanes is Lanes.FIRST
    assert [mask.valid for mask in step.masks] == ([] if columns == 64 else [columns])


def test_a_mean_divides_by_its_second_operand():
    x, y = matrix(True, arg(0), 4, 128), column(False, arg(1), 4)
    count = ConstantArg("F", int(np.float32(128).view(np.uint32)))
    spec = OpSpec(
        "mean",
        "reduction",
        (Dim("r", 4), Dim("c", 128)),
        (x, count, y),
        stick=1,
        lanes=64,
        reduced=(1,),
    )
    check(KernelSpec(whole_args(x, y), (spec,)))


def test_a_reduction_over_rows_keeps_the_lanes_apart():
    x, y = matrix(True, arg(0), 5, 200), row(False, arg(1), 200)
    dims = (Dim("r", 5), Dim("c", 200, 2))
    spec = OpSpec("sum", "reduction", dims, (x, y), stick=1, lanes=64, reduced=(0,))
    (step,) = check(KernelSpec(whole_args(x, y), (spec,))).body
    assert step.outputs[0].lanes is Lanes.VECTOR and not step.masks


@pytest.mark.parametrize("valid", [1, 63, 64, 130])
def test_an_extent_of_the_launch_limits_what_counts(valid):
    x, y = matrix(True, arg(0), 3, 192), column(False, arg(1), 3)
    spec = OpSpec(
        "sum",
        "reduction",
        (Dim("r", 3), Dim("c", 192)),
        (x, y),
        stick=1,
        lanes=64,
        reduced=(1,),
        masks=(Mask(1, 0, is_symbol=True),),
    )
    check(KernelSpec(whole_args(x, y), (spec,), extents=(192,)), (valid,))


def matmul(
    m: int, k: int, n: int, m_slices: int = 1, n_slices: int = 1, k_slices: int = 1
) -> KernelSpec:
    a = matrix(True, arg(0), m, k, dims=(0, 2))
    b = matrix(True, arg(1), k, n, dims=(2, 1))
    c = matrix(False, arg(2), m, n, dims=(0, 1))
    dims = (Dim("m", m, m_slices), Dim("n", n, n_slices), Dim("k", k, k_slices))
    spec = OpSpec("batchmatmul", "matmul", dims, (a, b, c), stick=1, lane=2, lanes=64, reduced=(2,))
    return KernelSpec(whole_args(a, b, c), (spec,))


@pytest.mark.parametrize(
    ("m", "k", "n", "m_slices", "n_slices"),
    [(3, 64, 64, 1, 1), (5, 100, 70, 2, 2), (8, 192, 128, 4, 2), (1, 20, 10, 1, 1)],
)
def test_a_matmul_takes_k_in_sticks_of_its_first_operand(m, k, n, m_slices, n_slices):
    (step,) = check(matmul(m, k, n, m_slices, n_slices)).body
    assert step.kind is StepKind.MATMUL and step.lane_dim != step.stick_dim
    assert step.reduced == 1 << step.lane_dim


# ---- Rings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "k", "n", "slices"),
    [
        (1, 640, 70, (1, 2, 5)),
        (4, 128, 64, (2, 1, 2)),
        (3, 300, 64, (1, 1, 5)),  # the last partner has an uneven rest of a stick
        (2, 448, 128, (1, 2, 4)),  # 7 sticks: 2, 2, 2 and 1
    ],
)
def test_partners_that_share_k_are_neighbours(m, k, n, slices):
    (step,) = check(matmul(m, k, n, *slices)).body
    assert step.ring == slices[2] and step.cores.bit_count() % step.ring == 0
    a, _, c = *step.inputs, *step.outputs
    first = a.bases[: step.ring]
    assert first == tuple(sorted(set(first)))
    starts = c.bases * (1 if len(c.bases) > 1 else step.cores.bit_count())
    assert all(len(set(starts[i : i + step.ring])) == 1 for i in range(0, len(starts), step.ring))


@pytest.mark.parametrize("op", ["sum", "amax", "amin", "prod"])
@pytest.mark.parametrize(("columns", "slices"), [(256, 4), (200, 2), (448, 4)])
def test_a_row_may_lie_on_several_cores(op, columns, slices):
    x, y = matrix(True, arg(0), 3, columns), column(False, arg(1), 3)
    dims = (Dim("r", 3, 3), Dim("c", columns, slices))
    spec = OpSpec(op, "reduction", dims, (x, y), stick=1, lanes=64, reduced=(1,))
    (step,) = check(KernelSpec(whole_args(x, y), (spec,))).body
    assert step.ring == slices


def test_partners_that_are_no_neighbours_are_refused():
    x, y = matrix(True, arg(0), 4, 128), row(False, arg(1), 128)
    spec = OpSpec(
        "sum",
        "reduction",
        (Dim("r", 4, 2), Dim("c", 128, 2)),
        (x, y),
        stick=1,
        lanes=64,
        reduced=(0,),
    )
    with pytest.raises(BundleError, match="cores 0, 1 make different results; the partners of a"):
        lower(bundle_of(KernelSpec(whole_args(x, y), (spec,))))
    in_order = msgspec.structs.replace(spec, core_order=(1, 0))
    (step,) = check(KernelSpec(whole_args(x, y), (in_order,))).body
    assert step.ring == 2


def test_partners_in_another_order_are_refused():
    bundle = bundle_of(matmul(1, 128, 64, 1, 1, 2))
    document = json.loads(to_json(bundle.sdscs[0]))
    cores = document["batchmatmul"]["coreIdToWkSlice_"]
    cores["0"], cores["1"] = cores["1"], cores["0"]
    sdsc = from_json(json.dumps(document).encode())
    with pytest.raises(BundleError, match="are not in the order of their slices"):
        lower(Bundle((sdsc,), bundle.body, bundle.args))


def test_a_gather_reads_the_rows_that_an_index_names():
    rows, columns, count = 7, 128, 10
    # A row of an embedding is a run of sticks: (rows, tiles, lanes).
    table = TensorArg(
        True, FP16, (rows, 2, 64), (Coordinate(0, (), indirect=1), tile(1), lane(1)), arg(0)
    )
    index = TensorArg(True, INT32, (1, 32), (Coordinate(), at(0)), arg(1))
    out = matrix(False, arg(2), count, columns)
    spec = OpSpec(
        "gather",
        "gather",
        (Dim("i", count, 2), Dim("c", columns)),
        (table, index, out),
        stick=1,
        lanes=64,
        rows=rows,
    )
    kernel = KernelSpec(whole_args(table, index, out), (spec,))
    fill = filled(kernel)
    fill[1] = np.resize(np.arange(count, dtype=np.int32) * 3 % rows, 32).view(np.uint8).copy()
    (step,) = check(kernel, fill=fill).body
    assert step.inputs[0].tile_stride == 256 and step.masks[0].valid == rows


def test_a_restickify_moves_elements_one_by_one():
    """(2 * 64, 64) with the stick along columns, to the stick along rows."""
    dims = (Dim("rt", 2, 2), Dim("rl", 64), Dim("c", 64))
    source = TensorArg(
        True,
        FP16,
        (1, 128, 64),
        (Coordinate(), Coordinate(0, (*at(1).terms, *at(0, coefficient=64).terms)), at(2)),
        arg(0),
    )
    target = TensorArg(False, FP16, (2, 64, 64), (at(0), at(2), at(1)), arg(1))
    spec = OpSpec("identity", "restickify", dims, (source, target))
    (step,) = check(KernelSpec(whole_args(source, target), (spec,))).body
    assert step.kind is StepKind.RESTICKIFY and step.outputs[0].lanes is Lanes.ELEMENT


def test_an_iota_counts_elements():
    out = matrix(False, arg(0), 6, 100, fmt=INT32)
    iota = IotaArg(5, (1000, 1))
    dims = (Dim("r", 6, 2), Dim("c", 100, 2))
    spec = OpSpec("identity_int", "pointwise", dims, (iota, out), stick=1, lanes=32)
    check(KernelSpec(whole_args(out), (spec,)))


def test_an_operation_on_one_element_per_stick_has_no_stick_dimension():
    x, y = column(True, arg(0), 9), column(False, arg(1), 9)
    spec = OpSpec("neg", "pointwise", (Dim("r", 9, 3),), (x, y), lanes=64)
    (step,) = check(KernelSpec(whole_args(x, y), (spec,))).body
    assert step.stick_dim == 0xFF and step.inputs[0].lanes is Lanes.FIRST


def test_an_operation_without_dimensions_has_one_iteration():
    x = TensorArg(True, FP16, (1, 64), (Coordinate(), Coordinate()), arg(0))
    y = TensorArg(False, FP16, (1, 64), (Coordinate(), Coordinate()), arg(1))
    spec = OpSpec("neg", "pointwise", (), (x, y), lanes=64)
    (step,) = lower(bundle_of(KernelSpec(whole_args(x, y), (spec,)))).body
    assert step.extents == ((1,),)


def test_dimensions_that_all_operands_walk_as_one_are_joined():
    size = (4, 5, 3, 64)
    place = (at(0), at(1), tile(2), lane(2))
    x = TensorArg(True, FP16, size, place, arg(0))
    y = TensorArg(False, FP16, size, place, arg(1))
    spec = OpSpec(
        "neg", "pointwise", (Dim("a", 4), Dim("b", 5), Dim("c", 192)), (x, y), stick=2, lanes=64
    )
    (step,) = lower(bundle_of(KernelSpec(whole_args(x, y), (spec,)))).body
    assert step.extents == ((20, 3),) and step.stick_dim == 1


def test_equal_kernels_give_equal_bytes():
    first, second = (encode(lower(bundle_of(matmul(5, 100, 70, 2, 2)))) for _ in range(2))
    assert first == second


# ---- Edited by hand ------------------------------------------------------------------------------


def edited(path: str, value: object) -> Bundle:
    """A bundle of one add on two cores, with one field of its JSON set to another value."""
    x, y, z = (matrix(i < 2, arg(i), 4, 64) for i in range(3))
    dims = (Dim("r", 4, 2), Dim("c", 64))
    spec = OpSpec("add", "pointwise", dims, (x, y, z), stick=1, lanes=64)
    bundle = bundle_of(KernelSpec(whole_args(x, y, z), (spec,)))
    document = json.loads(to_json(bundle.sdscs[0]))
    here = document
    *parents, last = [int(p) if p.isdecimal() else p for p in path.split("/")]
    for part in parents:
        here = here[part] if not isinstance(here, dict) else here[str(part)]
    here[last if isinstance(here, list) else str(last)] = value
    sdsc = from_json(json.dumps(document).encode(), "sdsc_0.json")
    return Bundle((sdsc,), bundle.body, bundle.args, bundle.pool_bytes, bundle.extents)


DSC = "add/dscs_/0/add"
NODE = f"{DSC}/scheduleTree_/1"
FOLDS = f"{NODE}/coordinates_/coordInfo/c0/folds"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            f"{DSC}/labeledDs_/1/scale_/c0",
            -1,
            ".add.dscs_[0].add.labeledDs_[1].scale_.c0: -1, but the folds of "
            ".add.dscs_[0].add.scheduleTree_[1].coordinates_.coordInfo move along it; expected 1",
        ),
        (
            f"{NODE}/startAddressCoreCorelet_/data_/[1, 0, 0]",
            384,
            ".add.dscs_[0].add.scheduleTree_[1].startAddressCoreCorelet_.data_.[1, 0, 0]: 384, "
            "but the core_fold entries of .add.dscs_[0].add.scheduleTree_[1].coordinates_"
            ".coordInfo put its slice at 256",
        ),
        (
            f"{FOLDS}/dim_prop_func/0/Affine/alpha_",
            3,
            ".add.dscs_[0].add.scheduleTree_[1].startAddressCoreCorelet_.data_.[1, 0, 0]: 256, "
            "but the core_fold",
        ),
        (
            f"{DSC}/dataStageParam_/0/ss_/c0_",
            3,
            ".add.dscs_[0].add.dataStageParam_.0.ss_.c0_: 3, but N_.c0_ = 4 in "
            "numWkSlicesPerDim_.c0 = 2 slices makes 2",
        ),
        ("add/numCoresUsed_", 3, ".add.numCoresUsed_: 3, but coreIdToWkSlice_ has 2 cores"),
        (
            "add/coreIdToWkSlice_/1/c0",
            0,
            ".add.coreIdToWkSlice_: 1 distinct slices on 2 cores; numWkSlicesPerDim_ makes 2",
        ),
        (
            "add/coreIdToWkSlice_/1/c0",
            2,
            ".add.coreIdToWkSlice_.1.c0: slice 2, but numWkSlicesPerDim_.c0 is 2",
        ),
        (
            f"{DSC}/computeOp_/0/opFuncName",
            "ad",
            ".add.dscs_[0].add.computeOp_[0].opFuncName: 'ad' is no operation of the card",
        ),
        (
            f"{DSC}/computeOp_/0/inputLabeledDs/1",
            "Tensor9-idx9",
            ".add.dscs_[0].add.computeOp_[0].inputLabeledDs: 'Tensor9-idx9' names none",
        ),
        (
            f"{DSC}/computeOp_/0/exUnit",
            "pt",
            ".add.dscs_[0].add.computeOp_[0].exUnit: 'pt'; add runs on 'sfp'",
        ),
        (f"{DSC}/N_/c0_", "four", ".add.dscs_[0].add.N_.c0_: 'four'; expected an extent"),
        (
            f"{NODE}/maxDimSizes_/0",
            65,
            ".add.dscs_[0].add.scheduleTree_[1].maxDimSizes_[0]: 65; expected a positive multiple",
        ),
        (
            f"{FOLDS}/dim_prop_attr/0/label_",
            "cores",
            ".add.dscs_[0].add.scheduleTree_[1].coordinates_.coordInfo.c0.folds.dim_prop_attr[0]"
            ".label_: 'cores' is none of core_fold",
        ),
        (
            f"{NODE}/component_",
            "lx",
            ".add.dscs_[0].add.labeledDs_[1].memOrg_: says hbm, "
            ".add.dscs_[0].add.scheduleTree_[1].component_ says lx",
        ),
        (
            f"{DSC}/coordinateMasking_/c1",
            [{"start_": 3, "end_": 64}],
            ".add.dscs_[0].add.coordinateMasking_.c1[0]: c1 is no dimension that add accumulates",
        ),
    ],
)
def test_an_edit_that_does_not_fit_is_named_with_both_places(path, value, message):
    with pytest.raises(BundleError) as caught:
        lower(edited(path, value))
    assert str(caught.value).startswith(f"sdsc_0.json: {message}")


def test_an_edit_that_fits_runs_as_edited():
    program = lower(edited(f"{DSC}/computeOp_/0/opFuncName", "sub"))
    assert program.body[0].opcode == "sub"


def test_a_reduction_whose_padding_would_count_is_refused():
    x, y = matrix(True, arg(0), 4, 100), column(False, arg(1), 4)
    dims = (Dim("r", 4), Dim("c", 100))
    spec = OpSpec("sum", "reduction", dims, (x, y), stick=1, lanes=64, reduced=(1,))
    bundle = bundle_of(KernelSpec(whole_args(x, y), (spec,)))
    document = json.loads(to_json(bundle.sdscs[0]))
    dsc = document["sum"]["dscs_"][0]["sum"]

    def lowered() -> Program:
        sdsc = from_json(json.dumps(document).encode())
        return lower(Bundle((sdsc,), bundle.body, bundle.args))

    dsc["constantInfo_"][str(dsc["maskingConstId_"])]["data_"]["data_"]["[0, 0, 0]"] = 1
    with pytest.raises(BundleError, match="maskingConstId_: constantInfo_.0 holds 0x00000001; the"):
        lowered()
    dsc["coordinateMasking_"] = {}
    with pytest.raises(BundleError, match="no range for c1: N_.c1_ = 100 ends inside a stick"):
        lowered()


def test_a_kernel_that_writes_what_is_only_read_is_refused():
    x, y = matrix(True, arg(0), 4, 64), matrix(False, arg(0), 4, 64)
    spec = OpSpec("neg", "pointwise", (Dim("r", 4), Dim("c", 64)), (x, y), stick=1, lanes=64)
    with pytest.raises(BundleError, match="it writes symbol 0, an argument that is only read"):
        lower(bundle_of(KernelSpec(whole_args(x), (spec,))))


def test_an_operand_that_leaves_its_argument_is_refused():
    x, y = matrix(True, arg(0), 4, 64), matrix(False, arg(1), 4, 64)
    spec = OpSpec("neg", "pointwise", (Dim("r", 4), Dim("c", 64)), (x, y), stick=1, lanes=64)
    args = (KernelArg(FP16, 384, False), KernelArg(FP16, 512, True))
    with pytest.raises(BundleError, match="operand 0 of neg reaches bytes 0 to 512 of symbol 0"):
        lower(bundle_of(KernelSpec(args, (spec,))))
