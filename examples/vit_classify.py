"""A small vision transformer learns four shapes on the card, in seconds, from drawn images."""

from __future__ import annotations

import torch
from rich.progress import track
from transformers import ViTConfig, ViTForImageClassification

SHAPES, SIDE = ("disc", "bar", "cross", "ring"), 32
IMAGE = {"image_size": SIDE, "patch_size": 8, "num_labels": len(SHAPES), "hidden_size": 64}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of random shapes in random places, sizes and colours, with noise; and their labels."""
    labels = torch.randint(len(SHAPES), (count,))
    left, top = torch.rand(2, count, 1, 1) * 8 + 12
    radius = torch.rand(count, 1, 1) * 4 + 5
    x, y = (torch.arange(SIDE) - left).abs(), (torch.arange(SIDE)[:, None] - top).abs()
    distance = (x**2 + y**2).sqrt()
    disc, bar = distance < radius, (x < radius / 2.5) & (y < radius)
    cross = ((x < radius / 3) | (y < radius / 3)) & (x < radius) & (y < radius)
    ring = disc & (distance > radius * 0.6)
    shapes = torch.stack([disc, bar, cross, ring])[labels, torch.arange(count)].unsqueeze(1)
    colours = torch.rand(count, 3, 1, 1) + 0.5
    return shapes * colours + 0.2 * torch.randn(count, 3, SIDE, SIDE), labels


def sketch(image: torch.Tensor) -> list[str]:
    """An image as lines of text: the middle of it, every second row."""
    light = image.mean(0)[4:-4:2, 4:-4]
    return ["".join("#" if value > 0.5 else "." for value in row) for row in light.tolist()]


if __name__ == "__main__":
    torch.spyre.set_downcast_warning(False)
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**IMAGE, **LAYERS, initializer_range=0.1))
    optimizer = torch.optim.AdamW(model.to("spyre").parameters(), 0.004)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, total_steps=150)
    for _ in track(range(150), "learning on the card"):
        images, labels = (tensor.to("spyre") for tensor in drawn(64))
        optimizer.zero_grad()
        model(images, labels=labels).loss.backward()
        optimizer.step()
        pace.step()
    images, labels = drawn(500)
    with torch.no_grad():
        exact = model.eval().cpu()(images).logits
        said = model.half().to("spyre")(images.half().to("spyre")).logits.cpu().float()
    for rows in zip(*(sketch(image) for image in images[:3]), strict=True):
        print(*rows, sep="   ")
    print("   ".join(f"{SHAPES[label]:24}" for label in said[:3].argmax(-1)))
    print(
        f"\n{int((said.argmax(-1) == labels).sum())} of 500 new images are named rightly", end="; "
    )
    print(f"{int((said.argmax(-1) == exact.argmax(-1)).sum())} as the CPU in float32 names them")
    print("ran on the CPU instead:", torch.spyre.fallback_stats() or "nothing")
