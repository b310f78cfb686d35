"""Products of quantised matrices: their steps bit by bit, their numbers, and what they read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import bounded
import pytest
import torch
from compiled import Run, on_card, run_compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import check_launch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.functional import ScalingType

from torch_spyre import _C
from torch_spyre._inductor.graph import Buffer, Op, Read, dense
from torch_spyre._inductor.passes.copies import _through
from torch_spyre.tools.measure import measure

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SIZES = [(1, 64, 64), (5, 100, 70), (3, 129, 257), (18, 192, 130)]  # m, k, n
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def _setup() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.spyre.reset_fallback_stats()
    yield
    assert torch.spyre.fallback_stats() == {}


def operations(run: Run) -> list[str]:
    return [step.opcode for launch in run.launches for step in launch.steps]


# ---- Numbers ------------------------------------------------------------------------------------

Scaled = Callable[..., torch.Tensor]


def scaled_mm(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor, **more: Any) -> torch.Tensor:
    return torch._scaled_mm(a, b.t(), *scales, **more)


def scaled_mm_v2(
    a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    recipe = ScalingType.TensorWise if scales[0].numel() == 1 else ScalingType.RowWise
    return F.scaled_mm(a, b.t(), scales[0], recipe, scales[1], recipe, output_dtype=out_dtype)


def transposed_rows(a: torch.Tensor, *rest: torch.Tensor, **more: Any) -> torch.Tensor:
    """The same product from an operand that is not contiguous."""
    return scaled_mm(a.t().contiguous().t(), *rest, **more)


def check_product(call: Scaled, exact: torch.Tensor, size: torch.Tensor, *args: Any) -> bool:
    """Steps as the numpy model has them, results within their roundings; are they the same bits,
    eager and compiled?"""
    run = run_compiled(call, args)
    for launch in run.launches:
        check_launch(launch)
    eager = call(*on_card(args)).cpu()
    bound = 3 * bounded.UNIT[eager.dtype] * exact.abs() + bounded.TINY[eager.dtype]
    bound = bound + 400 * bounded.FP32 * size
    wanted = bounded.Bounded(exact, bound, eager.dtype)
    for result in (*run.results, eager):
        assert wanted.holds(result).all(), (result.double() - exact).abs().max()
    return torch.equal(eager, run.results[0])


# Every two of these meet; sizes and dtypes of results take turns.
CALLS = (scaled_mm, scaled_mm_v2, transposed_rows)
PAIRS = ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2))
TURNS = list(enumerate(itertools.product(CALLS, PAIRS, (False, True))))


@pytest.mark.parametrize(("turn", "how"), TURNS)
def test_a_scaled_product_is_one_sum_in_fp32(
    turn: int, how: tuple[Scaled, tuple[torch.dtype, torch.dtype], bool]
) -> None:
    call, (of_a, of_b), is_row_wise = how
    (m, k, n), out = SIZES[turn % len(SIZES)], DTYPES[turn % len(DTYPES)]
    a, b = torch.randn(m, k).to(of_a), torch.randn(n, k).to(of_b)
    scales = [torch.tensor(0.3), torch.tensor([1.7])]
    if is_row_wise:
        scales = [torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5]
    factor = scales[0].double() * scales[1].double()
    exact = a.double() @ b.double().t() * factor
    size = a.double().abs() @ b.double().t().abs() * factor

    def product(*args: torch.Tensor) -> torch.Tensor:
        return call(*args, out_dtype=out)

    assert check_product(product, exact, size, a, b, *scales)


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_bias_is_added_before_the_one_rounding(m: int, k: int, n: int) -> None:
    a, b, bias = torch.randn(m, k).to(E4M3), torch.randn(n, k).to(E4M3), torch.randn(n)
    scales = torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5
    exact = a.double() @ b.double().t() * scales[0].double() * scales[1].double() + bias.double()
    size = a.double().abs() @ b.double().t().abs() * 2.25 + bias.double().abs()

    def product(*args: torch.Tensor) -> torch.Tensor:
        return scaled_mm(*args[:4], bias=args[4], out_dtype=torch.bfloat16)

    assert check_product(product, exact, size, a, b, *scales, bias)


def test_a_result_of_8_bits_is_divided_by_its_scale_and_saturates() -> None:
    """Whole numbers, whose sums are exact: CPUs differ in what becomes of too large a result."""
    a, b = (torch.randint(-9, 10, (rows, 64)).to(E4M3) for rows in (6, 32))
    args = a, b, torch.tensor(1.0), torch.tensor(1.0), None, torch.tensor(0.5)

    def product(*args: Any) -> torch.Tensor:
        return scaled_mm(*args, out_dtype=E4M3)

    exact = a.float() @ b.float().t() / 0.5
    wanted = exact.clamp(-448, 448).to(E4M3).float()
    assert (exact > 1000).any() and (exact.abs() < 400).any()
    for call in product, torch.compile(product, fullgraph=True):
        assert torch.equal(call(*on_card(args)).cpu().float(), wanted)


@pytest.mark.filterwarnings("ignore:aten::_scaled_mm has no kernel")
@pytest.mark.parametrize("compile_", [lambda call: call, torch.compile], ids=["eager", "compiled"])
def test_scales_that_fit_nothing_get_the_error_of_pytorch(compile_: Any) -> None:
    a, b = torch.randn(32, 64).to(E4M3), torch.randn(48, 64).to(E4M3)
    scales = torch.rand(32, 1), torch.tensor(1.0)
    call = compile_(scaled_mm)
    with pytest.raises(ValueError, match="Invalid scaling configuration"):
        scaled_mm(a, b, *scales)
    with pytest.raises(ValueError, match="Invalid scaling configuration"):
        call(*on_card([a, b, *scales])).cpu()
    torch.spyre.reset_fallback_stats()  # the CPU said it


# ---- Bytes as weights ---------------------------------------------------------------------------


def packed(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch._weight_int8pack_mm(x, weight, scale)


def by_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight.to(x.dtype)) * scale


def turned_first(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x @ weight.t().to(x.dtype)) * scale


FORMULAS = {call.__name__: call for call in (packed, by_linear, turned_first)}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("turn", range(len(SIZES)))
def test_a_product_with_bytes_has_the_numbers_of_the_formula(turn: int, formula: str) -> None:
    (m, k, n), dtype = SIZES[turn], DTYPES[(turn + len(formula)) % len(DTYPES)]
    x, scale = torch.randn(m, k).to(dtype), (torch.rand(n) + 0.5).to(dtype)
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    on_device = [tensor.cpu().double() for tensor in on_card([x, scale])]
    exact = on_device[0] @ weight.double().t() * on_device[1]
    size = on_device[0].abs() @ weight.double().t().abs() * on_device[1]
    is_same = check_product(FORMULAS[formula], exact, size, x, weight, scale)
    assert is_same or formula != "packed"  # the others are several operations in eager mode


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("wide", [torch.int8, E4M3], ids=["int8", "fp8"])
def test_a_compiled_product_reads_narrow_weights_as_they_are(
    wide: torch.dtype, formula: str
) -> None:
    """No copy in 16 bits: the matmul is the only step that touches the weight."""
    if wide is E4M3 and formula == "packed":
        pytest.skip("torch._weight_int8pack_mm takes no weights but int8")
    x, scale = torch.randn(4, 256).half(), torch.rand(384).half()
    weight = torch.randint(-100, 100, (256, 384)).to(wide).t()  # as a weight is laid out
    run = run_compiled(FORMULAS[formula], [x, weight, scale])
    opcode = "batchmatmul_int8" if wide is torch.int8 else "batchmatmul"
    assert operations(run) == [opcode, "mul"]
    (launch,) = run.launches
    assert launch.traffic.read < 1.1 * (weight.nbytes + x.nbytes + 2 * scale.nbytes)


def test_rows_that_were_widened_are_read_narrow_only_beside_narrow_columns() -> None:
    a, b = torch.randn(5, 128).to(E4M3), torch.randn(128, 256).to(E4M3)
    run = run_compiled(lambda a, b: a.half() @ b.half(), [a, b])
    assert [operand.format for operand in run.launches[0].steps[0].inputs] == [3, 3]
    run = run_compiled(lambda a, b: a.half() @ b, [a, torch.randn(128, 256).half()])
    assert operations(run) == ["identity", "batchmatmul"]


def test_16_bit_operands_that_were_widened_are_multiplied_as_such() -> None:
    a, b = torch.randn(5, 128).half(), torch.randn(128, 256).half()
    run = run_compiled(lambda a, b: a.float() @ b.float(), [a, b])
    assert operations(run) == ["batchmatmul"]
    seen = [tensor.cpu().float() for tensor in on_card([a, b])]
    torch.testing.assert_close(run.results[0], seen[0] @ seen[1], rtol=1e-5, atol=1e-4)


# ---- Walks through a copy -----------------------------------------------------------------------


@st.composite
def copies_and_reads(draw: st.DrawFn) -> tuple[Op, Read, tuple[int, ...]]:
    size = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))

    def strides() -> tuple[int, ...]:
        order = draw(st.permutations(range(len(size))))
        nested = dense([size[i] for i in order])
        return tuple(nested[order.index(i)] for i in range(len(size)))

    numel = 1
    for n in size:
        numel *= n
    original, copied = strides(), strides()
    source = Buffer("source", size, original, torch.int8, numel)
    target = Buffer("target", size, copied, torch.float16, numel)
    copy = Op(
        "int_to_float", "pointwise", size, [Read(source, 0, original)], Read(target, 0, copied)
    )
    extents = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    steps = tuple(draw(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16])) for _ in extents)
    reach = sum(step * (n - 1) for step, n in zip(steps, extents, strict=True))
    if reach >= numel:
        steps, reach = (0,) * len(steps), 0
    offset = draw(st.integers(0, numel - 1 - reach))
    return copy, Read(target, offset, steps), extents


@given(copies_and_reads())
@settings(max_examples=400, deadline=None)
def test_a_walk_through_a_copy_is_the_same_walk_through_the_original(
    drawn: tuple[Op, Read, tuple[int, ...]],
) -> None:
    copy, read, extents = drawn
    found = _through(read, extents, copy)
    if found is None:
        return
    (source,) = copy.reads
    place = {
        _at(0, copy.output.strides, index): _at(0, source.strides, index)
        for index in itertools.product(*map(range, copy.extents))
    }
    for index in itertools.product(*map(range, extents)):
        at = _at(read.offset, read.strides, index)
        assert place[at] == _at(found.offset, found.strides, index)


def _at(offset: int, strides: tuple[int, ...], index: tuple[int, ...]) -> int:
    return offset + sum(i * step for i, step in zip(index, strides, strict=True))


@pytest.mark.parametrize("cores", [2, 3])
def test_a_copy_in_a_scratchpad_divides_as_the_operation_it_serves(cores: int) -> None:
    """A 32-bit operand of 16-bit operations: its sticks are half as long as what they share."""

    def model(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        u, v, w = (x * a).half(), (x + b).half(), (x - a).half()
        return u + v * w, u - v, u * w

    for size in (448, 4160):
        args = torch.randn(1, size), torch.randn(1, size).half(), torch.randn(1, size).half()
        run = run_compiled(model, args, sencores=cores)
        for launch in run.launches:
            check_launch(launch)


# ---- Weights of modules -------------------------------------------------------------------------


class Quantised(nn.Module):
    """A linear layer from a buffer."""

    def __init__(self, weight: torch.Tensor, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(weight.shape[0]).half())
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, self.weight, self.scale)


def dynamic(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Activations in fp8, by row."""
    own = x.abs().amax(1, keepdim=True).float() / 448
    rows = (x / own).clamp(-448, 448).to(E4M3)
    return scaled_mm(rows, weight, own, scale.float()[None], out_dtype=x.dtype)


