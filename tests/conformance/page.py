"""The page of the docs: the scoreboard by category, what is not right, what may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    SpectralFuncInfo,
    UnaryUfuncInfo,
)

from tests.conformance.device_tests import TEMPLATES, device_tests
from tests.conformance.expected import rules
from tests.conformance.results import Entry, Key, Scoreboard, Status
from tests.conformance.samples import operations

_INTRODUCTION = """\
# Conformance

PyTorch describes its operations in a database, `op_db`: {entries} entries with sample inputs, which
its own tests run on. Here every entry runs on the card and is compared with the CPU: functional, on
non-contiguous inputs, in place, and with `out=` of the right size, empty, too large and transposed.

This page is written by `make conformance`, which takes a few minutes; the results behind it are
`docs/conformance.json`. `make test` runs a constant sample of it, `make test-slow`
another one for each commit.

```shell
python -m tests.conformance --ops "sort,*pool2d" --dtypes float16   # some entries
python -m tests.conformance --again wrong,error --json docs/conformance.json
```

| status | means |
|---|---|
| card | right, and all of it ran on the card |
| fallback | right; some of it [ran on the CPU](fallbacks.md) |
| dtype | needs a dtype that the card lacks; raises `TypeError` and names it |
| refused | raises `NotImplementedError`, as expected (see below) |
| skipped | the CPU itself can't do it, or there is nothing to compare |
| error | raises something else |
| wrong | another result than the CPU's |
| crash | the process ended, or the call did not |

An entry counts as its worst call. A result is right when shapes, dtypes, integers and bools are
equal and floats are near: float16 within two units in the last place of the card's format (2^-8),
float32 within the tolerance that the entry states, each plus what the CPU itself loses against the
next wider dtype. `tests/conformance/compare.py` has the details.
"""


def page(board: Scoreboard) -> str:
    """The whole page, in Markdown."""
    parts = [
        _INTRODUCTION.format(entries=len({name for name, _ in board.entries})),
        _figures(board),
        _columns(board),
        _categories(board),
        _troubles(board),
        _differences(),
    ]
    return "\n".join(parts)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def _numbers(counts: Counter[Status]) -> list[object]:
    return [counts[status] or "" for status in Status]


_STATUS_HEAD = [status.name.lower() for status in Status]


def _figures(board: Scoreboard) -> str:
    rows = ([name, f"{share:.1%}"] for name, share in board.shares().items())
    about = board.about
    return (
        f"## Figures\n\nPyTorch {about.get('torch')}, at most {about.get('cap')} samples per entry "
        "and dtype. Of the entries that need no dtype that the card lacks:\n\n"
        + _table(["", "share"], rows)
    )


def _columns(board: Scoreboard) -> str:
    dtypes, tests = board.columns()
    rows = [[dtype, *_numbers(board.counts(dtype))] for dtype in dtypes]
    generic = [[test, *_numbers(board.counts(test))] for test in tests]
    listed = "\n".join(
        f"- **{name}**: {(TEMPLATES[name].calls.__doc__ or '').strip()}" for name in device_tests()
    )
    return (
        "## By dtype\n\nEntries that have none of float16, float32, int32 and bool run with "
        "another dtype.\n\n"
        + _table(["dtype", *_STATUS_HEAD], rows)
        + "\n## Device-generic tests\n\nBeside the samples, `tests/conformance/device_tests.toml` "
        f"names tests that PyTorch runs for each device:\n\n{listed}\n\n"
        + _table(["test", *_STATUS_HEAD], generic)
    )


def _named(*prefixes: str) -> Callable[[OpInfo], bool]:
    return lambda op: op.full_name.startswith(prefixes)


def _kind(*kinds: type) -> Callable[[OpInfo], bool]:
    return lambda op: isinstance(op, kinds)


# The first that fits.
_CATEGORIES: dict[str, Callable[[OpInfo], bool]] = {
    "Neural networks": _named("nn.functional."),
    "Linear algebra": _named("linalg."),
    "Fourier transforms": lambda op: isinstance(op, SpectralFuncInfo) or "fft" in op.name,
    "Masked": _named("masked."),
    "Special functions": _named("special."),
    "Unary": _kind(UnaryUfuncInfo),
    "Binary": _kind(BinaryUfuncInfo),
    "Reductions": _kind(ReductionOpInfo),
    "Indexing and scattering": _named(
        *("index", "scatter", "gather", "take", "put", "__getitem__", "_unsafe_masked", "where"),
        *("nonzero", "argwhere", "searchsorted", "select", "slice", "diagonal_scatter"),
    ),
    "Everything else": lambda _: True,
}


def _category(name: str) -> str:
    return next(category for category, fits in _CATEGORIES.items() if fits(operations()[name]))


def _categories(board: Scoreboard) -> str:
    counts: dict[str, Counter[Status]] = {category: Counter() for category in _CATEGORIES}
    for (name, column), entry in board.entries.items():
        if column == "float16" and name in operations():
            counts[_category(name)][entry.status] += 1
    rows = ([category, *_numbers(of)] for category, of in counts.items())
    return "## float16 by category\n\n" + _table(["category", *_STATUS_HEAD], rows)


def _troubles(board: Scoreboard) -> str:
    found: list[tuple[Key, Entry]] = [
        (key, entry) for key, entry in sorted(board.entries.items()) if not entry.status.is_good
    ]
    if not found:
        return "## What is not right\n\nNothing that is known.\n"
    rows = (
        [key[0], key[1], entry.status.name.lower(), f"`{_plain(entry.detail)}`"]
        for key, entry in found
    )
    return "## What is not right\n\n" + _table(["entry", "of", "status", "first case"], rows)


def _plain(text: str) -> str:
    """Text that fits into a cell."""
    return text.replace("|", "/").replace("`", "'").replace("\n", " ")[:220]


def _differences() -> str:
    rows = ([", ".join(rule.ops), ", ".join(rule.dtypes), rule.expected.reason] for rule in rules())
    rows = ([ops.replace("*", r"\*"), dtypes.replace("*", "all"), why] for ops, dtypes, why in rows)
    return "## Expected differences\n\n`tests/conformance/expected.toml` has them.\n\n" + _table(
        ["entries", "dtypes", "reason"], rows
    )
