"""Copies in every direction: dtypes, strides, views, conversions."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from tests.runtime import sen169

EXACT = [
    torch.float32,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
SHAPES = [(), (0,), (1,), (63,), (64,), (65,), (3, 0, 2), (1, 1), (5, 200), (512, 1), (2, 3, 130)]
SHAPES += [(2, 3, 1, 5, 2, 33), (1, 4, 128)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))


def random_bits(shape, dtype) -> torch.Tensor:
    """All bit patterns, but those of a NaN in float32, whose payload nobody promises."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    numel = int(np.prod(shape))
    width = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 256, (numel * width,), dtype=torch.uint8).view(dtype).reshape(shape)
    return bits.nan_to_num() if dtype == torch.float32 else bits


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_is_exact(dtype, shape):
    x = random_bits(shape, dtype)
    y = x.to("spyre")
    assert y.shape == x.shape and y.dtype == dtype and y.stride() == x.stride()
    assert same_bits(y.cpu(), x)


def test_int64_round_trip_is_exact_within_32_bits():
    x = torch.tensor([0, -1, 2**31 - 1, -(2**31), 12345])
    assert torch.equal(x.to("spyre").cpu(), x)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_int64_outside_32_bits_is_an_overflow_error(value):
    x = torch.zeros(200, dtype=torch.int64)
    x[150] = value
    with pytest.raises(OverflowError, match="32 bits"):
        x.to("spyre")
    assert torch.equal(torch.arange(5).to("spyre").cpu(), torch.arange(5))  # not sticky


def test_an_overflow_in_an_asynchronous_copy_surfaces_at_the_next_synchronisation():
    x = torch.full((10,), 2**40).pin_memory()
    x.to("spyre", non_blocking=True)
    with pytest.raises(OverflowError):
        torch.spyre.synchronize()
    torch.spyre.synchronize()


def patterns(dtype) -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_65536_patterns_reach_the_card_as_the_reference_says(dtype):
    host = patterns(dtype)
    back = host.to("spyre").cpu()
    # What the card holds, read back without loss: widen on the card to fp32.
    held = host.to("spyre").to(torch.float32).cpu()
    expected = [sen169.decode(sen169.encode_saturating(v)) for v in host.double().tolist()]
    np.testing.assert_array_equal(held.numpy(), np.array(expected, dtype=np.float32))
    assert np.array_equal(np.signbit(held.numpy()), np.signbit(np.array(expected)))
    # And on the way out: to nearest even in the host's format.
    narrowed = torch.tensor(expected, dtype=torch.float64).to(torch.float32).to(dtype)
    assert torch.equal(back.isnan(), narrowed.isnan())
    assert same_bits(back[~back.isnan()], narrowed[~narrowed.isnan()])


def test_all_65536_patterns_of_the_card_reach_the_host_as_the_reference_says():
    values = np.array([sen169.decode(bits) for bits in range(65536)], dtype=np.float32)
    card = torch.from_numpy(values).to("spyre").to(torch.float16)  # exact: each is on the grid
    held = card.to(torch.float32).cpu().numpy()
    np.testing.assert_array_equal(held, values)
    assert np.array_equal(np.signbit(held), np.signbit(values))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(card.cpu().numpy(), expected)


def test_bfloat16_within_the_range_of_the_card_is_exact():
    host = patterns(torch.bfloat16)
    magnitude = host.float().abs()
    inside = (magnitude >= sen169.decode(1)) & (magnitude <= sen169.decode(0x7FFE)) | (host == 0)
    assert inside.sum() > 16000
    assert same_bits(host[inside].to("spyre").cpu(), host[inside])


def test_finite_values_out_of_range_saturate_and_infinities_do_not():
    x = torch.tensor([1e30, -1e30, float("inf"), float("-inf"), float("nan")], dtype=torch.bfloat16)
    held = x.to("spyre").float().cpu()
    assert held[:2].tolist() == [8573157376.0, -8573157376.0]
    assert held[2].isnan() and held[3] == float("-inf") and held[4].isnan()


# ---- Views ------------------------------------------------------------------------------------


