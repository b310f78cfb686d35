"""From OpSpecs to SuperDSCs: the fields say what the specs say."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.backend.spec_kernels import (
    FP16,
    arg,
    at,
    column,
    kernels,
    lane,
    lx,
    matrix,
    pool,
    row,
    tile,
)
from torch_spyre._inductor.codegen.superdsc import bundle_of, superdsc_of
from torch_spyre.ir.spec import (
    ConstantArg,
    Coordinate,
    Dim,
    IotaArg,
    KernelSpec,
    OpSpec,
    TensorArg,
)
from torch_spyre.ir.superdsc import Allocate, Dsc, SuperDSC, from_json, to_json
from torch_spyre.ir.terms import Term


def pointwise(op: str, *args, rows=4, columns=64, slices=(2, 1), lanes=64) -> SuperDSC:
    dims = (Dim("rows", rows, slices[0]), Dim("columns", columns, slices[1]))
    return superdsc_of(OpSpec(op, "pointwise", dims, args, stick=1, lanes=lanes))


def alphas(node: Allocate, dim: str) -> dict[str, int]:
    """The factors of a dimension's folds, those of corelet and row left out."""
    folds = node.coordinates_.coordInfo[dim].folds
    return {
        attr.label_: function.Affine.alpha_
        for function, attr in zip(folds.dim_prop_func, folds.dim_prop_attr, strict=True)
        if function.Affine is not None and attr.label_ not in ("corelet_fold", "row_fold")
    }


def starts(node: Allocate) -> dict[str, int]:
    return node.startAddressCoreCorelet_.data_


def test_the_worked_example_of_the_design_notes():
    """`abs` on (4, 64) fp16 with two cores."""
    sdsc = pointwise("abs", matrix(True, pool(0), 4, 64), matrix(False, pool(512), 4, 64))
    dsc: Dsc = sdsc.dsc
    assert sdsc.name == "abs"
    assert sdsc.numWkSlicesPerDim_ == {"c0": 2, "c1": 1}
    assert sdsc.coreIdToWkSlice_ == {"0": {"c0": 0}, "1": {"c0": 1}}
    assert dsc.N_ == {"name_": "n", "c0_": 4, "c1_": 64}
    assert dsc.dataStageParam_["0"].ss_ == {"name_": "core", "c0_": 2, "c1_": 64}
    source, target = dsc.scheduleTree_
    assert starts(source) == {"[0, 0, 0]": 0, "[1, 0, 0]": 256}
    assert starts(target) == {"[0, 0, 0]": 512, "[1, 0, 0]": 768}
    assert alphas(source, "c0") == {"core_fold": 2, "elem_arr_0": 1}
    assert alphas(source, "c1") == {"core_fold": 64, "elem_arr_1": 64, "elem_arr_0": 1}
    assert source.layoutDimOrder_ == ("c1", "c0") and source.maxDimSizes_ == (64, 4)
    (operation,) = dsc.computeOp_
    assert (operation.exUnit, operation.opFuncName) == ("sfp", "abs")
    assert operation.inputLabeledDs == ("Tensor0-idx0",)
    assert operation.outputLabeledDs == ("Tensor1-idx1",)


def test_the_last_slice_of_an_uneven_split_is_shorter():
    sdsc = pointwise(
        "abs", matrix(True, arg(0), 5, 200), matrix(False, arg(1), 5, 200), rows=5, columns=200,
        slices=(3, 2),
    )  # fmt: skip
    stage = sdsc.dsc.dataStageParam_["0"]
    assert stage.ss_ == {"name_": "core", "c0_": 2, "c1_": 128}
    assert stage.el_ == {"name_": "core", "c0_": 1, "c1_": 72}


def test_scale_says_where_an_operand_stands_still():
    sdsc = pointwise(
        "add", row(True, arg(0), 64), column(True, arg(1), 4), matrix(False, arg(2), 4, 64)
    )
    scales = [labeled.scale_ for labeled in sdsc.dsc.labeledDs_]
    assert scales == [{"c0": -1, "c1": 1}, {"c0": 1, "c1": -1}, {"c0": 1, "c1": 1}]


