"""Allocation: statistics, limits, pressure, threads, giving memory back."""

from __future__ import annotations

import gc
import os

import pytest
import torch


def test_allocated_bytes_are_the_padded_bytes_of_the_layout():
    gc.collect()
    before = torch.spyre.memory_allocated()
    x = torch.empty(5, 100, dtype=torch.float16, device="spyre")
    assert torch.spyre.memory_allocated() - before == 5 * 128 * 2 == x.device_tensor_layout().nbytes
    del x
    assert torch.spyre.memory_allocated() == before


def test_peak_and_accumulated_statistics():
    torch.spyre.reset_peak_memory_stats()
    base = torch.spyre.memory_allocated()
    x = torch.empty(1 << 20, device="spyre")
    del x
    assert torch.spyre.max_memory_allocated() == base + (4 << 20)
    torch.spyre.reset_peak_memory_stats()
    assert torch.spyre.max_memory_allocated() == torch.spyre.memory_allocated()
    torch.spyre.reset_accumulated_memory_stats()
    torch.empty(10, device="spyre")
    stats = torch.spyre.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 1


def test_torch_accelerator_reports_the_same_figures():
    x = torch.empty(1000, 1000, device="spyre")
    assert torch.accelerator.memory.memory_allocated() == torch.spyre.memory_allocated()
    assert torch.accelerator.memory.memory_reserved() == torch.spyre.memory_reserved()
    free, total = torch.spyre.mem_get_info()
    assert 0 < free < total and torch.accelerator.memory.get_memory_info() == (free, total)
    assert torch.spyre.memory.memory_allocated() >= x.device_tensor_layout().nbytes
    torch.accelerator.memory.empty_host_cache()


def test_before_the_card_is_open_statistics_are_zero(check_python):
    check_python(
        """
        import torch
        assert torch.spyre.memory_allocated() == torch.spyre.memory_reserved() == 0
        assert torch.spyre.memory_stats() == {}
        torch.spyre.empty_cache(); torch.spyre.synchronize()
        assert not torch.spyre.is_initialized()
        """
    )


def test_empty_cache_gives_unused_memory_back():
    x = torch.zeros(64 << 20, dtype=torch.float32, device="spyre")
    del x
    torch.spyre.synchronize()
    reserved = torch.spyre.memory_reserved()
    torch.spyre.empty_cache()
    assert torch.spyre.memory_reserved() <= reserved - (200 << 20)


def test_exhausting_the_card_names_the_figures_and_the_next_smaller_fits(check_python):
    check_python(
        """
        import torch
        kept = torch.empty(40 << 20, dtype=torch.int8, device="spyre")
        try:
            torch.empty(40 << 20, dtype=torch.int8, device="spyre")
        except torch.OutOfMemoryError as error:
            text = str(error)
        assert "40.00 MiB" in text and "64.00 MiB" in text and "24.00 MiB" in text, text
        assert torch.empty(20 << 20, dtype=torch.int8, device="spyre").numel() == 20 << 20
        assert torch.spyre.memory_stats()["num_ooms"] >= 1
        del kept
        assert torch.empty(60 << 20, dtype=torch.int8, device="spyre").numel() == 60 << 20
        """,
        SPYRE_CARD_MEMORY="64M",
    )


def host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.skipif(host_bytes() > 100 << 30, reason="this host has more memory than the card")
def test_exhausting_the_host_says_that_the_host_is_full():
    with pytest.raises(torch.OutOfMemoryError, match="(?i)host"):
        torch.empty(100 << 30, dtype=torch.int8, device="spyre")
    assert torch.zeros(1 << 20, device="spyre").device.type == "spyre"


def test_memory_pressure_collects_garbage_before_it_fails(check_python):
    check_python(
        """
        import gc, torch
        gc.disable()
        class Node: pass
        a = Node(); a.self = a; a.x = torch.empty(40 << 20, dtype=torch.int8, device="spyre")
        del a
        y = torch.empty(40 << 20, dtype=torch.int8, device="spyre")
        """,
        SPYRE_CARD_MEMORY="64M",
    )


