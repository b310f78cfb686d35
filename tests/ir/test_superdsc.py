"""A SuperDSC file holds what the structs hold, and says where it does not."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.backend.spec_kernels import arg, matrix, whole_args
from torch_spyre._C import DataFormats
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.ir import superdsc
from torch_spyre.ir.spec import Dim, KernelSpec, OpSpec
from torch_spyre.ir.superdsc import BundleError, DataFormat, from_json, to_json


@pytest.fixture
def add() -> superdsc.SuperDSC:
    x, y, z = matrix(True, arg(0), 4, 64), matrix(True, arg(1), 4, 64), matrix(False, arg(2), 4, 64)
    spec = OpSpec(
        "add", "pointwise", (Dim("c0", 4, 2), Dim("c1", 64)), (x, y, z), stick=1, lanes=64
    )
    (sdsc,) = bundle_of(KernelSpec(whole_args(x, y, z), (spec,))).sdscs
    return sdsc


def test_the_shipped_schema_is_that_of_the_structs():
    """If not: python -m torch_spyre.ir.superdsc"""
    assert superdsc.SCHEMA_FILE.read_bytes() == superdsc.schema()


def test_the_schema_describes_what_is_written(add):
    """Every object of a file has exactly the fields that the schema lists for it."""
    schema = json.loads(superdsc.schema())

    def follow(described: dict, value: object) -> None:
        if "$ref" in described:
            described = schema["$defs"][described["$ref"].rpartition("/")[2]]
        for option in described.get("anyOf", ()):
            if "$ref" in option and isinstance(value, dict):
                follow(option, value)
        if isinstance(value, dict) and "properties" in described:
            assert set(described["required"]) <= set(value) <= set(described["properties"])
            for key, inner in value.items():
                follow(described["properties"][key], inner)
        elif isinstance(value, dict) and isinstance(described.get("additionalProperties"), dict):
            for inner in value.values():
                follow(described["additionalProperties"], inner)
        elif isinstance(value, list) and isinstance(described.get("items"), dict):
            for inner in value:
                follow(described["items"], inner)

    follow(schema, json.loads(to_json(add)))


def test_formats_are_those_of_the_card():
    for fmt in DataFormat:
        of_card = DataFormats.__members__[fmt.value]
        assert int(of_card) == fmt.number
        assert of_card.elems_per_stick() == fmt.lanes


def test_reading_what_was_written_gives_the_same(add):
    assert from_json(to_json(add)) == add


def edited(sdsc: superdsc.SuperDSC, *path: str | int, value: object) -> bytes:
    document = json.loads(to_json(sdsc))
    here = document
    for part in path[:-1]:
        here = here[part]
    here[path[-1]] = value
    return json.dumps(document).encode()


DSC = ("add", "dscs_", 0, "add")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            (*DSC, "labeledDs_", 1, "scale_", "c0"),
            "one",
            ".add.dscs_[0].add.labeledDs_[1].scale_.c0: Expected `int`, got `str`",
        ),
        (
            (*DSC, "labeledDs_", 0, "dataFormat_"),
            "FP17",
            ".add.dscs_[0].add.labeledDs_[0].dataFormat_: Invalid enum value 'FP17'",
        ),
        (
            (*DSC, "scheduleTree_", 2, "coordinates_", "coordInfo", "c1", "elemAr"),
            1,
            ".add.dscs_[0].add.scheduleTree_[2].coordinates_.coordInfo.c1: "
            "Object contains unknown field `elemAr`",
        ),
        (("add", "numCoresUsed_"), None, ".add.numCoresUsed_: Expected `int`, got `null`"),
        (("add", "dscs_"), [], ".add.dscs_: expected one entry"),
    ],
)
def test_an_error_names_the_file_and_the_place_in_it(add, path, value, message):
    with pytest.raises(BundleError) as caught:
        from_json(edited(add, *path, value=value), "sdsc_3.json")
    assert str(caught.value).startswith(f"sdsc_3.json: {message}")


def test_what_is_no_json_is_an_error_too(add):
    with pytest.raises(BundleError, match="sdsc_0.json: not JSON"):
        from_json(to_json(add)[:-10], "sdsc_0.json")


def test_structs_do_not_change(add):
    with pytest.raises(AttributeError):
        add.numCoresUsed_ = 3
    assert msgspec.structs.replace(add, numCoresUsed_=3) != add
