"""What once went wrong when models were compiled, one claim each."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre._inductor import runtime
from torch_spyre._inductor.body import IndexReader, Position, UnevenIndexError
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre._inductor.errors import Unsupported
from torch_spyre.tools.cli import main
from torch_spyre.tools.follow import follow

DEVICE = "spyre"


@pytest.fixture(autouse=True)
def _setup() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_as_on_cpu(function: Callable[..., Any], *args: Any) -> None:
    """Compiled float32 results, and mutated inputs, are those of the CPU in float64."""
    ours = [arg.to(DEVICE) if isinstance(arg, torch.Tensor) else arg for arg in args]
    theirs = [_widened(arg) for arg in args]
    result = torch.compile(function, fullgraph=True, dynamic=False)(*ours)
    _assert_close((result, ours), (function(*theirs), theirs))


def _widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.double() if value.is_floating_point() else value.clone()


def _assert_close(ours: Any, theirs: Any) -> None:
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        largest = float(b.abs().max()) if b.is_floating_point() and b.numel() else 0.0
        torch.testing.assert_close(
            a.detach().cpu(),
            b.detach().to(a.dtype),
            rtol=0,
            atol=1e-5 * max(largest, 1e-3) if b.is_floating_point() else 0,
        )


def assert_gradients_as_on_cpu(model: nn.Module, *args: torch.Tensor) -> None:
    """A weighted sum of the output, so that no gradient is zero by symmetry."""
    gradients = []
    for device, dtype in ((DEVICE, torch.float32), ("cpu", torch.float64)):
        # An optimiser is not needed to see that every parameter gets its gradient.
        own = copy.deepcopy(model).to(device=device, dtype=dtype)
        moved = [_placed(arg, device, dtype) for arg in args]
        output = (torch.compile(own) if device == DEVICE else own)(*moved)
        weights = torch.linspace(-1, 2, output.numel()).view(output.shape).sin()
        (output * weights.to(device, dtype)).sum().backward()
        gradients.append([parameter.grad for parameter in own.parameters()])
    _assert_close(*gradients)


def _placed(value: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


# ---- Index expressions --------------------------------------------------------------------------


def test_a_diagonal_is_summed() -> None:
    assert_as_on_cpu(lambda x: (x.diagonal().sum(), x.diagonal().amax()), torch.randn(70, 70))


def test_a_variance_with_a_correction_divides_by_a_number_of_its_own() -> None:
    assert_as_on_cpu(lambda x: (x.std(-1), x.var(0, correction=3)), torch.randn(14, 77))


def test_index_tensors_that_count_are_views() -> None:
    """As transformers look up a padding mask: `mask[batch_index, position]`."""

    def look_up(mask: torch.Tensor) -> torch.Tensor:
        batch = torch.arange(6, device=mask.device)[:, None, None, None]
        position = torch.arange(20, device=mask.device)[None, None, None, :]
        return mask[batch, position]

    assert_as_on_cpu(look_up, torch.randn(6, 70) > 0)


def test_one_counting_index_beside_a_gathered_one_is_a_gather_of_one() -> None:
    """As the last token of every sequence is taken."""
    last = torch.randint(0, 10, (6,))
    assert_as_on_cpu(
        lambda x, last: x[torch.arange(6, device=x.device), last], torch.randn(6, 10, 70), last
    )


@pytest.mark.parametrize(("first", "end"), [(-3, 0), (-2, 3)])
def test_a_counting_index_may_start_below_zero(first: int, end: int) -> None:
    assert_as_on_cpu(lambda x: x[torch.arange(first, end, device=x.device)] * 2, torch.randn(6, 70))


GATHERS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "of each row": (
        lambda x, i: x.gather(-1, i) * 2,
        (torch.randn(9, 170), torch.randint(0, 170, (9, 100))),
    ),
    "of each column": (
        lambda x, i: x.gather(0, i),
        (torch.randn(9, 70), torch.randint(0, 9, (3, 70))),
    ),
    "of rows of a batch": (
        lambda x, i: x.gather(1, i[:, :, None].expand(4, 3, 70)),
        (torch.randn(4, 9, 70), torch.randint(0, 9, (4, 3))),
    ),
    "of a flattened tensor": (
        lambda x, i: x.flatten()[i],
        (torch.randn(9, 70), torch.randint(0, 630, (5, 7))),
    ),
}


@pytest.mark.parametrize("name", GATHERS)
def test_single_elements_are_gathered(name: str) -> None:
    """Each element has an index of its own, so none shares a stick with another."""
    function, args = GATHERS[name]
    assert_as_on_cpu(function, *args)


def test_a_view_that_joins_heads_is_read_transposed() -> None:
    """The weight gradient of an attention layer: digits of a joined dimension, never carried."""

    def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        heads = x.view(9, 2, 2, 64).select(2, 1).reshape(9, 8, 16).transpose(0, 1)
        return torch.bmm(y, heads)

    assert_as_on_cpu(joined, torch.randn(18, 128), torch.randn(8, 9, 9))


def test_a_slice_from_half_of_a_changing_size_compiles() -> None:
    compiled = torch.compile(lambda x: x[:, x.shape[1] // 2 :] * 2)
    for length in (8, 11, 30):
        x = torch.randn(7, length)
        _assert_close(compiled(x.to(DEVICE)), x.double()[:, length // 2 :] * 2)


# ---- Padding and writing parts ------------------------------------------------------------------


@pytest.mark.parametrize("padding", [(1, 2, 3, 4), (-1, 2, 3, -4), (0, 0), (-5, -65), (0, 1)])
def test_a_tensor_is_padded(padding: tuple[int, ...]) -> None:
    assert_as_on_cpu(lambda x: F.pad(x, padding, value=2.5) + 1, torch.randn(9, 70))


def test_integers_and_truths_are_padded() -> None:
    labels, truths = torch.randint(0, 9, (2, 13)), torch.randn(9, 70) > 0
    assert_as_on_cpu(lambda x: F.pad(x, (0, 1), value=-100)[..., 1:].contiguous(), labels)
    assert_as_on_cpu(lambda x: F.pad(x, (3, 5), value=True), truths)


@pytest.mark.parametrize(
    ("start", "end", "step"), [(0, 9, 2), (1, 9, 3), (1, 6, 3), (2, 5, 1), (8, 9, 4)]
)
def test_every_nth_column_is_written(start: int, end: int, step: int) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x[:, 3].fill_(7)
        x[:, start:end:step].mul_(2)
        return x * 2

    assert_as_on_cpu(write, torch.randn(5, 9))


# ---- Training -----------------------------------------------------------------------------------


class _Rotary(nn.Module):
    """Both spellings: halves, and every second element."""

    def __init__(self) -> None:
        super().__init__()
        self.cos = nn.Parameter(torch.randn(9, 32))
        self.sin = nn.Parameter(torch.randn(9, 32))
        self.scale = nn.Parameter(torch.randn(4, 9, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        a, b = x.chunk(2, -1)
        halves = x * self.cos + torch.cat([-b, a], -1) * self.sin[:, :32]
        even, odd = x[..., ::2], x[..., 1::2]
        return halves + torch.stack([-odd * self.sin[:, :16], even], -1).flatten(-2)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "softmax": lambda: (nn.Sequential(nn.Linear(64, 70), nn.Softmax(-1)), (torch.randn(5, 64),)),
    "rms_norm": lambda: (nn.Sequential(nn.Linear(64, 70), nn.RMSNorm(70)), (torch.randn(5, 64),)),
    "rotary": lambda: (_Rotary(), (torch.randn(2, 4, 9, 32),)),
    "encoder layer": lambda: (
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
        (torch.randn(2, 9, 64),),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_cpu(name: str) -> None:
    model, args = MODELS[name]()
    assert_gradients_as_on_cpu(model, *args)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(14, 77), (4, 77, 5)])
def test_cross_entropy_and_its_gradient(reduction: str, shape: tuple[int, ...]) -> None:
    logits, weight = torch.randn(shape), torch.rand(77)
    target = torch.randint(0, 77, (shape[0], *shape[2:]))
    target[1] = -100

    def losses(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> Any:
        plain = F.cross_entropy(x, target, reduction=reduction)
        weighted = F.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=0.1)
        return plain, weighted

    assert_as_on_cpu(losses, logits, target, weight)
    gradients = []
    for compiled, device, dtype in (
        (torch.compile(losses), DEVICE, torch.float32),
        (losses, "cpu", torch.float64),
    ):
        x = logits.to(device, dtype).requires_grad_()
        plain, weighted = compiled(x, target.to(device), weight.to(device, dtype))
        (plain.square().sum() + weighted.sum()).backward()
        gradients.append(x.grad)
    _assert_close(*gradients)


def test_dropout_draws_from_the_generator_of_the_device() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.25) * 2)
    x = torch.ones(90, 70, device=DEVICE)
    torch.manual_seed(1)
    first, second = compiled(x).cpu(), compiled(x).cpu()
    torch.manual_seed(1)
    again = compiled(x).cpu()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    kept = first != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 2 / 0.75))


# ---- Spellings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"backend": "spyre", "mode": "max-autotune"},
        {"backend": "spyre", "options": {"max_autotune": True}},
        {"options": {"cpp_wrapper": True}},
        {"mode": "reduce-overhead"},
    ],
    ids=str,
)
def test_modes_and_options_are_accepted(how: dict[str, Any]) -> None:
    x = torch.randn(5, 70)
    result = torch.compile(lambda x: x * 2 + 1, **how)(x.to(DEVICE))
    _assert_close(result, x.double() * 2 + 1)


def test_an_unknown_option_of_the_named_backend_is_an_error() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="spyre", options={"no_such_option": 1})
    with pytest.raises(RuntimeError, match="no_such_option"):
        compiled(torch.randn(5, device=DEVICE))


def _exp(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(x[:, :2]).exp())


def test_what_is_unsupported_is_named_after_the_operation_itself() -> None:
    with pytest.raises(Unsupported) as caught:
        torch.compile(_exp)(torch.randn(5, 70).to(DEVICE))
    assert "complex64" in str(caught.value)
    assert "test_regressions.py" in str(caught.value)


def test_an_unsupported_loop_operation_is_named_without_our_internals() -> None:
    with pytest.raises(Unsupported) as caught:
        torch.compile(lambda x: x.view(torch.int16) + 1)(torch.randn(5, 70).half().to(DEVICE))
    assert "to_dtype_bitcast" in str(caught.value)
    assert "Value(" not in str(caught.value)


def test_a_convolution_runs_on_the_host_between_two_kernels() -> None:
    """As the patch embedding of a vision transformer; Inductor must not choose channels last."""
    assert_as_on_cpu(
        lambda x, w: (F.conv2d(x * 2, w, stride=8) + 1).flatten(2).transpose(1, 2),
        torch.randn(2, 3, 32, 32),
        torch.randn(64, 3, 8, 8),
    )


def test_a_kernel_of_one_element_is_checked_against_the_reference(tmp_path: Path) -> None:
    (kernel,) = follow(lambda x: x * 2 + 1, torch.tensor(1.5).half().to(DEVICE)).kernels
    bundle_of(kernel.spec).write(tmp_path / "bundle")
    assert main(["run", str(tmp_path / "bundle"), "--check"]) == 0


# ---- The algebra of index expressions -----------------------------------------------------------


def test_an_index_expression_that_is_taken_apart_keeps_its_value() -> None:
    """Random nested divisions of sums, at every point of their loops."""
    random = Random(0)
    taken_apart = 0
    for _ in range(300):
        extents = [random.choice([2, 3, 4, 6, 8]) for _ in range(3)]
        symbols = [sympy.Symbol(f"q{i}", integer=True, nonnegative=True) for i in range(3)]
        expr = _random_index(random, symbols, depth=3)
        reader = IndexReader({symbol: i for i, symbol in enumerate(symbols)}, extents)
        try:
            position = reader.position(expr)
        except UnevenIndexError:
            continue
        taken_apart += 1
        low, high = reader.bounds(expr)
        for point in itertools.product(*map(range, extents)):
            value = int(expr.subs(dict(zip(symbols, point, strict=True))))
            assert _at(position, point) == value, (expr, extents, point)
            assert low <= value <= high, (expr, extents, point)
    assert taken_apart > 100


def _random_index(random: Random, symbols: list[sympy.Symbol], depth: int) -> sympy.Expr:
    kind = random.choice(["symbol", "sum", "div", "mod"]) if depth else "symbol"
    if kind == "symbol":
        return random.choice(symbols) * random.choice([1, 1, 2, 4, 8, 16])
    inner = _random_index(random, symbols, depth - 1)
    divisor = random.choice([2, 4, 6, 8, 16])
    if kind == "sum":
        return inner + _random_index(random, symbols, depth - 1) + random.choice([0, 0, 0, 3, 8])
    if kind == "div":
        return FloorDiv(inner, divisor)
    return ModularIndexing(inner, random.choice([1, 2, 4]), divisor)


def _at(position: Position, point: tuple[int, ...]) -> int:
    total = position.offset
    for term in position.terms:
        digit = point[term.variable] // term.floordiv
        total += term.coefficient * (digit if term.modulo is None else digit % term.modulo)
    return total


def test_copies_between_layouts_do_not_cut_a_kernel_behind_a_fallback():
    """An inserted copy belongs to the kernel of the operation that it serves."""

    def f(x, y):
        return torch.sigmoid(x.sort(0).values.exp() + y.t()) * 2

    x, y = torch.randn(64, 128), torch.randn(128, 64)
    torch._dynamo.reset()
    runtime.reset()
    result = torch.compile(f)(x.to("spyre"), y.to("spyre"))
    torch.testing.assert_close(result.cpu(), f(x, y), rtol=1e-5, atol=1e-5)
    assert len(runtime.kernels()) == 1


def test_equal_constants_of_different_operations_stay_apart() -> None:
    """A conversion of a constant is not the constant, and exp(1) is not 1."""

    def model(x: torch.Tensor) -> torch.Tensor:
        one = torch.ones((), device=x.device)
        return x * one.exp() + x * one + x * torch.ones((), dtype=torch.int32, device=x.device)

    x = torch.randn(5, 70)
    expected = model(x)
    got = torch.compile(model, dynamic=False)(x.to("spyre")).cpu()
    torch.testing.assert_close(got, expected)


def test_a_copy_of_whole_sticks_is_not_chained_to_one_that_ends_inside() -> None:
    x = torch.randn(8, 64, dtype=torch.float16).to("spyre")
    model = torch.compile(lambda x: torch.cat([x, x[..., :3]], -1), dynamic=False)
    assert torch.equal(model(x).cpu(), torch.cat([x.cpu(), x.cpu()[..., :3]], -1))


def test_a_count_of_one_number_is_a_constant() -> None:
    def model(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(1, device=x.device) + start

    x, start = torch.randn(5, 70), torch.tensor(3)
    got = torch.compile(model, dynamic=False)(x.to("spyre"), start.to("spyre")).cpu()
    torch.testing.assert_close(got, model(x, start))


def test_rows_of_an_input_are_written_in_place() -> None:
    """A static cache: no copy of it is made, in the graph or by the operation."""

    def model(cache: torch.Tensor, place: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, place, row * 2)
        return cache[:, :, :2].sum()

    cache, row = torch.zeros(1, 8, 2048, 128).half(), torch.ones(1, 8, 1, 128).half()
    on_card, place = cache.to("spyre"), torch.tensor([700])
    torch.spyre.reset_peak_memory_stats()
    before = torch.spyre.memory_allocated()
    torch.compile(model)(on_card, place.to("spyre"), row.to("spyre"))
    assert torch.spyre.max_memory_allocated() - before < cache.nbytes // 4
    assert torch.equal(on_card.cpu(), cache.index_copy_(2, place, row * 2))


def test_gathered_rows_that_another_kernel_reads_are_kept_whole() -> None:
    """They are copied out of the scratchpads, all sticks of them."""

    def model(table: torch.Tensor, places: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(places, table)
        scaled = rows * rows.pow(2).mean(-1, keepdim=True).rsqrt() @ weight
        return rows + scaled.cumsum(0)

    assert_as_on_cpu(model, torch.randn(50, 128), torch.arange(12), torch.randn(128, 128) / 9)


def test_a_mask_of_the_least_float16_hides_a_whole_row_without_nans() -> None:
    """Inductor asks the card for the values of constants, and writes down what it hears."""

    def model(scores: torch.Tensor, is_seen: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros((), dtype=scores.dtype, device=scores.device)
        mask = torch.where(is_seen, zero, torch.finfo(scores.dtype).min)
        return (scores + mask).softmax(-1)

    scores, is_seen = torch.randn(3, 64).half(), torch.zeros(3, 64, dtype=torch.bool)
    is_seen[1] = True
    got = torch.compile(model)(scores.to("spyre"), is_seen.to("spyre")).cpu()
    assert (got.float() - model(scores.float(), is_seen)).abs().max() < 2**-8


def test_a_factor_of_a_matmul_may_be_a_constant() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ones = torch.ones(70, 8, device=x.device, dtype=x.dtype)
        return x @ ones, ones.t() @ x.t(), torch.ones_like(x) @ ones

    assert_as_on_cpu(model, torch.randn(5, 70))


def test_a_number_in_a_tensor_of_the_host_is_an_operand() -> None:
    """PyTorch lets operations of a device take CPU tensors without dimensions."""

    def model(x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * number + 1, torch.where(x > 0, x, number)

    x = torch.arange(-8, 8).half()
    for number in (torch.tensor(2.5), torch.tensor(0.5, dtype=torch.float64), torch.tensor(3)):
        torch._dynamo.reset()
        got = torch.compile(model, fullgraph=True)(x.to("spyre"), number)
        for result, expected in zip(got, model(x, number), strict=True):
            assert torch.equal(result.cpu(), expected)


def test_a_float_may_change_from_call_to_call() -> None:
    """From the second value on it is an input of the graph; `dynamic=True` makes it one at once."""

    def model(x: torch.Tensor, number: float) -> torch.Tensor:
        return (x * number + 1) / (number + 1.5)

    x = torch.arange(-8, 8).half()
    for is_dynamic in (None, True):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, dynamic=is_dynamic)
        for number in (2.5, 0.5, 6.5):
            assert torch.equal(compiled(x.to("spyre"), number).cpu(), model(x, number))
