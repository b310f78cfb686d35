"""Training on the card follows the CPU, eager and compiled, and never leaves the card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

DEVICE = "spyre"
STEPS = 100
WORDS, LENGTH, HIDDEN, HEADS = 50, 16, 32, 4


class Block(nn.Module):
    """Pre-norm attention and MLP, each beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(HIDDEN)
        self.project = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.join = nn.Linear(HIDDEN, HIDDEN)
        self.before_mlp = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.project(self.before_attention(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(found.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.before_mlp(x))


class LanguageModel(nn.Module):
    """A transformer of two blocks that predicts words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.places = nn.Parameter(torch.randn(LENGTH, HIDDEN) * 0.02)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(words) + self.places)))


@dataclass(frozen=True)
class Task:
    """A model with the data that it learns by heart; on the host."""

    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor


def mlp() -> Task:
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)
    )
    return Task(model, torch.randn(32, 20), torch.randint(0, 5, (32,)))


def transformer() -> Task:
    words = torch.randint(0, WORDS, (4, LENGTH + 1))
    return Task(LanguageModel(), words[:, :-1], words[:, 1:])


TASKS: dict[str, Callable[[], Task]] = {"MLP": mlp, "transformer": transformer}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
}


def loss_curve(task: str, optimizer: str, device: str, *, is_compiled: bool) -> torch.Tensor:
    torch.manual_seed(0)
    made = TASKS[task]()
    model, inputs, labels = (each.to(device) for each in (made.model, made.inputs, made.labels))
    update = OPTIMIZERS[optimizer](model.parameters())

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())

    loss_of = torch.compile(loss_of) if is_compiled else loss_of
    losses = []
    for _ in range(STEPS):
        update.zero_grad()
        loss = loss_of(inputs, labels)
        loss.backward()
        update.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


@pytest.fixture(autouse=True)
def _fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Of the CPU: for small tensors, threads that wait for each other only take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_follows_the_cpu(task: str, optimizer: str, is_compiled: bool) -> None:
    wanted = loss_curve(task, optimizer, "cpu", is_compiled=False)
    torch.spyre.reset_fallback_stats()
    found = loss_curve(task, optimizer, DEVICE, is_compiled=is_compiled)
    assert torch.spyre.fallback_stats() == {}
    assert wanted[-1] < wanted[0] / 2, "the task is learned"
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
