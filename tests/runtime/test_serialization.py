"""Spyre tensors in files, copies and modules: values, layouts and ties survive."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

LAYOUT = torch.spyre.SpyreTensorLayout([512, 256], [256, 1], torch.float16, [1, 0])


def saved_and_loaded(value, **kwargs):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **kwargs)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_save_and_load_give_the_same_values(dtype):
    x = torch.arange(12).reshape(3, 4).to(dtype).to("spyre")
    y = saved_and_loaded(x)
    assert y.device == x.device and y.dtype == dtype and torch.equal(y.cpu(), x.cpu())
    assert y.device_tensor_layout() == x.device_tensor_layout()
    assert saved_and_loaded(x, map_location="cpu").device.type == "cpu"
    assert torch.equal(saved_and_loaded(x.cpu(), map_location="spyre").cpu(), x.cpu())


def test_a_chosen_layout_goes_into_the_checkpoint():
    x = torch.randn(512, 256, dtype=torch.float16).to("spyre", device_layout=LAYOUT)
    y = saved_and_loaded(x)
    assert y.device_tensor_layout() == LAYOUT and torch.equal(y.cpu(), x.cpu())
    assert torch.equal(saved_and_loaded(x, map_location="cpu"), x.cpu())
    assert pickle.loads(pickle.dumps(x)).device_tensor_layout() == LAYOUT


def test_views_of_one_storage_stay_views_of_one_storage():
    x = torch.arange(20.0, device="spyre").reshape(4, 5)
    first, second = saved_and_loaded((x[1:3], x.t()))
    assert torch.equal(first.cpu(), x[1:3].cpu()) and torch.equal(second.cpu(), x.t().cpu())
    first.fill_(7)
    assert (second.t()[1:3].cpu() == 7).all()


def test_deepcopy_keeps_values_and_layout_and_shares_nothing():
    x = torch.randn(512, 256, dtype=torch.float16).to("spyre", device_layout=LAYOUT)
    y = copy.deepcopy(x)
    assert y.device_tensor_layout() == LAYOUT and torch.equal(x.cpu(), y.cpu())
    y.zero_()
    assert x.cpu().abs().max() > 0


def test_storage_cpu_gives_host_order_bytes():
    x = torch.arange(6, dtype=torch.float16, device="spyre").reshape(2, 3)
    host = x.untyped_storage().cpu()
    assert bytes(host) == bytes(torch.arange(6, dtype=torch.float16).untyped_storage())
    assert x.untyped_storage().nbytes() == 12
    assert torch.zeros(4, dtype=torch.int64, device="spyre").untyped_storage().nbytes() == 32


def test_view_dtype_reinterprets_the_host_image():
    host = torch.randn(4, 6, dtype=torch.float32)
    x = host.to("spyre")
    assert torch.equal(x.view(torch.int32).cpu(), host.view(torch.int32))
    assert torch.equal(x.view(torch.int16).cpu(), host.view(torch.int16))
    x.view(torch.int32)[1, 2] = 0
    host.view(torch.int32)[1, 2] = 0
    assert torch.equal(x.cpu(), host)
    assert torch.equal((x.view(torch.int32) + 1).cpu(), host.view(torch.int32) + 1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(3))


def test_module_to_keeps_tied_parameters_tied():
    model = Tied()
    parameter = model.head.weight
    model.to("spyre")
    assert model.head.weight is model.embedding.weight is parameter
    assert parameter.device.type == "spyre" and model.scale.device.type == "spyre"
    model.half()
    assert model.head.weight is model.embedding.weight and parameter.dtype == torch.float16
    model.cpu()
    assert model.head.weight is model.embedding.weight and parameter.device.type == "cpu"
    assert Tied().spyre().head.weight.is_spyre


def test_state_dict_round_trip():
    source, target = Tied(), Tied().to("spyre")
    target.load_state_dict(source.state_dict())
    for name, value in target.state_dict().items():
        assert value.device.type == "spyre" and torch.equal(value.cpu(), source.state_dict()[name])
    back = Tied()
    back.load_state_dict(saved_and_loaded(target.state_dict()))
    assert torch.equal(back.head.weight, source.head.weight)


def test_data_and_set_share_the_storage_and_its_layout():
    x = torch.randn(512, 256, dtype=torch.float16).to("spyre", device_layout=LAYOUT)
    assert x.data.device_tensor_layout() == LAYOUT
    assert x.detach().device_tensor_layout() == LAYOUT
    y = torch.empty(0, dtype=torch.float16, device="spyre").set_(x)
    assert y.device_tensor_layout() == LAYOUT and torch.equal(y.cpu(), x.cpu())
    y.set_()
    assert y.numel() == 0


def test_an_untyped_storage_takes_the_type_of_its_first_tensor():
    storage = torch.UntypedStorage(24, device="spyre")
    storage.copy_(torch.arange(6.0).untyped_storage())
    x = torch.empty(0, device="spyre").set_(storage, 0, (2, 3), (3, 1))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.device_tensor_layout().device_size == [1, 2, 32]
    assert bytes(x.untyped_storage().clone().cpu()) == bytes(storage.cpu())


def test_a_legacy_checkpoint_with_int64_loads():
    for _ in range(3):
        stale = torch.full(
            (64,), -1.5, device="spyre"
        )  # what the new storage may find in its block
        del stale
        buffer = io.BytesIO()
        saved = {"steps": torch.tensor(7, device="spyre")}
        torch.save(saved, buffer, _use_new_zipfile_serialization=False)
        buffer.seek(0)
        assert torch.load(buffer)["steps"].item() == 7


def test_loaded_int64_beyond_32_bits_is_kept_but_not_computed_with():
    buffer = io.BytesIO()
    torch.save(torch.tensor([2**40, 1]), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location="spyre")
    assert loaded.cpu().tolist() == [2**40, 1]
    with pytest.raises(OverflowError, match="32 bits"):
        loaded + 1