def reduction(columns: int, reduced: tuple[int, ...], out: TensorArg) -> Dsc:
    dims = (Dim("r", 4), Dim("c", columns))
    args = (matrix(True, arg(0), 4, columns), out)
    spec = OpSpec("amax", "reduction", dims, args, stick=1, lanes=64, reduced=reduced)
    return superdsc_of(spec).dsc


def test_a_reduction_of_the_stick_masks_its_tail_with_the_neutral_value():
    dsc = reduction(200, (1,), column(False, arg(1), 4))
    assert dsc.labeledDs_[1].scale_ == {"c0": 1, "c1": -2}
    ((masked,),) = dsc.coordinateMasking_.values()
    assert (masked.start_, masked.end_) == (200, 256)
    constant = dsc.constantInfo_[str(dsc.maskingConstId_)]
    assert constant.name_ == "-inf" and constant.data_.data_ == {"[0, 0, 0]": 0xFF800000}


def test_a_reduction_of_whole_sticks_or_of_rows_masks_nothing():
    assert reduction(128, (1,), column(False, arg(1), 4)).coordinateMasking_ == {}
    over_rows = reduction(200, (0,), row(False, arg(1), 200))
    assert over_rows.coordinateMasking_ == {} and over_rows.maskingConstId_ == -1
    assert over_rows.labeledDs_[1].scale_ == {"c0": -1, "c1": 1}


def test_in_lx_each_core_has_its_slice_at_the_same_address():
    sdsc = pointwise("abs", matrix(True, arg(0), 4, 64), matrix(False, lx(256), 2, 64))
    node = sdsc.dsc.scheduleTree_[1]
    assert node.component_ == "lx" and node.maxDimSizes_ == (64, 2)
    assert starts(node) == {"[0, 0, 0]": 256, "[1, 0, 0]": 256}


def test_a_device_dimension_that_two_dimensions_share_has_a_name_of_its_own():
    """(8, 256) as a view of 2048 elements: 32 sticks, four per row."""
    place = (Coordinate(0, (Term(0, 4), Term(1, 1, 64))), lane(1))
    x = TensorArg(True, FP16, (32, 64), place, arg(0))
    sdsc = pointwise("abs", x, matrix(False, arg(1), 8, 256), rows=8, columns=256)
    node = sdsc.dsc.scheduleTree_[0]
    assert node.layoutDimOrder_ == ("d0",) and node.maxDimSizes_ == (2048,)
    folds = node.coordinates_.coordInfo["d0"].folds
    named = [
        (attr.label_, attr.dim_, function.Affine.alpha_)
        for function, attr in zip(folds.dim_prop_func, folds.dim_prop_attr, strict=True)
        if attr.dim_
    ]
    assert named == [
        ("core_fold", "c0", 1024),
        ("core_fold", "c1", 256),
        ("elem_arr_2", "c0", 256),
        ("elem_arr_1", "c1", 64),
        ("elem_arr_0", "c1", 1),
    ]


def test_an_offset_is_where_slices_start():
    x = TensorArg(True, FP16, (1, 9, 64), (tile(1), at(0, offset=5), lane(1)), arg(0))
    node = pointwise("abs", x, matrix(False, arg(1), 4, 64)).dsc.scheduleTree_[0]
    assert starts(node) == {"[0, 0, 0]": 5 * 128, "[1, 0, 0]": 7 * 128}
    first = node.coordinates_.coordInfo["c0"].folds.dim_prop_func[0].Affine
    assert (first.alpha_, first.beta_) == (2, 5)


