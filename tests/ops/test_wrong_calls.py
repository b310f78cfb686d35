"""Calls that the CPU refuses are refused on the card, and the error names what was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

DEVICE = "spyre"

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.spyre.reset()


Wrapper = Callable[[Callable[..., object]], Callable[..., object]]


def _as_it_is(call: Callable[..., object]) -> Callable[..., object]:
    return call


ways = pytest.mark.parametrize("way", [_as_it_is, torch.compile], ids=["eager", "compiled"])


def _synchronised(call: Callable[[], object]) -> None:
    call()
    torch.spyre.synchronize()  # a fault of the card shows at the next wait


# ---- Indices ------------------------------------------------------------------------------------

ROW = torch.arange(3.0)
TABLE = torch.arange(6.0).view(3, 2)
NINE = torch.tensor([9.0])

Indexing = Callable[..., Tensor]  # of an index, ROW, TABLE and NINE

FROM_EITHER_END: dict[str, Indexing] = {
    "row[i]": lambda i, row, *_: row[i],
    "column[i]": lambda i, row, *_: row.view(3, 1)[i],
    "table[i]": lambda i, _row, table, *_: table[i],
    "table[i, 0]": lambda i, _row, table, *_: table[i, torch.zeros_like(i)],
    "numbers[i]": lambda i, *_: torch.arange(3, device=i.device)[i],
    "ones[i]": lambda i, *_: torch.ones(3, device=i.device)[i],
    "take": lambda i, row, *_: row.take(i),
    "index_put": lambda i, row, _table, nine: row.index_put((i,), nine),
    "index_put, added": lambda i, row, _table, nine: row.index_put((i,), nine, True),
    "index_put in two": lambda i, _row, table, nine: table.index_put((i, torch.ones_like(i)), nine),
    "index_fill": lambda i, row, *_: row.index_fill(0, i, 9.0),
    "put": lambda i, row, _table, nine: row.put(i, nine),
}
FROM_THE_FRONT: dict[str, Indexing] = {
    "gather": lambda i, row, *_: row.gather(0, i),
    "gather of a table": lambda i, _row, table, *_: table.gather(0, i.view(1, 1)),
    "gather of ones": lambda i, *_: torch.ones(3, device=i.device).gather(0, i),
    "index_select": lambda i, row, *_: row.index_select(0, i),
    "index_select of columns": lambda i, _row, table, *_: table.t().index_select(1, i),
    "embedding": lambda i, _row, table, *_: torch.nn.functional.embedding(i, table),
    "embedding of one column": lambda i, row, *_: torch.nn.functional.embedding(i, row.view(3, 1)),
    "scatter": lambda i, row, *_: row.scatter(0, i, 9.0),
    "scatter_add": lambda i, row, _table, nine: row.scatter_add(0, i, nine),
    "scatter_reduce": lambda i, row, _table, nine: row.scatter_reduce(0, i, nine, "amax"),
    "index_add": lambda i, row, _table, nine: row.index_add(0, i, nine),
    "index_add of a row": lambda i, _row, table, nine: table.index_add(0, i, nine.expand(1, 2)),
    "index_add_": lambda i, row, _table, nine: row.index_add_(0, i, nine),
    "index_copy": lambda i, row, _table, nine: row.index_copy(0, i, nine),
    "index_copy of a row": lambda i, _row, table, nine: table.index_copy(0, i, nine.expand(1, 2)),
    "index_copy_": lambda i, row, _table, nine: row.index_copy_(0, i, nine),
    "index_copy_ of a row": lambda i, _row, table, nine: table.index_copy_(0, i, nine.expand(1, 2)),
    "index_reduce": lambda i, row, _table, nine: row.index_reduce(0, i, nine, "prod"),
}
# Compiled, the place of one element per row is compared with, and one outside is nobody's.
COMPARED = frozenset(["scatter"])


def _indexed(call: Callable[..., object], index: int, device: str = DEVICE) -> Any:
    return call(*(x.to(device, copy=True) for x in (torch.tensor([index]), ROW, TABLE, NINE)))


@ways
@pytest.mark.parametrize("name", FROM_EITHER_END)
def test_an_index_counts_from_the_end_once(name: str, way: Wrapper) -> None:
    call = way(FROM_EITHER_END[name])
    for index in (-3, -1, 2):
        assert torch.equal(
            _indexed(call, index).cpu(), _indexed(FROM_EITHER_END[name], index, "cpu")
        )
    for index in (-4, -5, -6, 3):
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(lambda index=index: _indexed(call, index))
        torch.spyre.reset()


@ways
@pytest.mark.parametrize("name", FROM_THE_FRONT)
def test_where_the_cpu_does_not_count_from_the_end_the_card_does_not(
    name: str, way: Wrapper
) -> None:
    call = way(FROM_THE_FRONT[name])
    assert torch.equal(_indexed(call, 1).cpu(), _indexed(FROM_THE_FRONT[name], 1, "cpu"))
    for index in (-1, -3, -4, 3):
        if way is torch.compile and name in COMPARED:
            assert torch.equal(_indexed(call, index).cpu(), ROW), "nothing is written"
            continue
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(lambda index=index: _indexed(call, index))
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
        _synchronised(lambda: _indexed(FROM_EITHER_END[name], index))


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
    "mm of one column": lambda a, b: a[:, :1] @ b[:1],
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmm of another bias": lambda a, b: torch.addmm(a, b, b),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    "baddbmm of another bias": lambda a, b: torch.baddbmm(a[None], b[None], b[None]),
    "addbmm": lambda a, b: torch.addbmm(a, a[None], b[None]),
    "linear": torch.nn.functional.linear,
    "linear of a batch": lambda a, b: torch.nn.functional.linear(a[None], b),
    "linear with another bias": lambda a, b: torch.nn.functional.linear(a, a, b[0]),
}


DTYPES = [
    (torch.float32, torch.float16),
    (torch.float16, torch.float32),
    (torch.float16, torch.bfloat16),
    (torch.float32, torch.int64),
    (torch.int64, torch.float32),
]


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_two_dtypes_is_the_error_of_the_cpu(
    name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    tensors = (MATRIX.to(dtypes[0]), MATRIX.to(dtypes[1]))
    with pytest.raises(RuntimeError) as caught:
        PRODUCTS[name](*tensors)
    assert _error(PRODUCTS[name], tensors) == str(caught.value)


@pytest.mark.parametrize("dtypes", DTYPES[:2], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_compiled_product_of_two_dtypes_is_an_error(
    name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    tensors = (MATRIX.to(dtypes[0]), MATRIX.to(dtypes[1]))
    with pytest.raises(RuntimeError) as caught:
        PRODUCTS[name](*tensors)
    message = _error(torch.compile(PRODUCTS[name]), tensors)
    # Some are refused by PyTorch's form for all devices, which says it in its own way.
    assert message.startswith(str(caught.value)) or "when making fake tensor call" in message


AUTOCAST: dict[str, tuple[torch.dtype, Callable[..., Tensor]]] = {
    "linear": (torch.float16, lambda a, b: torch.nn.functional.linear(a, b, a[0])),
    "mm": (torch.float16, lambda a, b: a @ b),
    "attention": (
        torch.float16,
        lambda a, b: torch.nn.functional.scaled_dot_product_attention(
            *(x.view(1, 1, 3, 3) for x in (a, b, b))
        ),
    ),
    "rms_norm": (torch.float32, lambda a, b: torch.nn.functional.rms_norm(b, (3,), a[0])),
    "rms_norm of one dtype": (torch.float32, lambda _a, b: torch.nn.functional.rms_norm(b, (3,))),
}


@ways
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_makes_one_dtype_of_two(name: str, way: Wrapper) -> None:
    dtype, product = AUTOCAST[name]
    call = way(product)
    with torch.autocast(DEVICE, torch.float16):
        result: Any = call(MATRIX.to(DEVICE), MATRIX.half().to(DEVICE))
    assert result.dtype is dtype
    of_cpu = product(MATRIX, MATRIX.half().float())
    torch.testing.assert_close(result.cpu().float(), of_cpu, rtol=4e-3, atol=0)


WRITES: dict[str, Callable[..., Tensor]] = {
    "index_add": lambda a, b, i: a.index_add(0, i, b),
    "index_copy": lambda a, b, i: a.index_copy(0, i, b),
    "index_put": lambda a, b, i: a.index_put((i,), b),
    "put": lambda a, b, i: a.put(i, b[0]),
    "nll_loss": lambda a, b, i: torch.nn.functional.nll_loss(a, i, b[0]),
    "binary_cross_entropy": lambda a, b, _i: torch.nn.functional.binary_cross_entropy(a, b),
}


@ways
@pytest.mark.parametrize("dtypes", DTYPES[:2], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_what_takes_one_dtype_refuses_two_as_the_cpu_does(
    name: str, dtypes: tuple[torch.dtype, torch.dtype], way: Wrapper
) -> None:
    tensors = (MATRIX.to(dtypes[0]), MATRIX.to(dtypes[1]), torch.arange(3))
    with pytest.raises(RuntimeError) as caught:
        WRITES[name](*tensors)
    assert _error(way(WRITES[name]), tensors).startswith(str(caught.value))


@ways
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_norm_has_the_dtype_of_its_input_whatever_its_weight_has(norm: str, way: Wrapper) -> None:
    def call(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = getattr(torch.nn.functional, norm)(x, (3,), weight)
        return result

    x, weight = torch.tensor([[1.0, 2.0, 4.0]]).half(), torch.tensor([0.5, 2.0, 1.0])
    result: Any = way(call)(x.to(DEVICE), weight.to(DEVICE))
    torch.testing.assert_close(result.cpu(), call(x, weight), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("convolve", [torch.conv2d, torch.conv_transpose2d])
def test_a_convolution_of_two_dtypes_says_which(convolve: Callable[..., Tensor]) -> None:
    x, weight = torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3)
    message = _error(convolve, (x, weight.half()))
    assert "Input type (torch.float32) and weight type (torch.float16) should be" in message
    message = _error(convolve, (x.half(), weight))
    assert "Input type (torch.float16) and weight type (torch.float32) should be" in message


INTEGERS, TRUTHS = torch.arange(4), torch.arange(4) > 1
KINDS: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    "softmax": (INTEGERS, lambda x: torch.softmax(x, 0)),
    "log_softmax": (INTEGERS, lambda x: torch.log_softmax(x, 0)),
    "var": (INTEGERS, torch.var),
    "std": (INTEGERS, torch.std),
    "argmax": (TRUTHS, torch.argmax),
    "argmin": (TRUTHS, lambda x: x.argmin(0)),
    "mm": (TRUTHS, lambda x: x.view(2, 2) @ x.view(2, 2)),
}


@ways
@pytest.mark.parametrize("name", KINDS)
def test_integers_and_truths_are_refused_where_the_cpu_does(name: str, way: Wrapper) -> None:
    x, call = KINDS[name]
    with pytest.raises(RuntimeError) as caught:
        call(x)
    message = _error(way(call), (x,))
    assert message.startswith(str(caught.value)) or "when making fake tensor call" in message


@ways
def test_what_only_the_cpu_refuses_is_computed(way: Wrapper) -> None:
    # transformers counts the tokens of experts like this on every other device.
    counts: Any = way(lambda x: torch.histc(x, bins=4, min=0, max=3))(INTEGERS.int().to(DEVICE))
    assert counts.tolist() == [1, 1, 1, 1]


@ways
def test_an_output_padding_lies_within_a_stride(way: Wrapper) -> None:
    def call(x: Tensor, weight: Tensor) -> Tensor:
        return torch.conv_transpose1d(x, weight, stride=2, output_padding=2)

    message = _error(way(call), (torch.ones(1, 3, 4), torch.ones(3, 2, 3)))
    assert "output padding must be smaller than either stride or dilation" in message


# ---- Shapes -------------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_select by a matrix": lambda x, i: x.index_select(0, i.view(1, 2)),
    "index_select of no rows": lambda x, i: x[:0].index_select(0, i),
    "index_fill by a matrix": lambda x, i: x.index_fill(0, i.view(1, 2), 1.0),
    "index_fill with a row": lambda x, i: x.index_fill(0, i, x[0]),
}


@ways
@pytest.mark.parametrize("name", SHAPES)
def test_an_index_of_another_shape_is_the_error_of_the_cpu(name: str, way: Wrapper) -> None:
    tensors = (MATRIX, torch.arange(2))
    with pytest.raises((RuntimeError, IndexError)) as caught:
        SHAPES[name](*tensors)
    message = _error(way(SHAPES[name]), tensors)
    assert message.startswith(str(caught.value)) or "when making fake tensor call" in message


EMPTY: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "cross_entropy": lambda x: torch.nn.functional.cross_entropy(
        x, torch.zeros(0, dtype=torch.int64, device=x.device), reduction="sum"
    ),
    "index_select": lambda x: x.index_select(0, torch.zeros(0, dtype=torch.int64, device=x.device)),
}


@ways
@pytest.mark.parametrize("name", EMPTY)
def test_a_tensor_without_elements_is_no_error(name: str, way: Wrapper) -> None:
    x = torch.ones(0, 4)
    result: Any = way(EMPTY[name])(x.to(DEVICE))
    assert torch.equal(result.cpu(), EMPTY[name](x))


# ---- Targets ------------------------------------------------------------------------------------

LOGITS = torch.linspace(-2, 2, 21).view(3, 7)
WEIGHTS = torch.linspace(0.5, 2, 7)


def _loss(
    device: str, target: list[int], way: Wrapper = _as_it_is, **options: object
) -> tuple[Tensor, Tensor]:
    x = LOGITS.to(device, copy=True).requires_grad_()
    options = {key: v.to(device) if isinstance(v, Tensor) else v for key, v in options.items()}
    cross_entropy: Callable[..., Any] = way(
        lambda x, target: torch.nn.functional.cross_entropy(x, target, **options)  # type: ignore[arg-type]
    )
    loss = cross_entropy(x, torch.tensor(target).to(device))
    loss.sum().backward()
    assert x.grad is not None
    return loss.detach().cpu(), x.grad.cpu()


OPTIONS: list[dict[str, object]] = [
    {},
    {"weight": WEIGHTS},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
]


@ways
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_target_outside_of_the_classes_is_a_fault(
    options: dict[str, object], way: Wrapper
) -> None:
    for wrong, named in ((7, "index 7"), (-1, "an index"), (-7, "an index"), (-8, "an index")):
        with pytest.raises(IndexError, match=f"^{named} is out of range"):
            _loss(DEVICE, [0, wrong, 6], way, **options)
        torch.spyre.reset()


@ways
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_of_few_classes_a_target_is_one(classes: int, way: Wrapper) -> None:
    loss: Callable[..., Any] = way(torch.nn.functional.nll_loss)
    logits = LOGITS[:, :classes].contiguous()
    target = torch.tensor([0, classes - 1, 0])
    torch.testing.assert_close(
        loss(logits.to(DEVICE), target.to(DEVICE)).cpu(),
        torch.nn.functional.nll_loss(logits, target),
    )
    for wrong in (classes, -1):
        with pytest.raises(IndexError, match="is out of range"):
            _synchronised(
                lambda wrong=wrong: loss(
                    logits.to(DEVICE), torch.tensor([0, wrong, 0], device=DEVICE)
                )
            )
        torch.spyre.reset()


@ways
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("ignored", [-100, -1, 7, 3])
def test_a_target_that_is_ignored_may_lie_anywhere(
    options: dict[str, object], ignored: int, way: Wrapper
) -> None:
    options = {**options, "ignore_index": ignored}
    for own, of_cpu in zip(
        _loss(DEVICE, [0, ignored, 6], way, **options),
        _loss("cpu", [0, ignored, 6], **options),
        strict=True,
    ):
        torch.testing.assert_close(own, of_cpu)
