"""Faults of the card surface at the next synchronisation and stay until a reset."""

from __future__ import annotations

import pytest
import torch

import torch_spyre


@pytest.fixture(autouse=True)
def healthy_card():
    yield
    torch.spyre.reset()
    torch.spyre.synchronize()


def test_a_dma_error_is_sticky_until_reset():
    x = torch.arange(100.0, device="spyre")
    torch.spyre.synchronize()
    torch_spyre._C.inject_fault(0, "DmaError")
    with pytest.raises(torch.AcceleratorError, match="(?i)dma"):
        x.cpu()
    with pytest.raises(torch.AcceleratorError, match="(?i)dma"):
        torch.spyre.synchronize()
    torch.spyre.reset()
    assert torch.equal(x.cpu(), torch.arange(100.0))


def test_a_kernel_fault_is_asynchronous_and_names_the_core():
    x = torch.ones(64, 64, device="spyre")
    torch.spyre.synchronize()
    torch_spyre._C.inject_fault(0, "CoreHang", core=0)
    y = x + 1  # does not raise
    with pytest.raises(torch.AcceleratorError, match="core 0"):
        torch.spyre.synchronize()
    torch.spyre.reset()
    assert (x.cpu() == 1).all() and y.shape == x.shape


def test_an_ecc_error_names_the_address():
    x = torch.ones(64, 64, device="spyre")
    y = torch.ones(64, 64, device="spyre")
    torch.spyre.synchronize()
    address = torch_spyre._C.card_address(y)
    torch_spyre._C.inject_fault(0, "EccError", address=address)
    x.add_(1)
    torch.spyre.synchronize()  # x doesn't touch it
    with pytest.raises(torch.AcceleratorError, match=f"(?i)ecc.*{address:#x}"):
        (y + 1).cpu()


def test_a_lost_card_comes_back_with_reset():
    torch.ones(4, device="spyre")
    torch_spyre._C.inject_fault(0, "CardLost")
    with pytest.raises(torch.AcceleratorError):
        torch.ones(4, device="spyre").cpu()
    torch.spyre.reset()
    assert torch.ones(4, device="spyre").tolist() == [1, 1, 1, 1]


def test_an_unknown_fault_kind_is_an_error():
    with pytest.raises(ValueError, match="DmaError, EccError, CoreHang, CardLost"):
        torch_spyre._C.inject_fault(0, "meteor")
