"""What a compiled function does as a whole: outputs, mutation, aliasing, recompiles, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from bundle_checks import misfit
from compiled import DEVICE, Recording, on_host, run_compiled
from steps import check_launch, same
from torch.nn import functional as F  # noqa: N812

from torch_spyre._inductor.errors import Unsupported
from torch_spyre.ir import superdsc


@pytest.fixture(autouse=True)
def _setup() -> Iterator[None]:
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def halves(*size: int) -> torch.Tensor:
    """Quarters from -2 to 2: sums and products of them are exact."""
    return (torch.randint(-8, 9, size) / 4).half()


def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True)


def on_both(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, Any]:
    """Results compiled on the card and eager on the CPU."""
    card = compile_(function)(*(arg.to(DEVICE) for arg in args))
    return on_host(card), function(*(arg.clone() for arg in args))


def assert_equal(card: Any, host: Any) -> None:
    card, host = (x if isinstance(x, tuple) else (x,) for x in (card, host))
    assert len(card) == len(host)
    for a, b in zip(card, host, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert same(a, b)


# ---- Outputs ------------------------------------------------------------------------------------


GRAPHS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "several outputs": (lambda x, y: (x + y, x - y, (x + y) * 2), (halves(5, 70), halves(5, 70))),
    "an input returned": (lambda x: (x, x + 1), (halves(5, 70),)),
    "an input returned twice": (lambda x: (x, x + 1, x), (halves(5, 70),)),
    "a view of an input returned": (lambda x: (x.t(), x + 1), (halves(5, 70),)),
    "one result returned twice": (lambda x: (y := x + 1, y), (halves(5, 70),)),
    "a view of a result returned": (lambda x: (y := x + 1, y.t(), y[1:3]), (halves(5, 70),)),
    "a 0-dim tensor": (lambda x: x * 2 + 1, (halves(),)),
    "a 0-dim tensor and a matrix": (lambda x, s: x * s, (halves(5, 70), halves())),
    "python numbers": (lambda x: (x * 2 + 0.5, 3 - x, x / 4), (halves(5, 70),)),
    "mixed floats": (lambda x, y: x + y, (halves(5, 70), halves(5, 70).float())),
    "floats and integers": (lambda x, i: x + i, (halves(5, 70), torch.randint(-9, 9, (5, 70)))),
    "truths and numbers": (lambda x, b: x * b, (halves(5, 70), halves(5, 70) > 0)),
    "an empty tensor": (lambda x: (x + 1, x.sum(0), x.t()), (halves(0, 7),)),
    "an empty product": (lambda x, y: x @ y, (halves(4, 0), halves(0, 7))),
    "an empty part": (lambda x: torch.cat([x, x[:0]]) + 1, (halves(4, 7),)),
    "one element": (lambda x: x.sum() + x, (halves(1, 1),)),
    "no tensor of a kernel": (lambda x: x.t().reshape(-1)[3:9], (halves(5, 7),)),
    "a constant": (lambda x: torch.full((3, 40), 2.0, device=x.device), (halves(1),)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_returns_what_it_returns_uncompiled(name: str) -> None:
    function, args = GRAPHS[name]
    assert_equal(*on_both(function, *args))


def test_outputs_that_were_inputs_are_the_same_tensors() -> None:
    x = halves(5, 70).to(DEVICE)
    same_x, other = compile_(lambda x: (x, x + 1))(x)
    assert same_x is x
    assert other.data_ptr() != x.data_ptr()


# ---- Mutation -----------------------------------------------------------------------------------


def _add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


def _write_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:3, 2:9] = y[:2, :7] * 2
    return x + 1


def _write_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = x + 0
    x.mul_(2)
    x.sub_(y)
    return before


def _write_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.t().copy_(y.t() + 1)
    return x.sum(0)


@pytest.mark.parametrize(
    "function", [_add_in_place, _write_a_part, _write_twice, _write_through_a_view]
)
def test_inputs_are_mutated_as_uncompiled(function: Callable[..., Any]) -> None:
    x, y = halves(5, 70), halves(5, 70)
    card = [x.to(DEVICE), y.to(DEVICE)]
    result = compile_(function)(*card)
    assert_equal(on_host(result), function(x, y))
    assert_equal(on_host(tuple(card)), (x, y))


def test_an_input_that_is_another_one_too_is_mutated_once() -> None:
    x = halves(5, 70)
    card = x.to(DEVICE)
    compiled = compile_(lambda a, b: (a.add_(1), b * 2)[1])
    assert_equal(compiled(card, card).cpu(), (x + 1) * 2)
    assert_equal(card.cpu(), x + 1)


def test_views_of_one_input_see_the_mutation() -> None:
    x = halves(6, 70)
    card = x.to(DEVICE)
    function = lambda a, b: (a.mul_(2), b + 1)[1]  # noqa: E731
    actual = compile_(function)(card[:4], card[2:])
    expected = function(x[:4], x[2:])
    assert_equal(actual.cpu(), expected)
    assert_equal(card.cpu(), x)


# ---- Recompiles ---------------------------------------------------------------------------------


def _counting(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[[], int]]:
    """The compiled function, and how many graphs have been compiled for it."""
    counter = torch._dynamo.utils.counters
    counter.clear()
    return compile_(function), lambda: counter["stats"]["unique_graphs"]


def test_where_a_view_starts_is_no_reason_to_compile_again() -> None:
    base = halves(40, 100)
    card = base.to(DEVICE)
    compiled, count = _counting(lambda x: x * 2 + 1)
    for i in range(12):
        view = (slice(i, i + 8), slice(3 + i, 23 + i))
        assert_equal(compiled(card[view]).cpu(), base[view] * 2 + 1)
    assert count() == 1


def test_another_device_layout_compiles_again_once() -> None:
    from torch_spyre import _C

    x = halves(5, 70)
    compiled, count = _counting(lambda x: x + 1)
    assert_equal(compiled(x.to(DEVICE)).cpu(), x + 1)
    layout = _C.SpyreTensorLayout([5, 70], [70, 1], torch.float16, [1, 0])
    other = _C.empty_with_layout([5, 70], torch.float16, 0, layout)
    other.copy_(x)
    for _ in range(3):
        assert_equal(compiled(other).cpu(), x + 1)
        assert_equal(compiled(x.to(DEVICE)).cpu(), x + 1)
    assert count() == 2


# ---- The artifact -------------------------------------------------------------------------------


def _block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.rms_norm(x, x.shape[-1:]) @ w
    return (F.silu(h) * h).softmax(-1).sum(0)


def _record_block() -> Recording:
    args = [halves(12, 70), halves(70, 90)]
    return run_compiled(_block, args).recording


def test_the_schema_refuses_what_it_does_not_describe() -> None:
    """`check_launch` validates the files of every kernel of these tests; here it fails."""
    (bundle, *_) = _record_block().bundles
    document = json.loads(superdsc.to_json(bundle.sdscs[0]))
    schema = json.loads(superdsc.SCHEMA_FILE.read_bytes())
    assert misfit(document, schema, "file") is None
    (name,) = document
    wrong = {name: {**document[name], "unheard_of": 1}}
    assert misfit(wrong, schema, "file") == f"file.{name}: unheard_of is not in the schema"
    assert "is no object" in (misfit({name: 3}, schema, "file") or "")


def test_the_same_graph_gives_the_same_bytes() -> None:
    one, other = _record_block(), _record_block()
    assert [b.pack() for b in one.bundles] == [b.pack() for b in other.bundles]


def test_steps_of_a_block_are_those_of_the_model() -> None:
    for launch in _record_block().launches:
        check_launch(launch)


def test_a_wrong_launch_is_noticed() -> None:
    """The checks of these tests can fail: results moved by one element are found."""
    from dataclasses import replace

    (launch,) = run_compiled(lambda x: x + 1, [torch.randn(5, 70).half()]).launches
    check_launch(launch)
    moved = tuple(values.flatten().roll(1).reshape(values.shape) for values in launch.after)
    with pytest.raises(AssertionError, match="the launch gave other values than its program"):
        check_launch(replace(launch, after=moved))


def test_any_number_of_threads_gives_the_same_bits(check_python) -> None:
    script = """
        import hashlib, torch, torch.nn.functional as F
        torch.manual_seed(0)
        x, w = torch.randn(60, 200).half().to("spyre"), torch.randn(200, 90).half().to("spyre")
        block = torch.compile(lambda x, w: (F.gelu(x @ w).softmax(-1), x.sum(0)), dynamic=False)
        for result in block(x, w):
            print(hashlib.sha256(result.cpu().numpy().tobytes()).hexdigest())
    """
    said = {check_python(script, SPYRE_CARD_THREADS=str(n)).stdout for n in (1, 2, 5)}
    assert len(said) == 1


# ---- Both spellings, and other devices ----------------------------------------------------------


def test_the_named_backend_is_the_default_one(check_python) -> None:
    check_python(
        """
        import torch
        x = torch.randn(5, 70).half().to("spyre")
        for settings in ({}, {"backend": "spyre"}):
            y = torch.compile(lambda x: x.exp() + 1, **settings)(x)
            assert torch.equal(y.cpu(), (x.exp() + 1).cpu())
        """
    )


CPU_CODE = """
    import re, torch
    from torch.nn import functional as F  # noqa: N812
    from torch._inductor.utils import run_and_get_code

    def model(x):
        return F.gelu(x).softmax(-1), torch.cat([x, F.silu(x)], 1)

    def code():
        torch._dynamo.reset()
        _, found = run_and_get_code(torch.compile(model), torch.randn(9, 70))
        return re.sub(r"/tmp/\\S+|AOT ID: .*", "", "".join(found))  # names of files, a counter
