"""A wrong number, planted for the page on debugging: `python examples/bug_hunt.py block`.

One line of the compiler is replaced by a wrong one. docs/debugging.md finds it. `--sound` leaves
the compiler as it is.
"""

import argparse

import torch
from torch import nn

from torch_spyre._inductor.graph import Operand, Read
from torch_spyre._inductor.passes import common


def key_of_operand(operand: Operand) -> tuple[object, ...]:
    """What makes two operands of equal operations the same. The planted bug is here."""
    if isinstance(operand, Read):
        return operand
    return (type(operand),)


class Block(nn.Module):
    """Two gates of different sharpness in front of a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(96)
        self.project = nn.Linear(96, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.project(torch.sigmoid(h * 4.0) * torch.sigmoid(h * 0.5))


def scales(x: torch.Tensor) -> torch.Tensor:
    """What is left of the block when all that can go is gone."""
    return x * 4.0 + x * 0.5


def main() -> None:
    """Compare a model on the card with the same model on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["block", "scales"], nargs="?", default="block")
    parser.add_argument("--sound", action="store_true", help="without the planted bug")
    options = parser.parse_args()
    if not options.sound:
        common._key = key_of_operand
    torch._inductor.config.force_disable_caches = True  # which know nothing of the planted line
    torch.manual_seed(0)
    model = Block().eval() if options.model == "block" else scales
    x = torch.randn(64, 96)
    with torch.no_grad():
        wanted = model(x)
        on_card = model.to("spyre") if isinstance(model, nn.Module) else model
        got = torch.compile(on_card)(x.to("spyre")).cpu()
    print(f"{options.model}: off by {(got - wanted).abs().max().item():.2g} at most")


if __name__ == "__main__":
    main()
