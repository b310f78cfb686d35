"""Calls that the CPU refuses are refused on the card, and the error names what was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

DEVICE = "spyre"

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    torch.spyre.reset()


def _synchronised(call: Callable[[], object]) -> None:
    call()
    torch.spyre.synchronize()  # a fault of the card shows at the next wait


# ---- Indices ------------------------------------------------------------------------------------

ROW = torch.arange(3.0)
TABLE = torch.arange(6.0).view(3, 2)
NINE = torch.tensor([9.0])

# Each takes the index as it is written, on any device.
FROM_EITHER_END: dict[str, Callable[[Tensor], Tensor]] = {
    "row[i]": lambda i: ROW.to(i.device)[i],
    "column[i]": lambda i: ROW.view(3, 1).to(i.device)[i],
    "table[i]": lambda i: TABLE.to(i.device)[i],
    "table[i, 0]": lambda i: TABLE.to(i.device)[i, torch.zeros_like(i)],
    "take": lambda i: ROW.to(i.device).take(i),
    "index_put": lambda i: ROW.to(i.device).index_put((i,), NINE.to(i.device)),
    "index_put in two": lambda i: TABLE.to(i.device).index_put(
        (i, torch.ones_like(i)), NINE.to(i.device)
    ),
    "index_fill": lambda i: ROW.to(i.device).index_fill(0, i, 9.0),
    "put": lambda i: ROW.to(i.device).put(i, NINE.to(i.device)),
}
FROM_THE_FRONT: dict[str, Callable[[Tensor], Tensor]] = {
    "gather": lambda i: ROW.to(i.device).gather(0, i),
    "gather of a table": lambda i: TABLE.to(i.device).gather(0, i.view(1, 1)),
    "index_select": lambda i: ROW.to(i.device).index_select(0, i),
    "embedding": lambda i: torch.nn.functional.embedding(i, TABLE.to(i.device)),
    "embedding of one column": lambda i: torch.nn.functional.embedding(
        i, ROW.view(3, 1).to(i.device)
    ),
    "scatter": lambda i: ROW.to(i.device).scatter(0, i, 9.0),
}


@pytest.mark.parametrize("name", FROM_EITHER_END)
def test_an_index_counts_from_the_end_once(name: str) -> None:
    call = FROM_EITHER_END[name]
    for index in (-3, -1, 2):
        i = torch.tensor([index])
        assert torch.equal(call(i.to(DEVICE)).cpu(), call(i))
    for index in (-4, -5, -6, 3):
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(lambda index=index: call(torch.tensor([index], device=DEVICE)))
        torch.spyre.reset()


@pytest.mark.parametrize("name", FROM_THE_FRONT)
def test_where_the_cpu_does_not_count_from_the_end_the_card_does_not(name: str) -> None:
    call = FROM_THE_FRONT[name]
    for index in (-1, -3, -4, 3):
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(lambda index=index: call(torch.tensor([index], device=DEVICE)))
        torch.spyre.reset()


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        ("row[i]", 5, "^index 5 is out of range for a table of 3 rows"),
        ("table[i]", 5, "^index 5 is out of range for a table of 3 rows"),
        ("take", 5, "^index 5 is out of range for a table of 3 rows"),
        ("row[i]", -4, "^an index is out of range for a table of 3 rows"),
        ("table[i, 0]", 5, "^an index is out of range for a table of 6 rows"),
    ],
)
def test_the_fault_names_no_index_that_was_not_given(name: str, index: int, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        _synchronised(lambda: FROM_EITHER_END[name](torch.tensor([index], device=DEVICE)))


# ---- Attention ----------------------------------------------------------------------------------


def _zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(size, dtype=dtype)


def _error(call: Callable[..., object], tensors: tuple[Tensor, ...]) -> str:
    """What the card says; nothing of it has gone to the CPU and come back."""
    torch.spyre.reset_fallback_stats()
    with pytest.raises((RuntimeError, IndexError)) as caught:
        call(*(x.to(DEVICE) for x in tensors))
    assert not torch.spyre.fallback_stats()
    return str(caught.value)


HEADS = _zeros(2, 3, 4, 64)
ATTENTION = {
    "wider keys": (HEADS, _zeros(2, 3, 5, 80), _zeros(2, 3, 5, 64)),
    "narrower keys": (HEADS, _zeros(2, 3, 5, 48), _zeros(2, 3, 5, 64)),
    "fewer heads": (HEADS, _zeros(2, 2, 4, 64), _zeros(2, 2, 4, 64)),
    "another batch": (HEADS, _zeros(3, 3, 4, 64), _zeros(3, 3, 4, 64)),
    "another batch of values": (HEADS, HEADS, _zeros(3, 3, 4, 64)),
    "a mask of more keys": (HEADS, HEADS, HEADS, _zeros(4, 5)),
    "a mask of more queries": (HEADS, HEADS, HEADS, _zeros(5, 4)),
    "a mask of fewer keys": (HEADS, HEADS, HEADS, _zeros(4, 3)),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_shapes_that_do_not_fit_is_the_error_of_the_cpu(name: str) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    with pytest.raises(RuntimeError) as caught:
        attend(*ATTENTION[name])
    assert _error(attend, ATTENTION[name]).strip() == str(caught.value).strip()


@pytest.mark.parametrize("length", [1, 4, 6])
def test_attention_has_a_value_for_each_key(length: int) -> None:
    # The CPU's own kernel takes no notice: it reads what lies beside the values.
    tensors = (HEADS, _zeros(2, 3, 5, 64), _zeros(2, 3, length, 64))
    message = _error(torch.nn.functional.scaled_dot_product_attention, tensors)
    assert f"batch2 tensor to be: [6, 5] but got: [6, {length}]" in message


# ---- Dtypes -------------------------------------------------------------------------------------

MATRIX = torch.ones(3, 3)
PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "mm": torch.mm,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "mv": lambda a, b: a @ b[0],
    "vm": lambda a, b: a[0] @ b,
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmm of another bias": lambda a, b: torch.addmm(a, b, b),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    "baddbmm of another bias": lambda a, b: torch.baddbmm(a[None], b[None], b[None]),
    "linear": torch.nn.functional.linear,
    "linear with another bias": lambda a, b: torch.nn.functional.linear(a, a, b[0]),
}


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float16),
        (torch.float16, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.int64),
        (torch.int64, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_two_dtypes_is_the_error_of_the_cpu(
    name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    tensors = (MATRIX.to(dtypes[0]), MATRIX.to(dtypes[1]))
    with pytest.raises(RuntimeError) as caught:
        PRODUCTS[name](*tensors)
    assert _error(PRODUCTS[name], tensors) == str(caught.value)


@pytest.mark.parametrize("convolve", [torch.conv2d, torch.conv_transpose2d])
def test_a_convolution_of_two_dtypes_says_which(convolve: Callable[..., Tensor]) -> None:
    x, weight = torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3)
    message = _error(convolve, (x, weight.half()))
    assert "Input type (torch.float32) and weight type (torch.float16) should be" in message
    message = _error(convolve, (x.half(), weight))
    assert "Input type (torch.float16) and weight type (torch.float32) should be" in message


# ---- Targets ------------------------------------------------------------------------------------

LOGITS = torch.linspace(-2, 2, 21).view(3, 7)
WEIGHTS = torch.linspace(0.5, 2, 7)


def _loss(device: str, target: list[int], **options: object) -> tuple[Tensor, Tensor]:
    x = LOGITS.to(device, copy=True).requires_grad_()
    options = {key: v.to(device) if isinstance(v, Tensor) else v for key, v in options.items()}
    loss = torch.nn.functional.cross_entropy(
        x,
        torch.tensor(target).to(device),
        **options,  # type: ignore[arg-type]
    )
    loss.sum().backward()
    assert x.grad is not None
    return loss.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHTS}, {"reduction": "none"}], ids=str)
def test_a_target_outside_of_the_classes_is_a_fault(options: dict[str, object]) -> None:
    for wrong, named in ((7, "index 7"), (-1, "an index"), (-7, "an index")):
        with pytest.raises(IndexError, match=f"^{named} is out of range for a table of 7 rows"):
            _loss(DEVICE, [0, wrong, 6], **options)
        torch.spyre.reset()


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHTS}, {"reduction": "none"}], ids=str)
@pytest.mark.parametrize("ignored", [-100, -1, 7, 3])
def test_a_target_that_is_ignored_may_lie_anywhere(
    options: dict[str, object], ignored: int
) -> None:
    options = {**options, "ignore_index": ignored}
    for own, of_cpu in zip(
        _loss(DEVICE, [0, ignored, 6], **options),
        _loss("cpu", [0, ignored, 6], **options),
        strict=True,
    ):
        torch.testing.assert_close(own, of_cpu)
