"""The CPU fallback as a product: right for every kind of argument, never silent, and refusable."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch

from torch_spyre.ops.fallbacks import FallbackWarning

DEVICE = "spyre"

pytestmark = pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")


@pytest.fixture(scope="module")
def library() -> Iterator[torch.library.Library]:
    """Operations that only the CPU has, one for each kind of argument, whatever the card learns."""
    made = torch.library.Library("fallback_test", "DEF")

    def define(schema: str, function: object) -> None:
        made.define(schema)
        made.impl(schema.split("(")[0], function, "CPU")

    def write(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return out.resize_(value.shape).copy_(value)

    define("double(Tensor x) -> Tensor", lambda x: x * 2)
    define("double_(Tensor(a!) x) -> Tensor(a!)", lambda x: x.mul_(2))
    define("into(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", lambda x, *, out: write(out, x * 2))
    define("add_all_(Tensor(a!)[] xs) -> ()", lambda xs: [x.add_(1) for x in xs] and None)
    define("total(Tensor[] xs) -> Tensor", lambda xs: sum(xs))
    define("maybe(Tensor x, Tensor? y=None) -> Tensor", lambda x, y=None: x if y is None else x + y)
    define("picked(Tensor?[] xs) -> int", lambda xs: sum(x is not None for x in xs))
    define("halves(Tensor x) -> Tensor[]", lambda x: [part.clone() for part in x.chunk(2)])
    define("first_row(Tensor(a) x) -> Tensor(a)", lambda x: x[0])
    define("as_complex(Tensor(a) x) -> Tensor(a)", torch.view_as_complex)
    define("as_float64(Tensor x) -> Tensor", lambda x: x.double())
    with contextlib.ExitStack() as stack:
        stack.callback(made._destroy)
        yield made


@pytest.fixture
def ops(library: torch.library.Library) -> object:
    """The operations, by name."""
    return torch.ops.fallback_test


@pytest.fixture
def x() -> torch.Tensor:
    """Something on the card."""
    return torch.arange(6.0, device=DEVICE).view(2, 3)


def test_a_result_comes_back_to_the_card(ops, x) -> None:
    result = ops.double(x)
    assert result.device == x.device and torch.equal(result.cpu(), x.cpu() * 2)


def test_in_place_operations_write_their_argument_also_through_a_view(ops, x) -> None:
    result = ops.double_(x.t()[1:])
    assert result.data_ptr() == x.t()[1:].data_ptr()
    assert x.tolist() == [[0, 2, 4], [3, 8, 10]]


@pytest.mark.parametrize("shape", [(2, 3), (0,), (7, 7)])
def test_out_is_written_and_resized_if_need_be(ops, x, shape) -> None:
    out = torch.ones(shape, device=DEVICE)
    result = ops.into(x, out=out)
    assert result is out or result.data_ptr() == out.data_ptr()
    assert torch.equal(out.cpu(), x.cpu() * 2)


def test_out_that_is_a_view_keeps_its_strides(ops, x) -> None:
    base = torch.zeros(3, 2, device=DEVICE)
    ops.into(x, out=base.t())
    assert torch.equal(base.t().cpu(), x.cpu() * 2)


def test_out_that_holds_an_element_twice_is_refused(ops, x) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.into(x, out=torch.zeros(3, device=DEVICE).expand(2, 3))


def test_lists_are_read_and_written(ops, x) -> None:
    xs = [x.clone(), x.clone()[:, 1:], torch.zeros(0, device=DEVICE)]
    ops.add_all_(xs)
    assert xs[0].tolist() == [[1, 2, 3], [4, 5, 6]] and xs[1].tolist() == [[2, 3], [5, 6]]
    assert torch.equal(ops.total([x, x, x]).cpu(), x.cpu() * 3)
    assert [part.device.type for part in ops.halves(x)] == [DEVICE, DEVICE]


def test_optional_tensors_may_be_there_or_not(ops, x) -> None:
    assert torch.equal(ops.maybe(x).cpu(), x.cpu())
    assert torch.equal(ops.maybe(x, x).cpu(), x.cpu() * 2)
    assert ops.picked([x, None, x]) == 2


def test_an_operation_that_returns_a_view_is_refused_not_copied(ops, x) -> None:
    with pytest.raises(RuntimeError, match=r"first_row returns a view .*x\.cpu\(\)"):
        ops.first_row(x)


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x: torch.ops.fallback_test.as_float64(x), "float64"),
        (lambda x: torch.ops.fallback_test.as_complex(x[:, :2]), "complex64"),
        (lambda x: torch.view_as_complex(x[:, :2].contiguous()), "complex64"),
        (lambda x: torch.complex(x, x), "complex64"),
        (lambda x: torch.polar(x, x), "complex64"),
        (lambda x: x.to(torch.float64), "float64"),
        (lambda x: x.view(torch.complex64), "complex64"),
        (lambda x: x[:, :2].contiguous().view(torch.float64), "float64"),
        (lambda x: x.sum(dtype=torch.float64), "float64"),
        (lambda x: torch.fft.fft(x), "complex64"),
        (lambda x: torch.mul(x, 1j), "complex"),
        (lambda x: x.masked_fill(x > 0, 1j), "complex"),
        (lambda x: torch.linalg.eigvals(x[:, :2]), "complex64"),
        (lambda x: x.to(torch.uint16), "uint16"),
        (lambda x: torch.stft(x.view(-1), 4, return_complex=True), "complex64"),
    ],
)
def test_results_of_a_dtype_that_the_card_lacks_are_type_errors(library, x, call, dtype) -> None:
    with pytest.raises(TypeError, match=f"torch.{dtype}"):
        call(x)


def test_real_composites_with_complex_parts_run_and_have_gradients() -> None:
    def gradient(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(0, 1, 24).view(4, 6).to(device).requires_grad_()
        y = torch.fft.irfft(x) * torch.linspace(1, 2, 10).to(device)
        y = y.sum() + torch.linalg.pinv(x).square().sum()
        y.backward()
        return y.detach().cpu(), x.grad.cpu()

    for card, host in zip(gradient(DEVICE), gradient("cpu"), strict=True):
        torch.testing.assert_close(card, host)
    rank = torch.linalg.matrix_rank(torch.eye(3, device=DEVICE))
    assert rank.device.type == DEVICE and rank.item() == 3


def test_composites_that_run_as_a_whole_write_out() -> None:
    x, out = torch.ones(4, 6, device=DEVICE), torch.empty(0, device=DEVICE)
    assert torch.fft.irfft(x, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.fft.irfft(x.cpu()))


def test_the_warning_says_what_to_do(ops, x) -> None:
    torch.spyre.reset_fallback_stats()
    with pytest.warns(FallbackWarning, match=r"double.*torch\.compile.*TORCH_SPYRE_FALLBACK=error"):
        ops.double(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        ops.double(x)
    assert torch.spyre.fallback_stats()["fallback_test::double"] == 2


_INVERSE = """
    import torch, warnings
    warnings.simplefilter("error")
    try:
        {call}
    except Exception as error:
        print(type(error).__name__, error)
    print(torch.spyre.fallback_stats())
    """
_CALL = "torch.linalg.inv(torch.eye(3).to('spyre'))"


def test_error_mode_names_the_operation_the_shapes_and_the_way_out(check_python) -> None:
    done = check_python(_INVERSE.format(call=_CALL), TORCH_SPYRE_FALLBACK="error")
    for part in (
        "RuntimeError aten::linalg_inv_ex",
        "A: float32[3, 3] on spyre:0",
        "x.cpu()",
        "{}",
    ):
        assert part in done.stdout


def test_quiet_mode_counts_and_says_nothing(check_python) -> None:
    done = check_python(_INVERSE.format(call=_CALL), TORCH_SPYRE_FALLBACK="quiet")
    assert done.stdout.startswith("{") and "'aten::linalg_inv_ex.inverse': 1" in done.stdout


def test_warn_mode_is_the_default(check_python) -> None:
    said = [
        check_python(_INVERSE.format(call=_CALL), **environment).stdout
        for environment in ({}, {"TORCH_SPYRE_FALLBACK": "warn"})
    ]
    assert said[0] == said[1] and said[0].startswith("FallbackWarning")


def test_another_mode_is_refused(check_python) -> None:
    done = check_python(_INVERSE.format(call=_CALL), TORCH_SPYRE_FALLBACK="maybe")
    assert "ValueError environment variable TORCH_SPYRE_FALLBACK='maybe'" in done.stdout


MISTAKES = {
    "mm": lambda x: x @ x,
    "bmm": lambda x: x[None] @ x[None],
    "addmm": lambda x: torch.addmm(x, x, x),
    "cat": lambda x: torch.cat([x, x.t()]),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "softmax": lambda x: x.softmax(5),
    "embedding": torch.nn.functional.embedding,
    "linalg.inv": torch.linalg.inv,
    "irfft": lambda x: torch.fft.irfft(x, dim=7),
}


@pytest.mark.filterwarnings("error::torch_spyre.ops.fallbacks.FallbackWarning")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_call_is_its_own_error_and_no_fallback(name: str) -> None:
    x = torch.ones(2, 3)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as caught:
        MISTAKES[name](*([x, x] if name == "embedding" else [x]))
    x = x.to(DEVICE)
    torch.spyre.reset_fallback_stats()
    with pytest.raises(caught.type) as on_card:
        MISTAKES[name](*([x, x] if name == "embedding" else [x]))
    assert str(on_card.value).replace("spyre", "cpu") == str(caught.value)
    assert not torch.spyre.fallback_stats()


_SQUARE = "torch.linalg.inv(torch.ones(2, 3).to('spyre'))"


def test_in_error_mode_a_wrong_call_is_its_own_error_too(check_python) -> None:
    done = check_python(_INVERSE.format(call=_SQUARE), TORCH_SPYRE_FALLBACK="error")
    assert "RuntimeError linalg.inv: A must be batches of square matrices" in done.stdout


def test_a_call_that_error_mode_refuses_has_written_nothing(check_python) -> None:
    in_place = """
    import torch
    x = torch.ones(2, 2, device="spyre")
    try:
        torch.linalg.inv(x + torch.eye(2, device="spyre"), out=x)
    except RuntimeError as error:
        print(error)
    print(x.tolist())
    """
    done = check_python(in_place, TORCH_SPYRE_FALLBACK="error")
    assert "forbids to run it" in done.stdout and "[[1.0, 1.0], [1.0, 1.0]]" in done.stdout
