"""Streams are FIFO queues; events give modelled times that repeat exactly."""

from __future__ import annotations

import pytest
import torch

import torch_spyre


def test_stream_pools_go_round_robin():
    low = [torch.spyre.Stream().id for _ in range(33)]
    high = [torch.spyre.Stream(priority=-1).id for _ in range(33)]
    assert set(low) == set(range(1, 33)) and low[32] == low[0]
    assert set(high) == set(range(33, 65)) and high[32] == high[0]


def test_streams_tell_device_id_and_priority():
    low, high = torch.spyre.Stream("spyre:0"), torch.spyre.Stream(priority=5)
    assert (low.priority, high.priority) == (0, -1)
    assert low.device() == torch.device("spyre:0")
    assert torch.spyre.default_stream().id == 0
    assert isinstance(low, torch.Stream)


def test_with_stream_makes_it_current_and_restores():
    before = torch.spyre.current_stream()
    stream = torch.spyre.Stream()
    with torch.spyre.stream(stream) as entered:
        assert entered is stream and torch.spyre.current_stream() == stream
    assert torch.spyre.current_stream() == before
    torch.spyre.set_stream(stream)
    assert torch.spyre.current_stream() == stream
    torch.spyre.set_stream(before)
    with torch.spyre.stream(None):
        assert torch.spyre.current_stream() == before


def timed(work, stream=None):
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    torch.spyre.synchronize()
    start.record(stream) if stream else start.record()
    result = work()
    end.record(stream) if stream else end.record()
    end.synchronize()
    return start.elapsed_time(end), result


def test_elapsed_time_is_modelled_and_repeats_exactly():
    x = torch.ones(1024, 1024, dtype=torch.float16, device="spyre")
    y = torch.ones_like(x)
    times = {timed(lambda: x + y)[0] for _ in range(5)}
    assert len(times) == 1
    # The published law for any kernel that has none of its own.
    read, written = 2 * 2 * 2**20, 2 * 2**20
    expected = (read + written) / 150 + 0.00574 * min(read, written)
    assert times.pop() * 1e6 == pytest.approx(expected, rel=1e-3)


def test_elapsed_time_is_the_same_for_any_number_of_host_threads(check_python):
    script = """
        import torch
        x = torch.randn(777, 333).to("spyre")
        start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        torch.spyre.synchronize(); start.record()
        y = (x * 2 + x.t().contiguous().t()).exp().cpu()
        end.record(); end.synchronize()
        print(start.elapsed_time(end))
        """
    outputs = {check_python(script, SPYRE_CARD_THREADS=n).stdout for n in ("1", "2", "7")}
    assert len(outputs) == 1


def test_copies_on_another_stream_overlap_compute():
    x = torch.ones(2048, 2048, dtype=torch.float16, device="spyre")
    host = torch.ones(2048, 2048, dtype=torch.float16).pin_memory()
    target = torch.empty_like(x)
    side = torch.spyre.Stream()

    def both():
        side.wait_stream(torch.spyre.current_stream())
        with side:
            target.copy_(host, non_blocking=True)
        y = x
        for _ in range(3):
            y = y + x
        torch.spyre.current_stream().wait_stream(side)
        return y

    copy, _ = timed(lambda: target.copy_(host, non_blocking=True))
    compute, _ = timed(lambda: ((x + x) + x) + x)
    together, _ = timed(both)
    assert together == pytest.approx(max(copy, compute), rel=1e-6)
    assert copy > 0 and compute > 0


def test_kernels_of_two_streams_take_turns():
    x = torch.ones(2048, 2048, dtype=torch.float16, device="spyre")
    side = torch.spyre.Stream()

    def both():
        side.wait_stream(torch.spyre.current_stream())
        with side:
            a = x + x
        b = x + x
        torch.spyre.current_stream().wait_stream(side)
        return a, b

    one, _ = timed(lambda: x + x)
    together, _ = timed(both)
    assert together == pytest.approx(2 * one, rel=1e-6)


