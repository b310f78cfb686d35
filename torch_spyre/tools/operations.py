"""The page of operations that run on the card, from the tables that say so.

`python -m torch_spyre.tools.operations > docs/operations.md`
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch_spyre.ops import data_sized, decompositions, optimisers, traced
from torch_spyre.ops.entries import Expression, Pointwise
from torch_spyre.ops.registry import Overload, overloads
from torch_spyre.ops.trace.decompositions import DECOMPOSITIONS
from torch_spyre.ops.trace.leaves import LEAVES

_INTRODUCTION = """\
# Operations on the card

What runs on the card without the [CPU fallback](fallbacks.md), by aten's names. This page is
written by `python -m torch_spyre.tools.operations` from the registries that eager mode plans from;
how a call gets from there to the card is told in [Eager mode](eager.md). Operations that PyTorch
composes of others, like `torch.square`, need no row: they run on the card if their parts do. How
far that goes is [measured](conformance.md)."""

_TRACED = """\
## Traced

Everything else is traced when a call of a new shape comes: what the operation is made of, down to
the leaves below, goes through the compiler and becomes one plan. PyTorch's own decompositions
count, and are not listed. Each row stands for the functional form; in place and `out=` are made
from it. Operations in **bold** are called often enough to have a kernel of their own in the
dispatcher."""

_DATA_SIZED = """\
## With a question to the card

How large the result is, or whether `multinomial` has anything to draw: these wait for the answer.
They are written in other operations, in `torch_spyre/ops/data_sized.py`."""

_OPTIMISERS = """\
## Steps of fused optimisers

Written in other operations, in `torch_spyre/ops/optimisers.py`."""


@dataclass(frozen=True)
class Section:
    """The part of the page for one kind of entry."""

    kind: str
    title: str
    text: str
    columns: tuple[str, ...]
    cells: Callable[[Sequence[Overload]], tuple[str, ...]]  # what follows the name in a row


def _parts(expression: Expression | None) -> Iterator[str]:
    """The card operations of an expression, as they are first met from the outside in."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, tuple):
        yield str(expression[0])
        for operand in expression[1:]:
            if isinstance(operand, tuple):
                yield from _parts(operand)


def _code(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in dict.fromkeys(names))


def _forms(found: Sequence[Overload]) -> str:
    is_in_place = [o.written is not None and o.written == o.arguments[0] for o in found]
    forms = {
        "functional": any(o.written is None for o in found),
        "in place": any(is_in_place),
        "out=": any(
            o.written is not None and not i for o, i in zip(found, is_in_place, strict=True)
        ),
    }
    return ", ".join(form for form, has in forms.items() if has)


def _pointwise_cells(found: Sequence[Overload]) -> tuple[str, ...]:
    entries = {id(o.entry): o.entry for o in found}.values()
    pointwise = [entry for entry in entries if isinstance(entry, Pointwise)]
    formulas = [f for entry in pointwise for f in (entry.formula, *entry.formulas.values())]
    domains = {
        "floats": any(f.floats for f in formulas),
        "integers": any(f.ints or f.promotes_to_float for f in formulas),
        "bools": any(f.bools or f.promotes_to_float for f in formulas),
    }
    parts = (p for f in formulas for e in (f.floats, f.ints, f.bools) for p in _parts(e))
    return ", ".join(d for d, has in domains.items() if has), _forms(found), _code(parts)


def _generated_cells(found: Sequence[Overload]) -> tuple[str, ...]:
    return (_code(overload.name.removeprefix("aten::") for overload in found),)


SECTIONS = (
    Section(
        "pointwise",
        "Element by element",
        """\
Every dtype of the [card](card.md), with PyTorch's type promotion and broadcasting; any views as
operands and as targets. Where only card operations of floats are listed for integers, PyTorch
computes those in floats, too.""",
        ("operation", "of", "forms", "card operations"),
        _pointwise_cells,
    ),
    Section(
        "generated",
        "Numbers from nothing",
        """\
Random numbers are Philox's, of the seed, the call and the element's index: the same for any layout
and any number of cores.""",
        ("operation", "overloads"),
        _generated_cells,
    ),
)


def _rows(section: Section) -> Iterator[str]:
    found: dict[str, list[Overload]] = defaultdict(list)
    for overload in overloads().values():
        if overload.entry.kind == section.kind:
            found[overload.entry.name].append(overload)
    yield f"| {' | '.join(section.columns)} |"
    yield f"|{'---|' * len(section.columns)}"
    for name in sorted(found):
        yield f"| `{name}` | {' | '.join(section.cells(found[name]))} |"


# ---- What is traced -----------------------------------------------------------------------------


def _table(names: Iterable[str]) -> Iterator[str]:
    """Overloads ("aten::sum.dim_IntList"), a row for each operation."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[name.removeprefix("aten::").partition(".")[0]].append(name)
    yield "| operation | overloads |"
    yield "|---|---|"
    for operation in sorted(found):
        is_direct = any(name in traced.NAMES for name in found[operation])
        shown = f"**`{operation}`**" if is_direct else f"`{operation}`"
        overloaded = sorted(name.removeprefix("aten::") for name in found[operation])
        yield f"| {shown} | {_code(overloaded)} |"


def _summary(module: str) -> str:
    """What a module says it holds."""
    return (inspect.getdoc(sys.modules[module]) or "").partition("\n\n")[0]


def _by_module(registry: Mapping[str, Callable[..., object]]) -> Iterator[tuple[str, list[str]]]:
    """The names of a registry, by the module that each one's function is written in."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, function in registry.items():
        found[function.__module__].append(name)
    for module in sorted(found):
        yield module, found[module]


def _registry(title: str, registry: Mapping[str, Callable[..., object]]) -> Iterator[str]:
    for module, names in _by_module({n: each for n, each in registry.items() if _is_aten(n)}):
        path = f"{module.replace('.', '/')}.py"
        table = "\n".join(_table(names))
        yield f"### {title}: `{path}`\n\n{_summary(module)}\n\n{table}"


def _is_aten(name: str) -> bool:
    """Others are our own, for use inside of these."""
    return name.startswith("aten::")


def _traced_sections() -> Iterator[str]:
    shared = {op.name() for op in decompositions.TABLE} - set(LEAVES)
    own = {
        name: each
        for name, each in DECOMPOSITIONS.items()
        if name not in shared and name not in LEAVES
    }
    yield _TRACED
    yield from _registry("Leaves", LEAVES)
    yield (
        f"### Made of others, eager and compiled alike\n\n{_summary(decompositions.__name__)}\n\n"
        + ("\n".join(_table(shared)))
    )
    yield from _registry("Made of others", own)
    yield _DATA_SIZED + "\n\n" + "\n".join(_table(data_sized.KERNELS))
    yield _OPTIMISERS + "\n\n" + "\n".join(_table(optimisers.KERNELS))


def page() -> str:
    """The whole page, in Markdown."""
    sections = (
        f"## {section.title}\n{section.text}\n\n" + "\n".join(_rows(section))
        for section in SECTIONS
    )
    return "\n\n".join([_INTRODUCTION, *sections, *_traced_sections()]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
