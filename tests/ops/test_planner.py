"""Plans of single operations, run by the numpy model of the card and compared with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import step_model
import torch
from model_card import Call, Tensor, put
from op_cases import ANY, CASES, Case, distance, reference

from torch_spyre import ir
from torch_spyre.backend.program import Step, StepFlags, StepKind, decode
from torch_spyre.ops import eager, registry
from torch_spyre.ops.cores import divide
from torch_spyre.ops.plan import OutputSpec, UnsupportedError

ADD = Case("add.Tensor", (ANY, ANY))


def _on_card(args: list[object]) -> list[object]:
    return [put(a) if isinstance(a, torch.Tensor) else a for a in args]


def _schema_args(name: str, args: list[object]) -> list[object]:
    """Arguments in the order of the schema, with the defaults that the dispatcher would fill in."""
    packet, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    return [*args, *(argument.default_value for argument in schema.arguments[len(args) :])]


def run(name: str, *args: object) -> Tensor:
    return Call(*_schema_args(name, list(args))).run(f"aten::{name}")


def steps_of(name: str, *args: object) -> list[Step]:
    plan = Call(*_schema_args(name, list(args))).plan(f"aten::{name}")
    assert plan.launches
    return [node for node in decode(plan.launches[0].program).body if isinstance(node, Step)]


ALL_CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{str(dtype).removeprefix('torch.')}-{i}")
    for i, case in enumerate(CASES)
    for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), ALL_CASES)
def test_operation_gives_what_pytorch_gives(case: Case, dtype: torch.dtype) -> None:
    args = case.make((3, 70), dtype)
    expected_dtype, expected = reference(case, args)
    result = run(case.name, *_on_card(args))
    assert result.dtype == expected_dtype
    assert result.size == (3, 70)
    assert distance(result.values(), expected, expected_dtype) <= case.ulps


SIZES = [
    (),
    (1,),
    (5,),
    (64,),
    (130,),
    (1, 1),
    (3, 1),
    (1, 70),
    (4, 64),
    (2, 3, 70),
    (2, 1, 3, 1, 2, 5),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_any_shape_works(size: tuple[int, ...], dtype: torch.dtype) -> None:
    args = ADD.make(size, dtype)
    _, expected = reference(ADD, args)
    assert distance(run("add.Tensor", *_on_card(args)).values(), expected, dtype) == 0


BROADCASTS = [
    ((4, 70), (70,)),
    ((4, 70), (4, 1)),
    ((4, 70), (1, 70)),
    ((4, 70), ()),
    ((4, 1), (1, 70)),
    ((70,), (4, 1)),
    ((2, 3, 70), (3, 1)),
    ((2, 3, 70), (2, 1, 70)),
    ((2, 3, 70), (2, 1, 1)),
    ((2, 1, 70), (1, 3, 1)),
    ((1,), (3, 70)),
]


@pytest.mark.parametrize("sizes", BROADCASTS, ids=str)
@pytest.mark.parametrize("dtypes", [(torch.float16,) * 2, (torch.float32, torch.float16)], ids=str)
def test_operands_are_broadcast(sizes: tuple, dtypes: tuple) -> None:
    a, b = (torch.randn(size).to(dtype) for size, dtype in zip(sizes, dtypes, strict=True))
    dtype, expected = reference(ADD, [a, b])
    result = run("add.Tensor", put(a), put(b))
    assert result.size == tuple(expected.shape)
    assert result.dtype == dtype
    assert distance(result.values(), expected, dtype) == 0


VIEWS = {
    "transposed": lambda x: x.t(),
    "rows": lambda x: x[1:3],
    "every second row": lambda x: x[::2],
    "columns inside a stick": lambda x: x[:, 3:40],
    "columns from a stick on": lambda x: x[:, 64:],
    "every second column": lambda x: x[:, ::2],
    "one column": lambda x: x[:, 5],
    "first column": lambda x: x[:, 0:1],
    "one row": lambda x: x[2],
    "one element": lambda x: x[2, 7],
    "expanded": lambda x: x[:, None].expand(-1, 3, -1),
    "flattened": lambda x: x.view(-1),
    "windows": lambda x: x.unfold(1, 8, 4),
    "reshaped": lambda x: x.view(8, -1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_views_are_read(view, order: tuple[int, ...], dtype: torch.dtype) -> None:
    base = torch.arange(8 * 100).reshape(8, 100).to(dtype)
    x = view(base)
    y = torch.ones(x.shape, dtype=dtype)
    result = run("add.Tensor", put(x, order), put(y))
    dtype, expected = reference(ADD, [x, y])
    assert distance(result.values(), expected, dtype) == 0


@pytest.mark.parametrize("view", [v for n, v in VIEWS.items() if n not in ("expanded", "windows")])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_views_are_written_and_nothing_else(view, order, dtype: torch.dtype) -> None:
    base = torch.arange(8 * 100).reshape(8, 100).to(dtype)
    target = put(view(base), order)
    whole = target.like(base)
    step = torch.full(view(base).shape, 3, dtype=dtype)
    run("mul_.Tensor", target, put(step))
    view(base).mul_(3)
    held = step_model.as_seen_by_card(torch.arange(8 * 100).reshape(8, 100).to(dtype))
    expected = torch.from_numpy(held.copy())
    view(expected).mul_(3)
    assert distance(whole.values(), expected.numpy(), dtype) == 0


def test_an_input_that_the_result_overwrites_is_copied_first() -> None:
    base = torch.arange(5 * 70, dtype=torch.float32).reshape(5, 70)
    card = put(base)
    run("add_.Tensor", card.like(base[1:]), card.like(base[:-1]))
    expected = base.clone()
    expected[1:] += base[:-1]
    assert np.array_equal(card.values(), expected.numpy())


def test_the_same_view_as_input_and_result_needs_no_copy() -> None:
    x = put(torch.ones(4, 64, dtype=torch.float16))
    steps = steps_of("add_.Tensor", x, x)
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("dtypes", "op"),
    [
        ((torch.int32, torch.float32), "add.Tensor"),
        ((torch.bool, torch.float16), "mul.Tensor"),
        ((torch.bool, torch.int32), "add.Tensor"),
        ((torch.int8, torch.int32), "mul.Tensor"),
        ((torch.uint8, torch.int8), "add.Tensor"),
        ((torch.int32, torch.float16), "lt.Tensor"),
        ((torch.float16, torch.bfloat16), "sub.Tensor"),
        ((torch.int64, torch.float16), "div.Tensor"),
    ],
    ids=str,
)
def test_dtypes_are_promoted_as_on_the_cpu(dtypes: tuple, op: str) -> None:
    case = Case(op, (ANY, ANY))
    rng = torch.Generator().manual_seed(1)
    a, b = (ANY.make((3, 70), dtype, rng) for dtype in dtypes)
    b = torch.where(b == 0, torch.ones_like(b), b)
    dtype, expected = reference(case, [a, b])
    result = run(op, put(a), put(b))
    assert result.dtype == dtype
    assert distance(result.values(), expected, dtype) == 0


@pytest.mark.parametrize("scalar", [2, 2.5, True, torch.tensor(3), torch.tensor(1.5)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool, torch.uint8], ids=str)
@pytest.mark.parametrize("size", [(3, 70), ()], ids=str)
def test_numbers_promote_as_on_the_cpu(scalar: object, dtype: torch.dtype, size: tuple) -> None:
    x = ANY.make(size, dtype, torch.Generator().manual_seed(2))
    result = run("mul.Tensor", put(x), scalar)
    expected = x * scalar
    assert result.dtype == expected.dtype
    held = torch.from_numpy(step_model.as_seen_by_card(x)) if dtype.is_floating_point else x
    values = (held * scalar).to(
        torch.float32 if expected.dtype.is_floating_point else expected.dtype
    )
    assert distance(result.values(), values.numpy(), expected.dtype) == 0


DTYPES = list(step_model.FORMAT_OF)


@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_copy_converts_between_all_dtypes(source: torch.dtype, to: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(3)
    x = torch.randint(0, 100, (3, 70), generator=rng).to(source)
    target = put(torch.zeros(3, 70).to(to))
    Call(target, put(x)).run("spyre::copy")
    held = torch.from_numpy(step_model.as_seen_by_card(x).copy())
    expected = held.to(to)
    wide = torch.float32 if to.is_floating_point or to is torch.bool else torch.int64
    actual = target.values()
    rounded = step_model.as_seen_by_card(expected) if wide is torch.float32 else expected.numpy()
    if to in (torch.float16, torch.bfloat16):
        rounded = step_model.decode_sen169(step_model.encode_sen169(held.float().numpy()))
    assert np.array_equal(actual, rounded)


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_copy_from_a_view_of_another_dtype(view) -> None:
    base = torch.arange(8 * 100).reshape(8, 100).to(torch.int32)
    x = view(base)
    target = put(torch.zeros(x.shape))
    Call(target, put(x)).run("spyre::copy")
    assert np.array_equal(target.values(), x.float().numpy())


def test_copy_moves_elements_directly_where_sticks_disagree() -> None:
    base = torch.arange(64 * 64, dtype=torch.float16).reshape(64, 64)
    plan = Call(put(torch.zeros(64, 64).half()), put(base.t())).plan("spyre::copy")
    assert plan.temp_bytes == 0
    assert plan.launches
    kinds = [node.kind for node in decode(plan.launches[0].program).body if isinstance(node, Step)]
    assert kinds == [StepKind.RESTICKIFY]


def test_aligned_operands_take_one_step_on_all_cores() -> None:
    x = put(torch.zeros(512, 256, dtype=torch.float16))
    (step,) = steps_of("mul.Tensor", x, x)
    assert step.cores == 0xFFFFFFFF
    assert step.flags is StepFlags.NONE


def test_small_work_stays_on_few_cores() -> None:
    x = put(torch.zeros(4, 64, dtype=torch.float16))
    (step,) = steps_of("mul.Tensor", x, x)
    assert step.cores == 1


def test_results_take_over_a_layout_that_all_operands_share() -> None:
    x = put(torch.zeros(128, 96, dtype=torch.float16), order=(1, 0))
    (spec,) = Call(x, x).plan("aten::mul.Tensor").outputs
    assert isinstance(spec, OutputSpec)
    assert (spec.device_size, spec.stride_map) == (x.storage.device_size, x.storage.stride_map)
    transposed = put(torch.zeros(128, 96, dtype=torch.float16).t())
    assert len(steps_of("mul.Tensor", transposed, transposed)) == 1


def test_a_scalar_is_an_argument_of_the_launch() -> None:
    """One plan serves every value, so that a changing number costs no planning."""
    x = put(torch.zeros(4, 64, dtype=torch.float16))
    assert Call(x, 2.0).plan("aten::mul.Scalar") == Call(x, 3.0).plan("aten::mul.Scalar")


@pytest.mark.parametrize("value", [-3.4e38, float("-inf"), 0.5, float("nan")])
def test_a_mask_value_beyond_the_range_stays_finite(value: float) -> None:
    x = put(torch.ones(3, 70, dtype=torch.bfloat16))
    mask = put(torch.ones(3, 70, dtype=torch.bool))
    values = run("masked_fill_.Scalar", x, mask, value).values()
    expected = max(value, -step_model.LARGEST_SEN169) if np.isfinite(value) else value
    assert np.array_equal(values, np.full((3, 70), expected, np.float32), equal_nan=True)


def test_empty_tensors_need_no_program() -> None:
    plan = Call(put(torch.zeros(0, 5)), put(torch.zeros(0, 5))).plan("aten::mul.Tensor")
    assert not plan.launches
    (spec,) = plan.outputs
    assert isinstance(spec, OutputSpec)
    assert spec.size == (0, 5)


def test_out_of_another_size_is_resized_first() -> None:
    x, out = put(torch.zeros(3, 4)), put(torch.zeros(0))
    plan = Call(x, x, out).plan("aten::mul.out")
    assert plan.resize == ((2, (3, 4)),)
    assert not plan.launches


def test_out_of_another_dtype_is_converted_to() -> None:
    a, b = torch.arange(70), torch.arange(70) + 1
    out = put(torch.zeros(70))
    run("mul.out", put(a), put(b), out)
    assert np.array_equal(out.values(), (a * b).float().numpy())


def test_errors_are_those_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        run("mul.Tensor", put(torch.zeros(3)), put(torch.zeros(4)))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        run("mul_.Tensor", put(torch.zeros(3, dtype=torch.int32)), put(torch.zeros(3)))
    with pytest.raises(RuntimeError, match="Subtraction, the `-` operator, with two bool"):
        run("sub.Tensor", put(torch.zeros(3).bool()), put(torch.zeros(3).bool()))


def test_shapes_that_do_not_fit_are_named_as_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match=r"output with shape \[3\] doesn't match the broadcast"):
        run("mul_.Tensor", put(torch.zeros(3)), put(torch.zeros(2, 3)))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        run("mul_.Tensor", put(torch.zeros(1).expand(4)), put(torch.zeros(4)))
    with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
        run("gelu", put(torch.zeros(3, dtype=torch.int32)))


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@pytest.mark.parametrize("other", VIEWS.values(), ids=list(VIEWS))
def test_results_have_the_strides_that_pytorch_gives_them(view, other) -> None:
    base = torch.zeros(8, 100)
    a, b = view(base), other(torch.zeros(8, 100))
    if a.shape != b.shape:
        b = torch.zeros(())
    (spec,) = Call(*_schema_args("add.Tensor", [put(a), put(b)])).plan("aten::add.Tensor").outputs
    assert isinstance(spec, OutputSpec)
    assert (spec.size, spec.stride) == (tuple(a.shape), (a + b).stride())


def test_planning_imports_no_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from torch_spyre.ops import inference, registry, plan\n"
        "x = plan.TensorMeta((3,), (1,), 0, torch.float16, (1, 64), (64, 1), 3, 0)\n"
        "inference.infer(registry.overloads()['aten::neg'], {'self': x})\n"
        "print('torch._dynamo' in sys.modules, 'sympy' in sys.modules)"
    )
    run_ = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run_.stdout.split() == ["False", "False"]


def test_an_error_about_a_value_is_one_about_a_keyed_value() -> None:
    with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
        run("pow.Tensor_Scalar", put(torch.ones(3, dtype=torch.int32)), -1)


def test_a_result_in_float64_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="float64"):
        run("mul.Tensor", put(torch.zeros(3, dtype=torch.int32)), torch.tensor(1.0).double())


def test_what_the_card_has_no_operation_for_is_left_to_the_fallback() -> None:
    factor = Call(put(torch.eye(3)))
    with pytest.raises(UnsupportedError):
        eager.plan_for_cpp("aten::linalg_inv_ex", (factor.metas[0], False))


def test_steps_that_depend_on_each_other_are_ordered() -> None:
    ints, floats = put(torch.ones(64, 64).int()), put(torch.ones(64, 64))
    convert, add = steps_of("add.Tensor", ints, floats)
    assert not convert.flags & StepFlags.BARRIER_BEFORE
    assert add.flags & StepFlags.BARRIER_BEFORE


def test_a_tensor_beyond_the_span_of_a_core_is_divided_further() -> None:
    """16 GiB in one dimension: 32 cores of 256 MiB each reach only half of it."""
    meta = Call(put(torch.zeros(1))).metas[0]
    numel = 1 << 33
    big = replace(
        meta,
        size=(numel,),
        stride=(1,),
        device_size=(numel // 32, 32),
        stride_map=(32, 1),
        storage_numel=numel,
    )
    plan = eager.plan_for_cpp("aten::neg_", (big,))
    assert plan.launches
    assert len(decode(plan.launches[0].program).body) > 1


def test_values_that_shape_a_program_are_named() -> None:
    assert registry.value_keys("aten::arange.start_out") == (0, 1, 2)
    assert registry.value_keys("aten::random_.from") == (1, 2)
    assert registry.value_keys("aten::pow.Tensor_Scalar") == (1,)
    assert registry.value_keys("aten::pow.Tensor_Tensor") == ()
    assert registry.value_keys("aten::add.Tensor") == ()


def test_a_long_misaligned_copy_is_shared_by_the_cores() -> None:
    base = torch.arange(40_001, dtype=torch.int32)
    target = put(torch.zeros(40_000, dtype=torch.int32))
    call = Call(target, put(base[1:]))
    plan = call.plan("spyre::copy")
    assert plan.launches
    steps = [s for s in decode(plan.launches[0].program).body if isinstance(s, Step)]
    assert max(step.cores.bit_count() for step in steps) == 32
    assert np.array_equal(call.run("spyre::copy").values(), base[1:].numpy())


def test_sticks_of_one_iteration_count_towards_the_span() -> None:
    """A float32 operand of a float16 step takes two sticks per iteration, a whole tile apart."""
    rows = 1 << 20
    metas = []
    for index, (dtype, lanes) in enumerate(((torch.float16, 64), (torch.float32, 32))):
        meta = Call(put(torch.zeros(1, dtype=dtype))).metas[0]
        metas.append(
            replace(
                meta,
                size=(rows, 128),
                stride=(128, 1),
                device_size=(128 // lanes, rows, lanes),
                stride_map=(lanes, 128, 1),
                storage_numel=rows * 128,
                index=index,
                alias=index,
            )
        )
    plan = eager.plan_for_cpp("aten::mul_.Tensor", tuple(metas))
    assert plan.launches
    card = sys.modules["torch_spyre._C"]._card.Card(memory_bytes=1 << 24, threads=1)
    card.load(plan.launches[0].program)  # refuses a core that spans too much


def test_an_iteration_beyond_the_span_of_a_core_is_left_to_the_fallback() -> None:
    with pytest.raises(UnsupportedError, match="spans"):
        divide((2,), (ir.Span((1 << 30,)),), sticks=2, splittable=(False,))


def test_cores_that_step_back_reach_as_far_as_their_first_step() -> None:
    """The first of three steps goes furthest: 2·256 - 0·128."""
    (slices,) = divide((3, 3), (ir.Span((256, -128)),), sticks=9)
    assert slices.reach((256, -128)) == 512
    assert slices.reach((-256, 128)) == 256
