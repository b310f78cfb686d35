"""The yardstick of scratchpad planning: a softmax that reads its input once and writes its result.

Bytes are counted by the card, by the cost model and, in checked mode, from the sticks that steps
really touched.
"""

from __future__ import annotations

import pytest
import torch
from compiled import run_compiled

from tests.ops import step_model

MIB = 1 << 20


def test_a_softmax_over_rows_reads_a_mebibyte_and_writes_one() -> None:
    x = torch.randn(512, 1024).half()
    run = run_compiled(lambda x: x.softmax(0), [x])
    (launch,) = run.launches
    assert (launch.traffic.read, launch.traffic.written) == (MIB, MIB)
    exact = torch.from_numpy(step_model.as_seen_by_card(x)).double().softmax(0)
    assert (run.results[0].double() - exact).abs().max() < 4 * 2.0**-10 * exact.max()


@pytest.mark.parametrize("lx_planning", [True, False])
def test_the_cost_model_counts_what_checked_mode_sees(check_python, lx_planning: bool) -> None:
    """`compiled` is not needed: counters around a call, as a user would."""
    done = check_python(
        f"""
        import torch
        from torch_spyre._inductor import config

        x = torch.randn(512, 1024).half().to("spyre")
        softmax = torch.compile(lambda x: x.softmax(0), dynamic=False)
        with config.patch(lx_planning={lx_planning}):
            softmax(x)
            torch.spyre.synchronize()
            start = torch.spyre.counters()
            softmax(x)
            torch.spyre.synchronize()
            end = torch.spyre.counters()
        names = ("bytes_read", "bytes_written", "checked_bytes_read", "checked_bytes_written")
        print(*(end[name] - start[name] for name in names))
        """,
        SPYRE_CARD_CHECK="1",
    )
    read, written, checked_read, checked_written = map(int, done.stdout.split())
    assert (read, written) == (checked_read, checked_written)
    if lx_planning:
        assert (read, written) == (MIB, MIB)
    else:
        assert read > 3 * MIB
        assert written > 3 * MIB