def test_constants_and_counts_are_in_constant_info():
    two = ConstantArg("F", 0x40000000)
    dsc = pointwise("add", two, two, matrix(False, arg(0), 4, 64)).dsc
    assert dsc.computeOp_[0].inputLabeledDs == ("Constant0-idx0", "Constant0-idx0")
    assert dsc.constantInfo_["0"].name_ == "2"
    iota = IotaArg(3, (64, 1))
    dsc = pointwise("identity_int", iota, matrix(False, arg(0), 4, 64, fmt=12), lanes=32).dsc
    folds = dsc.constantInfo_["0"].data_
    assert [f.Affine.alpha_ for f in folds.dim_prop_func] == [64, 1]
    assert sum(f.Affine.beta_ for f in folds.dim_prop_func) == 3


def test_a_matmul_runs_on_the_pt_and_has_a_class_per_operand():
    dims = (Dim("m", 8, 2), Dim("n", 128), Dim("k", 64))
    args = (
        matrix(True, arg(0), 8, 64, dims=(0, 2)),
        matrix(True, arg(1), 64, 128, dims=(2, 1)),
        matrix(False, arg(2), 8, 128, dims=(0, 1)),
    )
    spec = OpSpec("batchmatmul", "matmul", dims, args, stick=1, lane=2, lanes=64, reduced=(2,))
    dsc = superdsc_of(spec).dsc
    assert [labeled.dsType_ for labeled in dsc.labeledDs_] == ["INPUT", "KERNEL", "OUTPUT"]
    assert dsc.primaryDsInfo_["INPUT"].stickDimOrder_ == ("c2",)
    assert dsc.computeOp_[0].exUnit == "pt"
    assert dsc.labeledDs_[2].scale_ == {"c0": 1, "c1": 1, "c2": -1}


def test_a_gather_names_its_index():
    table = TensorArg(
        True, FP16, (50, 1, 64), (Coordinate(0, (), indirect=1), tile(1), lane(1)), arg(0)
    )
    index = TensorArg(True, 12, (1, 32), (Coordinate(), at(0)), arg(1))
    dims = (Dim("i", 4, 2), Dim("c", 64))
    args = (table, index, matrix(False, arg(2), 4, 64))
    dsc = superdsc_of(OpSpec("gather", "gather", dims, args, stick=1, lanes=64, rows=50)).dsc
    assert dsc.labeledDs_[1].dsType_ == "KERNEL_IDX"
    folds = dsc.scheduleTree_[0].coordinates_.coordInfo["d0"].folds
    assert [f.Indirect.ldsIdx_ for f in folds.dim_prop_func if f.Indirect] == [1]
    assert dsc.coordinateMasking_["d0"][0].start_ == 50


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        ((tile(1), at(0), at(0)), "lane c0 is no Mod"),
        ((tile(1), at(0), Coordinate(3)), "reads lane 3"),
        ((at(0), at(0), lane(1)), "no coordinate counts its sticks"),
        ((tile(1), Coordinate(0, (Term(0, 1, 2),)), lane(1)), "is not the tile of a stick"),
    ],
)
def test_coordinates_that_sticks_can_not_express_are_refused(coordinates, message):
    x = TensorArg(True, FP16, (2, 4, 64), coordinates, arg(0))
    with pytest.raises(ValueError, match=message):
        pointwise("abs", x, matrix(False, arg(1), 4, 128), columns=128)


def test_slices_that_would_leave_a_core_idle_are_refused():
    with pytest.raises(ValueError, match="rows of extent 5 can't be divided into 4 slices"):
        pointwise(
            "abs", matrix(True, arg(0), 5, 64), matrix(False, arg(1), 5, 64), rows=5, slices=(4, 1)
        )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(kernels())
def test_equal_specs_give_equal_bundles_and_every_file_fits_the_schema(kernel: KernelSpec):
    first, second = bundle_of(kernel), bundle_of(kernel)
    assert first == second and first.content_hash == second.content_hash
    for number, sdsc in enumerate(first.sdscs):
        text = to_json(sdsc)
        assert from_json(text, f"sdsc_{number}.json") == sdsc
        assert text == to_json(second.sdscs[number])