def test_an_event_orders_two_streams():
    producer, consumer = torch.spyre.Stream(), torch.spyre.Stream()
    x = torch.zeros(512, 512, device="spyre")
    torch.spyre.synchronize()
    for value in range(20):
        with producer:
            x.fill_(value)
            event = producer.record_event()
        consumer.wait_event(event)
        with consumer:
            y = x + 1
        producer.wait_stream(consumer)
        consumer.synchronize()
        assert (y.cpu() == value + 1).all()


def test_a_stream_keeps_the_order_of_its_work():
    x = torch.zeros(300, 300, device="spyre")
    for i in range(50):
        x.mul_(1.0).add_(float(i))
    assert (x.cpu() == sum(range(50))).all()


def test_events_without_timing_refuse_elapsed_time():
    first, second = torch.spyre.Event(), torch.spyre.Event()
    first.record()
    second.record()
    torch.spyre.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        first.elapsed_time(second)
    with pytest.raises(NotImplementedError):
        torch.spyre.Event(interprocess=True)


def test_query_and_synchronize():
    stream = torch.spyre.Stream()
    event = torch.spyre.Event()
    assert event.query()
    with stream:
        torch.ones(1000, 1000, device="spyre").exp()
        event.record(stream)
    event.synchronize()
    assert event.query() and stream.query()
    stream.synchronize()


def test_record_stream_keeps_a_freed_block_until_the_other_stream_is_done():
    side = torch.spyre.Stream()
    for _ in range(30):
        x = torch.full((400, 400), 3.0, device="spyre")
        side.wait_stream(torch.spyre.current_stream())
        with side:
            y = x.exp().exp() + x
        x.record_stream(side)
        del x
        z = torch.zeros(400, 400, device="spyre")
        side.synchronize()
        reference = torch.full((400, 400), 3.0)
        torch.testing.assert_close(y.cpu(), reference.exp().exp() + reference, rtol=1e-6, atol=0)
        assert (z.cpu() == 0).all()


def test_a_relayout_on_a_side_stream_keeps_the_old_block_until_it_has_run():
    n = 512
    reference = torch.arange(n * n, dtype=torch.float32).view(n, n)
    layout = torch.spyre.SpyreTensorLayout([n, n], [n, 1], torch.float32, [1, 0])
    work = torch.ones(2048, 2048, device="spyre")
    side = torch.spyre.Stream()
    for _ in range(3):
        x = reference.to("spyre")
        torch.spyre.synchronize()
        with side:
            for _ in range(10):
                torch.exp(work, out=work)
            torch_spyre._C.set_spyre_tensor_layout(x, layout)
        other = torch.full((n, n), 7.0).to("spyre")
        torch.spyre.synchronize()
        assert torch.equal(x.cpu(), reference) and (other.cpu() == 7).all()


def test_waiting_does_not_hold_pythons_lock_that_an_engine_needs(check_python):
    check_python(
        """
        import faulthandler, torch
        faulthandler.dump_traceback_later(60, exit=True)
        storage = torch.UntypedStorage(10, device="spyre")
        pinned = torch.empty(16 << 20, dtype=torch.float16).pin_memory()
        known = pinned.untyped_storage()
        known.tag = 1
        x = torch.empty_like(pinned, device="spyre")
        for _ in range(3):
            x.copy_(pinned, non_blocking=True)
        del pinned, known
        storage.resize_(20)
        """
    )


def test_a_process_may_end_while_copies_of_python_memory_are_queued(check_python):
    check_python(
        """
        import torch
        pinned = torch.empty(16 << 20, dtype=torch.float16).pin_memory()
        again = torch.from_numpy(pinned.numpy())
        x = torch.empty_like(again, device="spyre")
        for _ in range(20):
            x.copy_(again, non_blocking=True)
        del pinned, again
        """
    )