"""


def test_cpu_code_is_the_same_before_after_and_without_spyre(check_python, tmp_path) -> None:
    """Without the caches of graphs, so that code is generated; that of C++ kernels is shared."""
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    }
    without = check_python(
        CPU_CODE + "\n    print(code())", TORCH_DEVICE_BACKEND_AUTOLOAD="0", **settings
    ).stdout
    beside = check_python(
        CPU_CODE
        + """
    before = code()
    torch.compile(model)(torch.randn(9, 70).to("spyre"))
    after = code()
    try:
        torch.compile(torch.argmax, fullgraph=True)(torch.randn(9, 70).to("spyre"))
    except RuntimeError:
        pass
    assert before == after == code()
    print(before)
    """,
        **settings,
    ).stdout
    assert "softmax" in without or "cpp_fused" in without
    assert without == beside


def test_an_operation_on_the_host_takes_what_a_kernel_computed() -> None:
    """cumsum is no loop of the card: it stays a call, between two kernels."""
    x = halves(5, 70)
    assert_equal(*on_both(lambda x: torch.cumsum(x + 1, 0) * 2, x))


# ---- Errors -------------------------------------------------------------------------------------


def _unsupported(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).view(torch.int16) * 2


def test_what_has_no_form_on_the_card_is_named_with_place_reason_and_way_out() -> None:
    x = halves(5, 70).to(DEVICE)
    with pytest.raises(Unsupported) as caught:
        compile_(_unsupported)(x)
    text = str(caught.value)
    assert "bitcast" in text
    assert "[5, 70]" in text
    assert "test_compiled_graphs.py" in text
    assert "(x + 1).view(torch.int16) * 2" in text
    assert "\n  why " in text
    assert "\n  try " in text


def test_after_an_error_the_next_graph_compiles() -> None:
    x = halves(5, 70)
    for _ in range(2):
        with pytest.raises(Exception, match="bitcast"):
            compile_(_unsupported)(x.to(DEVICE))
        assert_equal(*on_both(lambda x: x * 2, x))


def test_two_towers_of_equal_layers_are_launched_in_their_order() -> None:
    """The tower that comes first in the graph is wanted last, so it is computed last. A kernel with
    the end of one and the beginning of the other must not wait for Inductor's order."""
    torch.manual_seed(0)
    weights = [torch.randn(2, 128, 128).half() / 11 for _ in range(4)]

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.layer_norm(x, x.shape[-1:])
        return x + torch.nn.functional.gelu(inner @ w[0]) @ w[1]

    def towers(x: torch.Tensor, y: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            y = layer(y, w)
        return layer(x, weights[0]) @ y.t()

    x, y = torch.randn(64, 128).half(), torch.randn(32, 128).half()
    run = run_compiled(towers, [x, y, *weights])
    assert len(run.launches) > 2
    exact = towers(*(t.float() for t in (x, y, *weights)))
    assert (run.results[0].float() - exact).abs().max() < 2**-6 * exact.abs().max()
