"""How far results in 16 bits are from float32: on the card, and in both of the CPU's formats.

The same operations and models, with the same inputs and weights, in each format. The error is the
root of the mean square of the differences, over that of the exact values: one figure per row, which
neither a single outlier nor a single zero decides. Operations are compared with float64, models
with themselves in float32 on the CPU.

`--page docs/accuracy.md` writes the tables into the page. The card's figures are the same on every
machine, up to what the reference of the machine differs; the CPU's depend on its kernels.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _report import Report
from torch.nn import functional as F  # noqa: N812

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))

Tensor = torch.Tensor
Rows = list[list[object]]


class Place(NamedTuple):
    """Where something is computed, and in which format."""

    name: str
    device: str
    dtype: torch.dtype
    is_sent: bool = False  # the host rounds, then the card; else the card alone

    def put(self, x: Any) -> Any:
        """A tensor or a module there; integers stay integers."""
        if isinstance(x, Tensor) and not x.is_floating_point():
            return x.to(self.device)
        return (
            x.to(self.dtype).to(self.device) if self.is_sent else x.to(self.device).to(self.dtype)
        )


HALVES = (
    Place("card, float16", "spyre", torch.float16),
    Place("CPU, float16", "cpu", torch.float16),
    Place("CPU, bfloat16", "cpu", torch.bfloat16),
)
EXACT = Place("card, float32", "spyre", torch.float32)
SENT = Place("card, sent as float16", "spyre", torch.float16, is_sent=True)


def relative_error(got: Tensor, exact: Tensor) -> float:
    """The root mean square of the differences over that of the exact values."""
    exact = exact.double()
    return float((got.cpu().double() - exact).norm() / exact.norm())


# ---- Operations ---------------------------------------------------------------------------------


def _normal(*size: int, scale: float = 1.0) -> Tensor:
    # Drawn in float64: in float32 it depends on the vector units of the CPU which numbers come.
    return torch.randn(size, dtype=torch.float64).float() * scale


OPERATIONS: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "x + y": (torch.add, lambda: (_normal(256, 256), _normal(256, 256))),
    "exp": (torch.exp, lambda: (_normal(256, 256),)),
    "gelu": (F.gelu, lambda: (_normal(256, 256),)),
    "silu(x) * y": (lambda x, y: F.silu(x) * y, lambda: (_normal(256, 256), _normal(256, 256))),
    "sum of 4096": (lambda x: x.sum(-1), lambda: (torch.rand(64, 4096),)),
    "softmax of 512": (lambda x: x.softmax(-1), lambda: (_normal(64, 512, scale=3),)),
    "layer_norm of 1024": (lambda x: F.layer_norm(x, (1024,)), lambda: (_normal(64, 1024),)),
    "rms_norm of 1024": (lambda x: F.rms_norm(x, (1024,)), lambda: (_normal(64, 1024),)),
    "matmul, k = 64": (torch.mm, lambda: (_normal(128, 64), _normal(64, 128))),
    "matmul, k = 1024": (torch.mm, lambda: (_normal(128, 1024), _normal(1024, 128))),
    "attention, 256 keys": (
        F.scaled_dot_product_attention,
        lambda: tuple(_normal(1, 4, 256, 64) for _ in range(3)),
    ),
}


@torch.no_grad()
def operation_errors(name: str, places: Sequence[Place]) -> list[float]:
    torch.manual_seed(0)
    call, make = OPERATIONS[name]
    inputs = make()
    exact = call(*(x.double() for x in inputs))
    return [relative_error(call(*map(place.put, inputs)), exact) for place in places]


# ---- Models -------------------------------------------------------------------------------------


@torch.no_grad()
def model_errors(name: str, places: Sequence[Place] = HALVES) -> list[float]:
    """Of a model of the tests' zoo: its logits or hidden states."""
    from tests.models.zoo import ZOO, answer

    torch.manual_seed(0)
    model, inputs = ZOO[name].build().eval(), ZOO[name].inputs()
    exact = answer(model(**inputs))
    errors = []
    for place in places:
        moved = place.put(copy.deepcopy(model))
        there = {key: place.put(x) for key, x in inputs.items()}
        errors.append(relative_error(answer(moved(**there)), exact))
    return errors


def embedding_errors() -> Rows:
    """Of sentence embeddings with real weights: error and worst cosine of a hundred sentences."""
    from tests.models.minilm import SENTENCES, load

    exact = load("cpu").encode(SENTENCES, convert_to_tensor=True)
    rows: Rows = []
    for place in (EXACT, *HALVES):
        model = load(place.device, place.dtype)
        found = model.encode(SENTENCES, convert_to_tensor=True).cpu().double()
        cosines = F.cosine_similarity(found, exact.double(), -1)
        rows.append([place.name, relative_error(found, exact), 1 - cosines.min().item()])
    return rows


# ---- Report -------------------------------------------------------------------------------------


def tables() -> Iterable[tuple[str, list[str], Rows]]:
    """Name, columns and rows of each table of the page."""
    from tests.models.zoo import ZOO

    card, *cpu = HALVES
    places = (EXACT, card, SENT, *cpu)
    rows: Rows = [[name, *operation_errors(name, places)] for name in OPERATIONS]
    yield "operations", ["operation", *(place.name for place in places)], rows
    rows = [[name, *model_errors(name)] for name in ZOO]
    yield "models", ["model", *(place.name for place in HALVES)], rows
    yield "embeddings", ["where", "error", "1 - worst cosine"], embedding_errors()


def as_markdown(columns: list[str], rows: Rows) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def write_page(page: Path, name: str, table: str) -> None:
    """Replace the table behind its mark; the text around it is for people to keep true."""
    mark = f"<!-- benchmarks/accuracy.py: {name} -->\n"
    text, count = re.subn(
        rf"({re.escape(mark)}\n)(\|.*\n)*", lambda m: m[1] + table, page.read_text()
    )
    if count != 1:
        raise ValueError(f"{page} has {count} marks {mark.strip()}")
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    options = parser.parse_args()
    torch.spyre.set_downcast_warning(False)  # type: ignore[attr-defined]
    report = Report("accuracy", "Errors in 16 bits against float32")
    for name, columns, rows in tables():
        report.table(name, columns, [[_cell(value) for value in row] for row in rows])
        if options.page:
            write_page(options.page, name, as_markdown(columns, rows))
    report.write()


if __name__ == "__main__":
    main()
