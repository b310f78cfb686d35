"""The reference pages list what there is: nothing is missing, nothing is invented."""

from __future__ import annotations

import inspect
import json
import operator
import pkgutil
import re
from typing import NamedTuple

import pytest
import torch

from tests.docs.pages import ROOT
from torch_spyre import _patches, device
from torch_spyre._C import _card
from torch_spyre._inductor.passes import PASSES

CSRC = ROOT / "torch_spyre/csrc"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of every table row of a page; a bar within a cell is written with a backslash."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def first_names(text: str) -> set[str]:
    """The name in backticks that a table row starts with, without its arguments."""
    matches = (re.match(r"`([\w.]+)", row[0]) for row in rows(text))
    return {match[1] for match in matches if match}


@pytest.mark.parametrize("name", sorted(device.__all__))
def test_a_public_name_has_a_docstring_and_a_row_in_the_reference(name):
    # The first line of a C++ function's docstring is its signature and says nothing.
    lines = (inspect.getdoc(getattr(device, name)) or "").splitlines()
    assert [line for line in lines if line and "->" not in line], f"{name} has no docstring"
    assert name in first_names(page("api.md")), f"docs/api.md has no row for {name}"


def test_the_reference_names_nothing_that_does_not_exist():
    for name in first_names(page("api.md")):
        if name.startswith("torch"):
            assert pkgutil.resolve_name(name)
        else:
            assert operator.attrgetter(name)(device)


def test_all_members_of_the_layout_are_in_the_reference():
    members = [name for name in vars(device.SpyreTensorLayout) if not name.startswith("_")]
    assert {f"SpyreTensorLayout.{name}" for name in members} <= first_names(page("api.md"))


PACKAGE = ROOT / "torch_spyre"
# Readers of variables whose values the runtime checks, and the plain ones.
CHECKED = r'(?:read|integer_between|memory_size|one_of|place_for|flag|text|choice)\("([A-Z_]{3,})"'
PLAIN = (
    r'(?:kVariable = |environ\.get\(|environ\[|getenv\()"([A-Z_]{3,})"|"([A-Z_]{3,})" in os.environ'
)


def variables_read(pattern: str) -> set[str]:
    """The environment variables that the package looks at, from its sources."""
    sources = [p for suffix in ("py", "cpp", "h") for p in PACKAGE.rglob(f"*.{suffix}")]
    found = [re.findall(pattern, path.read_text()) for path in sources]
    return {name for names in found for match in names for name in _names(match) if name}


def _names(match: str | tuple[str, ...]) -> tuple[str, ...]:
    return (match,) if isinstance(match, str) else match


def variables_of(heading: str) -> dict[str, list[str]]:
    """The rows of a section of the page of variables, by name."""
    _, section = page("environment.md").split(f"\n## {heading}\n", 1)
    table = rows(section.split("\n## ", 1)[0])
    return {row[0].strip("`"): row[1:] for row in table if row[0].startswith("`")}


OURS = ("Cards and runtime", "Compiler", "Looking inside")


def test_the_table_of_variables_has_all_of_ours_and_nothing_else():
    listed = {name for heading in OURS for name in variables_of(heading)}
    others = set(variables_of("PyTorch's and HuggingFace's own"))
    assert listed == variables_read(CHECKED) | {"SPYRE_CARD_ISA"}
    assert variables_read(PLAIN) - listed <= others


def test_every_variable_has_a_default_and_legal_values():
    for heading in OURS:
        for name, (effect, default, legal) in variables_of(heading).items():
            assert effect and default and legal, name


def test_a_wrong_value_of_every_variable_is_tested():
    from tests.runtime.test_device import WRONG_VALUES

    free = {"LOCAL_WORLD_SIZE", "LOCAL_RANK"}  # torchrun's
    listed = {name for heading in OURS for name in variables_of(heading)}
    assert listed - free == {name for name, *_ in WRONG_VALUES}


class Setting(NamedTuple):
    """A setting of the compiler, and whether anything asks for it."""

    name: str
    variable: str | None
    is_used: bool


def settings() -> list[Setting]:
    folder = ROOT / "torch_spyre/_inductor"
    sources = [path.read_text() for path in folder.rglob("*.py") if path.name != "config.py"]
    found = re.findall(r"^(\w+): \w+ = (.*)$", (folder / "config.py").read_text(), re.MULTILINE)
    return [
        Setting(
            name,
            variable[0] if (variable := re.findall(r'"([A-Z_]{3,})"', value)) else None,
            any(f"config.{name}" in source for source in sources),
        )
        for name, value in found
    ]


def test_every_setting_of_the_compiler_that_is_used_is_on_the_page_of_models():
    table = {
        row[0].strip("`"): row[1].strip("`") or None for row in rows(page("running-models.md"))
    }
    for setting in settings():
        if setting.is_used:
            assert table[setting.name] == setting.variable


def test_the_passes_are_listed_in_their_order():
    listed = [row[0].strip("`") for row in rows(page("compiler.md"))]
    names = [pass_.__name__ for pass_ in PASSES]
    assert [name for name in listed if name in names] == names


def test_every_patch_is_on_the_page_of_patches():
    heading = re.compile(r"^(`\w+\..*`)(?: \(.*\))?$", re.MULTILINE)
    promised = set(heading.findall(inspect.getdoc(_patches) or ""))
    assert promised and promised <= {row[0] for row in rows(page("patches.md"))}
    promised = {name for name in promised if name.startswith("`torch.")}
    sources = map(inspect.getsource, (_patches.apply, _patches.count_graphs_by_buckets))
    assigned = set(re.findall(r"^    [\w.]+\.(\w+) = ", "\n".join(sources), re.M))
    assert assigned == {re.search(r"(\w+)[`(]", name)[1] for name in promised}


def test_the_table_of_layouts_is_true():
    table = [row for row in rows(page("layouts.md")) if re.match(r"`\[", row[0])]
    assert len(table) == 9
    for cells in table:
        size, order, device_size, stride_map = (
            None if cell == "default" else json.loads(cell.strip("`")) for cell in cells
        )
        strides = torch.empty(size).stride()
        order = order or list(range(len(size)))
        layout = device.SpyreTensorLayout(size, list(strides), torch.float16, order)
        assert (layout.device_size, layout.stride_map) == (device_size, stride_map)


def test_every_opcode_is_in_the_program_format():
    table = {row[1].strip("`"): (int(row[0]), row[2].strip("`")) for row in opcode_rows()}
    assert table == dict(_card.opcodes)


def opcode_rows() -> list[list[str]]:
    return [row for row in rows(page("program-format.md")) if row[0].isdigit() and ":" in row[2]]


def test_every_number_format_is_on_the_card_page():
    table = {row[0].strip("`"): row[1:] for row in rows(page("card.md"))}
    for name, value in device.DataFormats.__members__.items():
        assert table[name][0] == str(int(value))
        assert table[name][1] == str(value.elems_per_stick() or "none")


def test_record_sizes_are_those_of_the_header():
    header = (CSRC / "card/program.h").read_text()
    for record, size in re.findall(r"static_assert\(sizeof\((\w+)\) == (\d+)\)", header):
        assert f"`{record}`, {size} bytes" in page("program-format.md"), record
