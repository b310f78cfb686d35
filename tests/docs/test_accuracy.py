"""The tables of docs/accuracy.md are those of benchmarks/accuracy.py."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_reference import page, rows

pytest.importorskip("transformers", reason="an extra: pip install torch-spyre[models]")

Table = dict[str, dict[str, float]]


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import accuracy

    return accuracy


def table(name: str) -> Table:
    """Of the page: the figures by row and column."""
    mark = re.escape(f"<!-- benchmarks/accuracy.py: {name} -->\n")
    match = re.search(rf"{mark}\n((?:\|.*\n)+)\n", page("accuracy.md"))
    assert match, f"there is no table of {name}"
    (_, *columns), _, *lines = rows(match[1])
    return {
        first: dict(zip(columns, map(float, figures), strict=True)) for first, *figures in lines
    }


def test_the_page_has_every_operation_and_every_model(accuracy: ModuleType) -> None:
    from tests.models.zoo import ZOO

    again = "python benchmarks/accuracy.py --page docs/accuracy.md writes it"
    assert list(table("operations")) == list(accuracy.OPERATIONS), again
    assert list(table("models")) == list(ZOO), again


@pytest.mark.parametrize(
    "name", ["gelu", "softmax of 512", "matmul, k = 64", "attention, 256 keys"]
)
def test_an_operation_has_the_error_on_the_page(name: str, accuracy: ModuleType) -> None:
    places = (accuracy.EXACT, accuracy.HALVES[0], accuracy.SENT)
    for place, error in zip(places, accuracy.operation_errors(name, places), strict=True):
        assert error == pytest.approx(table("operations")[name][place.name], rel=0.06)


@pytest.mark.parametrize("name", ["granite", "bert", "vit"])
def test_a_model_has_the_error_on_the_page(name: str, accuracy: ModuleType) -> None:
    card = accuracy.HALVES[:1]
    (error,) = accuracy.model_errors(name, card)
    assert error == pytest.approx(table("models")[name][card[0].name], rel=0.06)


def test_the_card_lies_between_the_formats_of_the_cpu() -> None:
    for row in {**table("operations"), **table("models")}.values():
        assert row["CPU, float16"] < row["card, float16"] < row["CPU, bfloat16"] / 2