def scaled_first(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight.to(x.dtype) * scale[:, None])


def is_turned(tensor: torch.Tensor) -> bool:
    layout = _C.get_spyre_tensor_layout(tensor)
    size, stride = list(tensor.shape), list(tensor.stride())
    return layout == _C.SpyreTensorLayout(size, stride, tensor.dtype, [1, 0])


@pytest.mark.parametrize("call", [by_linear, packed, turned_first, dynamic, scaled_first])
def test_a_weight_that_a_module_holds_is_laid_out_once(call: Any) -> None:
    kind = E4M3 if call is dynamic else torch.int8
    model = Quantised(torch.randint(-100, 100, (256, 384)).to(kind), call).to("spyre")
    x = torch.randn(4, 384).half().to("spyre")
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        got, cost = measure(compiled, x)
        wanted = call(x.cpu().float(), model.weight.cpu(), model.scale.cpu().float())
    assert is_turned(model.weight)
    is_copied = call is scaled_first  # in 16 bits, before it is multiplied
    assert (cost.bytes_written > model.weight.nbytes) == is_copied
    assert float((got.cpu() - wanted).norm() / wanted.norm()) < 0.005


def test_a_buffer_that_is_more_than_a_weight_keeps_its_layout() -> None:
    def also_read(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return by_linear(x, weight, scale) + weight.sum()

    def untransposed(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x @ weight.to(x.dtype)) * scale

    def names_its_dtype(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return by_linear(x, weight, scale) + F.linear(x, x.to(weight).to(x.dtype)).sum()

    for call in also_read, untransposed, names_its_dtype:
        model = Quantised(torch.randint(-9, 9, (256, 256)).to(torch.int8), call).to("spyre")
        torch.compile(model)(torch.randn(4, 256).half().to("spyre"))
        assert not is_turned(model.weight)


def test_a_decode_step_in_8_bits_takes_half_of_the_time_in_16() -> None:
    """What is modelled is the way of the weight through LPDDR5."""
    weight = torch.randint(-100, 100, (4096, 4096)).to(torch.int8)
    x = torch.randn(1, 4096).half().to("spyre")
    cases = {
        "fp16": nn.Linear(4096, 4096, bias=False).half(),
        "fp8": Quantised(weight.to(E4M3), dynamic),
        "int8": Quantised(weight, by_linear),
    }
    costs = {}
    with torch.no_grad():
        for name, model in cases.items():
            torch._dynamo.reset()
            costs[name] = measure(torch.compile(model.to("spyre"), fullgraph=True), x)[1]
    for name in ("fp8", "int8"):
        assert costs[name].launches == 1
        assert costs[name].bytes_read < 1.01 * weight.nbytes
        assert costs[name].microseconds < 0.51 * costs["fp16"].microseconds
