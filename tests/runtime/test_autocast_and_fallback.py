"""Autocast keys, the CPU fallback, and what the debug log says."""

from __future__ import annotations

import warnings

import pytest
import torch

from torch_spyre.ops.fallbacks import FallbackWarning


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_matmuls_in_16_bits_and_exp_in_float32(dtype):
    x = torch.ones(4, 4, device="spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        with torch.autocast("spyre", dtype=dtype):
            assert torch.mm(x, x).dtype == dtype
            assert torch.exp(x.half()).dtype == torch.float32
            assert torch.add(x, x.half()).dtype == torch.float32
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_an_operation_that_the_card_lacks_warns_once_and_is_counted():
    torch.spyre.reset_fallback_stats()
    x = torch.eye(3).to("spyre")
    with pytest.warns(FallbackWarning, match="aten::linalg_inv_ex"):
        inverse = torch.linalg.inv(x)
    assert inverse.device.type == "spyre" and torch.equal(inverse.cpu(), torch.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.linalg.inv(x)
    counted = {k: v for k, v in torch.spyre.fallback_stats().items() if "inv" in k}
    assert list(counted.values()) == [2]


def test_the_fallback_writes_in_place_and_out_results_back():
    x = torch.tensor([3.0, 1.0, 2.0], device="spyre")
    values, indices = (
        torch.empty(3, device="spyre"),
        torch.empty(3, dtype=torch.int64, device="spyre"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        torch.sort(x, out=(values, indices))
    assert values.tolist() == [1, 2, 3] and indices.tolist() == [1, 2, 0]


def test_a_warning_turned_into_an_error_reaches_the_caller():
    torch.spyre.reset_fallback_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning):
            torch.linalg.inv(torch.eye(2).to("spyre"))


def test_the_debug_log_names_each_transfer(check_python):
    done = check_python(
        "import torch; torch.ones(3, 70, dtype=torch.float16).to('spyre').cpu()",
        TORCH_SPYRE_DEBUG="1",
    )
    assert "copy to card spyre:0" in done.stderr and "copy to host spyre:0" in done.stderr
    assert "device_size=[2, 3, 64]" in done.stderr and "Half[3, 70]" in done.stderr


def test_int64_warns_once_that_it_is_held_in_32_bits(check_python):
    script = """
        import torch
        torch.arange(3, device="spyre"); torch.arange(3, device="spyre")
        assert torch.spyre.get_downcast_warning() is {on}
        """
    assert check_python(script.format(on=True)).stderr.count("32-bit integers") == 1
    quiet = check_python(script.format(on=False), TORCH_SPYRE_DOWNCAST_WARN="off")
    assert "32-bit" not in quiet.stderr


def test_autograd_runs_through_the_device():
    x = torch.tensor([1.0, 2.0, 3.0], device="spyre", requires_grad=True)
    y = x * x * 3
    y.backward(torch.ones_like(y))
    assert x.grad.device.type == "spyre" and x.grad.tolist() == [6, 12, 18]


def test_convolutions_and_their_gradients_run_on_the_card():
    torch.manual_seed(0)
    layer, x = torch.nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 8, 8)
    twin = torch.nn.Conv2d(3, 4, 3, padding=1)
    twin.load_state_dict(layer.state_dict())
    layer(x).sum().backward()
    before = torch.spyre.fallback_stats()
    result = twin.to("spyre")(x.to("spyre"))
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), layer(x))
    torch.testing.assert_close(twin.weight.grad.cpu(), layer.weight.grad, rtol=1e-5, atol=1e-4)
    assert torch.spyre.fallback_stats() == before


def test_random_operations_that_fall_back_follow_the_seed_and_leave_the_cpu_alone():
    x = torch.ones(100, device="spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        state = torch.get_rng_state()
        torch.spyre.manual_seed(5)
        first = torch.nn.functional.dropout(x), torch.randperm(50, device="spyre")
        torch.spyre.manual_seed(5)
        second = torch.nn.functional.dropout(x), torch.randperm(50, device="spyre")
        third = torch.randperm(50, device="spyre", generator=torch.Generator("spyre"))
    assert all(map(torch.equal, first, second)) and not torch.equal(third, first[1])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "call",
    [
        lambda card, host: card @ host,
        lambda card, host: host @ card,
        lambda card, host: torch.cat([card, host]),
        lambda card, host: torch.nn.functional.linear(card, host),
        lambda card, host: torch.mm(card, card, out=host),
    ],
)
def test_operations_that_fall_back_refuse_mixed_devices(call):
    with pytest.raises(RuntimeError, match="same device"):
        call(torch.ones(2, 2, device="spyre"), torch.ones(2, 2))


def test_random_fallbacks_use_the_generator_of_their_own_card(check_python):
    check_python(
        """
        import warnings, torch
        warnings.simplefilter("ignore")
        before = [state.clone() for state in map(torch.spyre.get_rng_state, range(2))]
        torch.nn.functional.dropout(torch.ones(10, device="spyre:1"))
        torch.randperm(4, device="spyre:1")
        assert torch.equal(before[0], torch.spyre.get_rng_state(0))
        assert not torch.equal(before[1], torch.spyre.get_rng_state(1))
        try:
            torch.rand(3, device="spyre:1", generator=torch.Generator("spyre:0"))
        except RuntimeError as error:
            assert "spyre:1" in str(error)
        else:
            raise AssertionError("a generator of another card")
        """,
        AIU_WORLD_SIZE="2",
    )
