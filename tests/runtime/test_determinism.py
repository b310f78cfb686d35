"""The same bits from every version of the vector code and any number of host threads."""

from __future__ import annotations

import pytest
import torch

import torch_spyre

SCRIPT = """
    import hashlib, torch, torch_spyre
    generator = torch.Generator().manual_seed(0)
    digest = hashlib.sha256()
    special = torch.tensor([0.0, -0.0, 1e-40, 3e38, float("inf"), float("-inf"), float("nan")])
    base = torch.cat([torch.randn(500 * 77 - 7, generator=generator) * 3, special]).reshape(500, 77)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = base.to(dtype).to("spyre")
        y = base.flip(0).to(dtype).to("spyre")
        results = [op(x) for op in (
            torch.exp, torch.log, torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.erf,
            torch.rsqrt, torch.nn.functional.gelu, torch.nn.functional.silu, torch.round)]
        results += [x + y, x / y, torch.pow(x.abs(), y), torch.maximum(x, y), x > y,
                    torch.where(x > y, x, y), x.t().contiguous(), x[:, 3:70].contiguous(),
                    torch.remainder(x, y), torch.lerp(x, y, 0.3), x.to(torch.int32)]
        for result in results:
            digest.update(result.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    torch.spyre.manual_seed(1)
    digest.update(torch.randn(333, 77, device="spyre").cpu().numpy().tobytes())
    print(torch_spyre._C._card.isa(), digest.hexdigest())
    """


def test_result_bits_do_not_depend_on_the_instruction_set_or_the_threads(check_python):
    isas = torch_spyre._C._card.isas()
    assert "baseline" in isas
    runs = [(isa, "2") for isa in isas] + [(isas[-1], "1"), (isas[-1], "5")]
    outputs = []
    for isa, threads in runs:
        done = check_python(SCRIPT, SPYRE_CARD_ISA=isa, SPYRE_CARD_THREADS=threads)
        used, digest = done.stdout.split()
        assert used == isa
        outputs.append(digest)
    assert len(set(outputs)) == 1


def test_results_do_not_depend_on_the_hosts_floating_point_settings():
    for rows in (1, 5000):  # on the calling thread, and on the card's
        x = torch.full((rows, 64), 1e-40).to("spyre")
        if not torch.set_flush_denormal(True):
            return  # a host that can't flush can't get it wrong
        try:
            tiny = x * 0.5
        finally:
            torch.set_flush_denormal(False)
        assert (tiny.cpu() == torch.tensor(1e-40) * 0.5).all() and tiny[0, 0].item() > 0


def test_a_version_that_this_host_lacks_is_refused():
    with pytest.raises(ValueError, match="v4, v3 or baseline"):
        torch_spyre._C._card.set_isa("v5")
