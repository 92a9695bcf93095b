"""What an API server asks of a structural schema, and of an object under one; rules (CEL) are not evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
KEYS = {
    "description", "type", "format", "enum", "pattern", "minimum", "exclusiveMinimum", "maximum",
    "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "required",
    "properties", "additionalProperties", "items", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
}  # fmt: skip
LONGEST = {"array": "maxItems", "string": "maxLength"}


def schema_faults(schema: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield what makes a schema not structural, or a rule in it too dear to estimate."""
    for key in schema.keys() - KEYS:
        yield f"{where}: {key} is not allowed"
    if schema.get("type") not in TYPES:
        yield f"{where}: no type"
        return
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{where}: properties and additionalProperties"
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):
        if bound in schema and (schema[bound] is not True or bound[9:].lower() not in schema):
            yield f"{where}: {bound} is a flag beside its bound"
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            yield f"{where}: requires {name}, which is no property"
    longest = LONGEST.get(schema["type"])
    is_bounded = {"enum", "format"} & schema.keys() or where in (".apiVersion", ".kind")
    if longest and longest not in schema and not is_bounded:
        yield f"{where}: no {longest}"
    if "pattern" in schema:
        if not (schema["pattern"].startswith("^") and schema["pattern"].endswith("$")):
            yield f"{where}: a pattern without anchors matches anywhere"
        if re.search(r"\(\?[^:]|\\[1-9ZzpP]|\{\d{4,}", schema["pattern"]):
            yield f"{where}: RE2 has no such pattern"
        re.compile(schema["pattern"])
    for rule in schema.get("x-kubernetes-validations", ()):
        if rule.keys() != {"rule", "message"} or len(rule["message"]) > 80 or "\n" in rule["message"]:
            yield f"{where}: a rule has one line of message"
        if "self" not in rule["rule"] or not _is_balanced(rule["rule"]):
            yield f"{where}: {rule['rule']} is no rule"
    for name, inner in schema.get("properties", {}).items():
        yield from schema_faults(inner, f"{where}.{name}")
    if "additionalProperties" in schema:
        if "maxProperties" not in schema:
            yield f"{where}: no maxProperties"
        yield from schema_faults(schema["additionalProperties"], f"{where}{{}}")
    if schema["type"] == "array":
        items = schema.get("items")
        if items is None:
            yield f"{where}: no items"
            return
        yield from schema_faults(items, f"{where}[]")
        for key in schema.get("x-kubernetes-list-map-keys", ()):
            if schema.get("x-kubernetes-list-type") != "map" or key not in items.get("required", ()):
                yield f"{where}: {key} is no key of a list map"


def _is_balanced(rule: str) -> bool:
    bare = re.sub(r"'(?:[^'\\]|\\.)*'", "''", rule)
    return bare.count("(") == bare.count(")") and "'" not in bare.replace("''", "")


def object_faults(schema: Mapping[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """Yield what an API server refuses of a value, or would leave out because it does not know it."""
    kind = TYPES[schema["type"]]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        yield f"{where}: {value!r} is no {schema['type']}"
        return
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: not JSON"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not match"
    yield from _out_of_bounds(schema, value, where)
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}: no {name}"
        inner = schema.get("properties", {})
        other = schema.get("additionalProperties")
        for name, item in value.items():
            if name in inner or other is not None:
                yield from object_faults(inner.get(name, other), item, f"{where}.{name}")
            elif where != ".metadata":
                yield f"{where}: {name} is left out"
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from object_faults(schema["items"], item, f"{where}[{place}]")
        for key in schema.get("x-kubernetes-list-map-keys", ()):
            if len({item[key] for item in value}) < len(value):
                yield f"{where}: {key} twice"


def _out_of_bounds(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    size = value if isinstance(value, (int, float)) else len(value)
    for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
        if low in schema and (size < schema[low] or (size == schema[low] and schema.get("exclusiveMinimum"))):
            yield f"{where}: {size} is less than {low}"
        if high in schema and (size > schema[high] or (size == schema[high] and schema.get("exclusiveMaximum"))):
            yield f"{where}: {size} is more than {high}"
    if isinstance(value, dict) and size > schema.get("maxProperties", size):
        yield f"{where}: too many keys"
