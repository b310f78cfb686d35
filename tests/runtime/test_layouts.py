"""Where users meet layouts: asking for one, choosing one, a wrong one."""

from __future__ import annotations

import pytest
import torch
from torch.spyre import DataFormats, SpyreTensorLayout

import torch_spyre
from torch_spyre import ir

CHOSEN = SpyreTensorLayout([512, 256], [256, 1], torch.float16, [1, 0])


def host() -> torch.Tensor:
    return torch.arange(512 * 256).remainder(500).reshape(512, 256).half()


def test_a_tensor_tells_its_layout():
    x = host().to("spyre")
    assert str(x.device_tensor_layout()) == (
        "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 256, 1], "
        "device_dtype=DataFormats.SEN169_FP16)"
    )
    assert torch_spyre._C.get_spyre_tensor_layout(x) == SpyreTensorLayout(x.shape, x.dtype)
    assert host().device_tensor_layout() is None
    with pytest.raises(TypeError, match="spyre device"):
        torch_spyre._C.get_spyre_tensor_layout(host())


def test_the_layout_of_a_view_is_that_of_its_storage():
    x = host().to("spyre")
    for view in (x.t(), x[3:5], x[:, 7], x.view(-1), x.unsqueeze(0), x.expand(2, 512, 256)):
        assert view.device_tensor_layout() == x.device_tensor_layout()


@pytest.mark.parametrize(
    "layout",
    [
        CHOSEN,
        SpyreTensorLayout([512, 256], [256, 1], torch.float16, [0, 1, -1]),
        SpyreTensorLayout([512, 4, 64], [256, 64, 1], DataFormats.SEN169_FP16),
        SpyreTensorLayout([2048, 64], [64, 1], DataFormats.SEN169_FP16),
        SpyreTensorLayout([4, 600, 64], [64, 256, 1], DataFormats.SEN169_FP16),
    ],
    ids=str,
)
def test_every_way_to_choose_a_layout_keeps_the_values(layout):
    x = host().to("spyre", device_layout=layout)
    assert x.device_tensor_layout() == layout and torch.equal(x.cpu(), host())
    y = host().to("spyre").to(device_layout=layout)
    assert y.device_tensor_layout() == layout and torch.equal(y.cpu(), host())
    assert y.to(device_layout=layout) is y
    z = torch.empty(512, 256, dtype=torch.float16, device="spyre", device_layout=layout)
    z.copy_(y)
    assert z.device_tensor_layout() == layout and torch.equal(z.cpu(), host())
    w = host().to("spyre")
    torch_spyre._C.set_spyre_tensor_layout(w, layout)
    assert w.device_tensor_layout() == layout and torch.equal(w.cpu(), host())
    assert torch.equal((x + w).cpu(), (host().float() * 2).half())
    assert torch.equal(x.t()[5:9, 3:70].cpu(), host().t()[5:9, 3:70])


def test_a_layout_that_does_not_fit_is_a_value_error_that_says_why():
    x = host().to("spyre")
    wrong = {
        "fit": SpyreTensorLayout([4, 500, 64], [64, 256, 1], DataFormats.SEN169_FP16),
        "SEN169_FP16": SpyreTensorLayout([8, 512, 32], [32, 256, 1], DataFormats.IEEE_FP32),
    }
    for message, layout in wrong.items():
        for use in (
            lambda layout: torch_spyre._C.set_spyre_tensor_layout(x, layout),
            lambda layout: host().to("spyre", device_layout=layout),
            lambda layout: torch.empty(
                512, 256, dtype=torch.half, device="spyre", device_layout=layout
            ),
        ):
            with pytest.raises(ValueError, match=message):
                use(layout)
    assert torch.equal(x.cpu(), host())
    with pytest.raises(ValueError, match="view"):
        torch_spyre._C.set_spyre_tensor_layout(x[:10], SpyreTensorLayout([10, 256], torch.half))
    with pytest.raises(ValueError, match="device"):
        host().to(device_layout=CHOSEN)
    with pytest.raises(ValueError, match="device"):
        torch.empty(512, 256, dtype=torch.half, device_layout=CHOSEN)


def test_setting_a_layout_moves_all_views_with_it():
    x = host().to("spyre")
    row = x[5]
    torch_spyre._C.set_spyre_tensor_layout(x, CHOSEN)
    assert torch.equal(row.cpu(), host()[5])
    row.zero_()
    assert (x[5].cpu() == 0).all() and torch.equal(x[6].cpu(), host()[6])


def test_padding_never_shows():
    x = torch.full((3, 70), 5.0, dtype=torch.float16, device="spyre")
    y = (x * float("inf")) - x
    assert y.cpu().isnan().all()
    z = torch.zeros(3, 70, dtype=torch.float16, device="spyre")
    z[:, :65].copy_(y[:, :65])
    assert z[:, 65:].cpu().eq(0).all()


def test_host_to_card_copies_write_zeros_into_the_padding():
    """On a private card, whose memory can be read as it lies there, padding and all."""
    _card = torch_spyre._C._card
    card = _card.Card(memory_bytes=1 << 20)
    sen169, float16 = _card.formats["SEN169_FP16"], _card.host_formats["float16"]
    layout = SpyreTensorLayout([3, 70], torch.float16)
    nbytes = layout.nbytes
    flat = [_card.DmaNest([nbytes // 2], [1], [1])]
    raw = _card.DmaDescriptor(sen169, float16, flat, nbytes, nbytes)
    storage = ir.Storage(tuple(layout.device_size), tuple(layout.stride_map), 210)
    plan = ir.copy_plan(storage, (3, 70), (70, 1), 0, (70, 1), True)
    nests = [_card.DmaNest(*nest) for nest in plan]
    address = card.allocate(nbytes)
    card.copy_to_card(address, raw, torch.full((nbytes // 2,), 9.0).half().numpy())
    how = _card.DmaDescriptor(sen169, float16, nests, nbytes, 420)
    card.copy_to_card(address, how, torch.full((3, 70), 5.0).half().numpy())
    seen = torch.empty(layout.device_size, dtype=torch.float16)
    card.wait(card.copy_to_host(address, raw, seen.numpy()))
    expected = torch.zeros(2, 3, 64, dtype=torch.float16)
    expected[0], expected[1, :, :6] = 5, 5
    assert torch.equal(seen, expected)


def test_require_layout_lays_a_result_out_in_eager_and_compiled_code():
    def doubled(x):
        return torch_spyre.require_layout(x * 2, [1, 128, 64], [8192, 1, 128])

    x = torch.randn(64, 128).half().to("spyre")
    for function in (doubled, torch.compile(doubled, fullgraph=True)):
        result = function(x)
        assert result.device_tensor_layout().stride_map == [8192, 1, 128]
        assert torch.equal(result.cpu(), (x * 2).cpu())
    with pytest.raises(ValueError, match="on cpu"):
        doubled(torch.zeros(64, 128))


def test_patched_functions_behave_as_before_on_the_cpu():
    x = torch.arange(4.0)
    assert x.to(torch.int32).dtype == torch.int32 and x.to("cpu") is x
    assert (
        torch.empty(2, 3).shape == (2, 3)
        and torch.empty((2,), dtype=torch.int8).dtype == torch.int8
    )
    assert torch.Tensor.to.__name__ == "to" and torch.empty.__name__ == "empty"
    with pytest.raises(TypeError):
        torch.empty(2, nonsense=1)