@st.composite
def view_chains(draw):
    """A host tensor and a list of view functions that apply to it one after the other."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=4)))
    if shape and draw(st.booleans()):
        shape = (*shape[:-1], draw(st.sampled_from([31, 32, 64, 65, 130])))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.int8, torch.int64]))
    host = (torch.arange(int(np.prod(shape))) % 100).reshape(shape).to(dtype)
    chain = []
    view = host
    for _ in range(draw(st.integers(0, 4))):
        step = draw(view_steps(view))
        chain.append(step)
        view = step(view)
    return host, chain


@st.composite
def view_steps(draw, view):
    options = ["unsqueeze"]
    if view.dim():
        options += ["slice", "select", "squeeze", "expand", "unfold", "flatten"]
    if view.dim() > 1:
        options += ["transpose", "permute"]
    kind = draw(st.sampled_from(options))
    dim = draw(st.integers(0, max(view.dim() - 1, 0)))
    if kind == "unsqueeze":
        return (lambda t: t.unsqueeze(dim)) if view.dim() < 6 else (lambda t: t)
    if kind == "slice":
        start = draw(st.integers(0, view.shape[dim]))
        stop = draw(st.integers(start, view.shape[dim]))
        step = draw(st.integers(1, 3))
        return lambda t: t[(slice(None),) * dim + (slice(start, stop, step),)]
    if kind == "select":
        if view.shape[dim] == 0:
            return lambda t: t
        index = draw(st.integers(0, view.shape[dim] - 1))
        return lambda t: t.select(dim, index)
    if kind == "squeeze":
        return lambda t: t.squeeze(dim)
    if kind == "expand":
        sizes = [3 if s == 1 else -1 for s in view.shape]
        return lambda t: t.expand(sizes)
    if kind == "unfold":
        size = draw(st.integers(1, max(view.shape[dim], 1)))
        if view.shape[dim] < size or view.dim() >= 6:
            return lambda t: t
        return lambda t: t.unfold(dim, size, 2)
    if kind == "flatten":
        return lambda t: t.view(-1) if t.is_contiguous() else t
    if kind == "transpose":
        other = draw(st.integers(0, view.dim() - 1))
        return lambda t: t.transpose(dim, other)
    order = draw(st.permutations(range(view.dim())))
    return lambda t: t.permute(*order)


def apply(chain, tensor):
    for step in chain:
        tensor = step(tensor)
    return tensor


def check_reading(case) -> None:
    host, chain = case
    expected = apply(chain, host)
    view = apply(chain, host.to("spyre"))
    assert view.shape == expected.shape and view.stride() == expected.stride()
    assert torch.equal(view.cpu(), expected)


def check_writing(case, from_card: bool) -> None:
    host, chain = case
    target = host.to("spyre")
    view, expected = apply(chain, target), apply(chain, host)
    if any(s == 0 and n > 1 for s, n in zip(view.stride(), view.shape, strict=True)):
        return  # expanded: PyTorch forbids writing
    if torch._debug_has_internal_overlap(expected) != 0:
        return
    values = (torch.arange(view.numel()) % 50 + 100).reshape(view.shape).to(host.dtype)
    values = values.t() if values.dim() == 2 and values.shape[0] == values.shape[1] else values
    view.copy_(values.to("spyre") if from_card else values)
    expected.copy_(values)
    assert torch.equal(target.cpu(), host)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(view_chains())
def test_cpu_of_any_view_gives_the_elements_of_the_view(case):
    check_reading(case)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(view_chains(), st.booleans())
def test_copy_into_any_view_writes_exactly_its_elements(case, from_card):
    check_writing(case, from_card)


@pytest.mark.slow
@hypothesis.settings(max_examples=5000, deadline=None)
@hypothesis.given(view_chains(), st.booleans())
def test_many_more_views_are_read_and_written_rightly(case, from_card):
    check_reading(case)
    check_writing((case[0].clone(), case[1]), from_card)


@pytest.mark.parametrize(
    "names", list(itertools.product(["plain", "t", "slice", "step"], repeat=2))
)
def test_copies_between_differently_strided_views_on_the_card(names):
    views = {
        "plain": lambda t: t[:60, :60],
        "t": lambda t: t.t()[:60, :60],
        "slice": lambda t: t[3:63, 5:65],
        "step": lambda t: t[:120:2, 1:121:2],
    }
    source, target = torch.randn(130, 130), torch.zeros(130, 130)
    on_card, card_target = source.to("spyre"), target.to("spyre")
    views[names[0]](card_target).copy_(views[names[1]](on_card))
    views[names[0]](target).copy_(views[names[1]](source))
    assert torch.equal(card_target.cpu(), target)


DTYPES = [*EXACT[:6], torch.float16, torch.bfloat16, torch.int64]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(DTYPES, DTYPES)), ids=str)
def test_to_dtype_on_the_card_gives_what_the_cpu_gives(source, target):
    host = torch.tensor([[0, 1, 2, 3, 100], [5, 17, 64, 99, 127]]).to(source)
    card = host.to("spyre").to(target)
    assert card.dtype == target and torch.equal(card.cpu(), host.to(target))
    assert torch.equal(host.to("spyre", target).cpu(), host.to(target))
    assert torch.equal(host.to("spyre").to("cpu", target), host.to(target))


LARGE = {
    "rows": (torch.randn(3000, 1001), None),
    "few long rows": (torch.randn(2, 2_200_003), None),
    "one dimension": (torch.randn(2_500_001), None),
    "transposed": (torch.randn(1001, 3000).t(), None),
    "sliced": (torch.randn(3000, 2002)[:, ::2], None),
    "sticks along the rows": (torch.randn(3000, 1001), [1, 0]),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_conversion_on_the_way_to_the_card_is_that_of_the_host(name):
    """It is done piece by piece (runtime/staging.h); nobody can tell."""
    host, order = LARGE[name]
    host = host.to(torch.bfloat16)
    wanted = host.half().to("spyre")
    poison = torch.full(host.shape, float("nan"), dtype=torch.float16, device="spyre")
    del poison  # its block is next
    layout = order and torch.spyre.SpyreTensorLayout(
        list(host.shape), list(host.stride()), torch.float16, order
    )
    found = torch.empty(host.shape, dtype=torch.float16, device="spyre", device_layout=layout)
    found.copy_(host)
    assert same_bits(found.cpu(), wanted.cpu())
    assert torch.equal(found.sum(-1).cpu(), wanted.sum(-1).cpu())
    moved = host.to("spyre", torch.float16)
    assert moved.stride() == wanted.stride() and same_bits(moved.cpu(), wanted.cpu())


def test_a_large_conversion_takes_a_few_megabytes_of_the_host(check_python):
    done = check_python(
        """
        import torch
        from torch_spyre.tools.host_memory import measure_host_memory

        weights = [torch.zeros(1500, 1024, dtype=torch.bfloat16) for _ in range(40)]
        torch.zeros(1500, 1024, dtype=torch.bfloat16).to("spyre", torch.float16)
        moved, memory = measure_host_memory(
            lambda: [weight.to("spyre", torch.float16) for weight in weights]
        )
        print(memory.own >> 20, memory.card >> 20)
        """,
        SPYRE_CARD_CHECK="0",  # its shadow of the card's memory is memory of the host
    )
    own, card = map(int, done.stdout.split())
    assert card == 117 and own < 12, done.stdout


def test_copy_broadcasts_and_checks_shapes():
    x = torch.zeros(4, 70, device="spyre")
    x.copy_(torch.arange(70.0))
    assert torch.equal(x.cpu(), torch.arange(70.0).expand(4, 70))
    x.copy_(torch.arange(4.0, device="spyre").unsqueeze(1))
    assert torch.equal(x.cpu(), torch.arange(4.0).unsqueeze(1).expand(4, 70))
    with pytest.raises(RuntimeError):
        x.copy_(torch.zeros(3))


def test_item_tolist_and_iteration():
    x = torch.arange(130.0, device="spyre")
    assert x[77].item() == 77 and x[64:67].tolist() == [64, 65, 66]
    assert [v.item() for v in x[:5]] == [0, 1, 2, 3, 4]
    assert torch.tensor(3.5, device="spyre").dim() == 0
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()


def test_elements_of_a_vector_share_one_plan():
    x = torch.arange(1000.0, device="spyre")
    x[0].item()
    before = torch.spyre.get_diagnostic_report()["plans"]["misses"]
    assert sum(x[i].item() for i in range(1000)) == 499500
    assert torch.spyre.get_diagnostic_report()["plans"]["misses"] <= before + 1


def test_printing():
    assert repr(torch.tensor([1, 2], dtype=torch.float16, device="spyre")) == (
        "tensor([1., 2.], device='spyre:0', dtype=torch.float16)"
    )
    assert "size=(2, 0)" in repr(torch.empty(2, 0, device="spyre"))
    assert "..." in repr(torch.zeros(5000, device="spyre"))


def test_strides_with_gaps_and_overlaps():
    gaps = torch.empty_strided((5, 20), (30, 1), device="spyre").fill_(3)
    assert (gaps.cpu() == 3).all()
    x = torch.arange(50.0, device="spyre")
    windows = x.as_strided((10, 5), (4, 2), 3)
    assert torch.equal(windows.cpu(), torch.arange(50.0).as_strided((10, 5), (4, 2), 3))
    nhwc = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    on_card = nhwc.to("spyre")
    assert on_card.stride() == nhwc.stride() and torch.equal(on_card.cpu(), nhwc)


def test_a_number_is_what_the_card_holds_whatever_the_dtype_of_its_tensor():
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([65504.0, -1.5], dtype=dtype).to("spyre")
        assert [value.item() for value in x] == [65536.0, -1.5]
    assert torch.tensor(65504.0).to("spyre").item() == 65504.0
