"""What holds for every bundle of the compiler: it is read back equal, and fits the schema."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from torch_spyre.ir import superdsc
from torch_spyre.ir.bundle import Bundle

_seen: set[str] = set()


def check_bundle(bundle: Bundle) -> None:
    """Assert both, once for each distinct bundle."""
    if bundle.content_hash in _seen:
        return
    _seen.add(bundle.content_hash)
    assert Bundle.unpack(bundle.pack()) == bundle
    with tempfile.TemporaryDirectory() as directory:
        bundle.write(Path(directory))
        assert Bundle.read(Path(directory)) == bundle
        for file in sorted(Path(directory).glob("sdsc_*.json")):
            document = json.loads(file.read_bytes())
            problem = misfit(document, _schema(), file.name)
            assert problem is None, problem


@functools.cache
def _schema() -> dict[str, Any]:
    """As it is shipped, not as the structs would have it."""
    return json.loads(superdsc.SCHEMA_FILE.read_bytes())


_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def misfit(value: Any, schema: dict[str, Any], at: str) -> str | None:
    """The place of the first thing that a JSON schema does not allow; None if there is none.

    Knows the keywords that our schema uses, and refuses others.
    """
    known = {"$ref", "$defs", "$schema", "title", "description", "default", "type", "properties"}
    known |= {"required", "items", "anyOf", "enum", "const", "additionalProperties"}
    known |= {"prefixItems", "minItems", "maxItems", "minProperties", "maxProperties"}
    assert schema.keys() <= known, f"unknown keywords {schema.keys() - known}"
    if "$ref" in schema:
        return misfit(value, _schema()["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if "anyOf" in schema:
        problems = [misfit(value, option, at) for option in schema["anyOf"]]
        return None if None in problems else problems[0]
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        return f"{at}: {value!r} is not {schema['const']!r}"
    kind = schema.get("type")
    is_truth = isinstance(value, bool) and kind != "boolean"
    if kind is not None and (not isinstance(value, _TYPES[kind]) or is_truth):
        return f"{at}: {value!r} is no {kind}"
    if isinstance(value, dict):
        return _object_misfit(value, schema, at)
    if isinstance(value, list):
        return _array_misfit(value, schema, at)
    return None


def _object_misfit(value: dict[str, Any], schema: dict[str, Any], at: str) -> str | None:
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        return f"{at}: {len(value)} properties"
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{at}: {missing} are missing"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, inner in value.items():
        described = properties.get(name, others)
        if described is False or (described is True and properties):
            return f"{at}: {name} is not in the schema"
        problem = None if described is True else misfit(inner, described, f"{at}.{name}")
        if problem is not None:
            return problem
    return None


def _array_misfit(value: list[Any], schema: dict[str, Any], at: str) -> str | None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return f"{at}: {len(value)} items"
    first = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    for i, inner in enumerate(value):
        described = first[i] if i < len(first) else rest
        if described is False:
            return f"{at}[{i}]: too many items"
        problem = None if described is True else misfit(inner, described, f"{at}[{i}]")
        if problem is not None:
            return problem
    return None
