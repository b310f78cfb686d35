"""The page of operations that run on the card, from the table that says so.

`python -m torch_spyre.tools.operations > docs/operations.md`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch_spyre.ops.entries import Expression, Pointwise
from torch_spyre.ops.registry import Overload, overloads

_INTRODUCTION = """\
# Operations on the card

What runs on the card without the [CPU fallback](api.md), by aten's names. This page is written by
`python -m torch_spyre.tools.operations` from the table in `torch_spyre/ops/registry.py`, which
eager mode plans from. Operations that PyTorch composes of others, like `torch.square`, need no row:
they run on the card if their parts do."""


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


def page() -> str:
    """The whole page, in Markdown."""
    sections = (
        f"## {section.title}\n{section.text}\n\n" + "\n".join(_rows(section))
        for section in SECTIONS
    )
    return "\n\n".join([_INTRODUCTION, *sections]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