def test_ten_thousand_allocations_from_eight_threads_leave_nothing(check_python):
    check_python(
        """
        import random, threading, torch
        torch.empty(1, device="spyre")
        torch.spyre.reset_accumulated_memory_stats()
        before = torch.spyre.memory_allocated()
        def work(seed):
            rng, held = random.Random(seed), []
            for _ in range(1250):
                held.append(torch.empty(rng.randrange(1, 50_000), dtype=torch.int8, device="spyre"))
                if len(held) > 20:
                    held.pop(rng.randrange(len(held)))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        stats = torch.spyre.memory_stats()
        assert torch.spyre.memory_allocated() == before
        assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 10_000
        assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"]
        assert stats["active_bytes.all.current"] == before
        """
    )


def test_storages_resize_and_keep_what_fits():
    x = torch.arange(10.0, device="spyre")
    x.resize_(4, 5)
    assert x.flatten()[:10].tolist() == list(range(10))
    x.resize_(2, 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    y = torch.empty(0, device="spyre").resize_(3, 70).fill_(2)
    assert y.device_tensor_layout().device_size == [3, 3, 32] and (y.cpu() == 2).all()
    storage = y.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_a_tensor_whose_storage_shrank_is_an_error_not_a_crash():
    x = torch.ones(100, device="spyre")
    x.untyped_storage().resize_(40)
    with pytest.raises(RuntimeError, match="resized behind it"):
        x.cpu()


def test_pinned_memory_is_known_as_pinned():
    x = torch.ones(100).pin_memory()
    assert x.is_pinned() and x[10:].is_pinned() and not torch.ones(3).is_pinned()
    y = x.to("spyre", non_blocking=True)
    back = torch.empty(100, pin_memory=True)
    back.copy_(y, non_blocking=True)
    torch.spyre.synchronize()
    assert (back == 1).all()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(3, device="spyre", pin_memory=True)


def test_dataloader_pins_for_the_device():
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True
    )
    for (batch,) in loader:
        assert batch.is_pinned()
        assert torch.equal(batch.to("spyre", non_blocking=True).cpu(), batch)


def test_resizing_an_output_leaves_other_views_of_its_storage_alone():
    base = torch.arange(100.0, device="spyre")
    out = base[:4]
    values = torch.ones(8, device="spyre")
    with pytest.warns(UserWarning, match="resized"):
        torch.add(values, values, out=out)
    assert out.tolist() == [2] * 8
    assert base.tolist() == [2] * 8 + list(range(8, 100))


def test_resizing_a_reinterpreted_tensor_counts_bytes():
    base = torch.arange(4.0, device="spyre")
    base.view(torch.int16).resize_(6)
    assert base.tolist() == [0, 1, 2, 3]
    grown = torch.arange(8, dtype=torch.int16, device="spyre").view(torch.float32).resize_(6)
    assert grown.untyped_storage().nbytes() >= 24 and grown.cpu().shape == (6,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2**61, device="spyre"),
        lambda: torch.empty_strided((5,), (2**62,), device="spyre"),
        lambda: torch.empty(3, device="spyre").resize_(2**61),
    ],
)
def test_sizes_beyond_all_memory_are_refused(make):
    with pytest.raises(RuntimeError, match=r"(?i)overflow"):
        make()


def test_an_empty_tensor_may_have_huge_sizes_and_any_strides():
    assert torch.empty(2**40, 0, 2**40, device="spyre").numel() == 0
    assert torch.ones(1, device="spyre").as_strided((0, 2, 3), (0, 0, 1)).clone().shape == (0, 2, 3)


def test_data_pointers_are_handles_that_the_host_cannot_touch(check_python):
    check_python(
        """
        import torch
        tensors = [torch.ones(64 << 10, device="spyre") for _ in range(3)]
        ranges = []
        for line in open("/proc/self/maps"):
            span, access = line.split()[:2]
            begin, end = (int(part, 16) for part in span.split("-"))
            ranges.append((begin, end, access))
        for tensor in tensors:
            pointer = tensor.data_ptr()
            assert [a for b, e, a in ranges if b <= pointer < e] == ["---p"]
        """,
        SPYRE_CARD_MEMORY="1M",
    )
