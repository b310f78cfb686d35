"""What `make demo` shows: the most that the project can honestly do today."""

from __future__ import annotations

import torch


def headline(text: str) -> None:
    print(f"\n== {text}")


def show_device() -> None:
    headline("A Spyre device in this PyTorch, with no card in the machine")
    properties = torch.spyre.get_device_properties()
    print(f"{properties.name}: {properties.cores} cores, {properties.lx_bytes >> 20} MiB LX each,")
    print(f"{properties.total_memory / 2**30:.0f} GiB device memory, driver {properties.driver}")


def show_layouts() -> None:
    headline("Tensors are tiled into 128-byte sticks")
    x = torch.randn(5, 100, 150, dtype=torch.float16)
    on_card = x.to("spyre")
    print(f"host  {tuple(x.shape)}, strides {x.stride()}")
    print(f"card  {on_card.device_tensor_layout()}")
    lost = (on_card.cpu() - x).abs().max().item()
    print(f"fp16 has 10 fraction bits, the card's format 9: largest rounding {lost:.4g}")
    view = on_card.permute(2, 0, 1)[3:140:7, 1:4]
    same = torch.equal(view.cpu(), on_card.cpu().permute(2, 0, 1)[3:140:7, 1:4])
    print(f"a strided view of it, {tuple(view.shape)}, comes back equal: {same}")


def show_arithmetic() -> None:
    headline("Operations run on the card, and its clock times them")
    x = torch.randn(4096, 4096, dtype=torch.float16).to("spyre")
    y = torch.randn(4096, 1, dtype=torch.float16).to("spyre")
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    before = torch.spyre.counters()
    start.record()
    z = torch.sigmoid(x) * x + y
    end.record()
    end.synchronize()
    after = torch.spyre.counters()
    reference = torch.sigmoid(x.cpu().float()) * x.cpu().float() + y.cpu().float()
    error = (z.cpu().float() - reference).abs().max().item()
    print("z = sigmoid(x) * x + y over 4096 x 4096, fp16")
    print(f"largest error against float32      {error:.4f}")
    print(f"modelled time on the card          {start.elapsed_time(end) * 1000:.1f} us")
    print(f"kernels launched                   {after['launches'] - before['launches']}")
    for name in ("bytes_read", "bytes_written"):
        print(f"LPDDR5 {name.replace('_', ' '):28}{(after[name] - before[name]) / 2**20:.0f} MiB")


def show_streams() -> None:
    headline("Copies overlap compute on another stream")
    host = torch.ones(4096, 4096, dtype=torch.float16).pin_memory()
    x = host.to("spyre")
    copies = torch.spyre.Stream()
    torch.spyre.synchronize()
    events = [torch.spyre.Event(enable_timing=True) for _ in range(4)]
    events[0].record()
    events[1].record(copies)
    y = x
    for _ in range(4):
        y = y * 0.5
    events[2].record()
    with torch.spyre.stream(copies):
        again = host.to("spyre", non_blocking=True)
        events[3].record(copies)
    torch.spyre.synchronize()
    compute = events[0].elapsed_time(events[2])
    both = max(events[0].elapsed_time(events[2]), events[0].elapsed_time(events[3]))
    copy = events[1].elapsed_time(events[3])
    print(
        f"four kernels {compute:.3f} ms, copy {copy:.3f} ms, both together {both:.3f} ms (modelled)"
    )
    assert torch.equal(again.cpu(), host)


def show_what_is_missing() -> None:
    headline("What the card doesn't have yet runs on the CPU, says so and is counted")
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ones(8, 8, device="spyre").sum()
    print(caught[0].message if caught else "nothing fell back")
    print("fallbacks:", torch.spyre.fallback_stats())


if __name__ == "__main__":
    torch.manual_seed(0)
    show_device()
    show_layouts()
    show_arithmetic()
    show_streams()
    show_what_is_missing()
