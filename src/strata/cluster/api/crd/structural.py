"""JSON schemas as API servers take them: structural OpenAPI v3.

What such a schema may be is said on kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions". In
short: no references, no defaults of ours, a type at every node and none inside a choice, properties or
additionalProperties but not both, bounds as OpenAPI 3.0 has them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = Mapping[str, Any]

# What a rule (CEL) costs is estimated from the longest value there could be, so every value has a longest.
BOUNDS: Final[Mapping[str, tuple[str, int]]] = {
    "array": ("maxItems", 64),
    "object": ("maxProperties", 64),
    "string": ("maxLength", 4096),
}

_KEPT: Final = (
    "description", "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "maxProperties", "required",
)  # fmt: skip
_EXCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_FORMATS: Final = {"integer": "int64", "number": "double"}


def structural(schema: Schema) -> dict[str, Any]:
    """Return a pydantic model's JSON schema in the structural form."""
    return _node(schema, schema.get("$defs", {}))


def _node(schema: Schema, definitions: Schema) -> dict[str, Any]:
    if "$ref" in schema:
        schema = {
            **definitions[schema["$ref"].rpartition("/")[2]],
            **{k: v for k, v in schema.items() if k != "$ref"},
        }
    if "anyOf" in schema:
        members = [member for member in schema["anyOf"] if member.get("type") != "null"]
        schema = {**_merged(members), **{key: value for key, value in schema.items() if key != "anyOf"}}
        return _node(schema, definitions)
    # Copies, so that YAML shows a list where it is used and not a reference to its first use.
    node = {key: copy.deepcopy(schema[key]) for key in _KEPT if key in schema}
    node |= {key: copy.deepcopy(value) for key, value in schema.items() if key.startswith("x-kubernetes-")}
    if "const" in schema:
        node["enum"] = [schema["const"]]
    for exclusive, bound in _EXCLUSIVE.items():
        if exclusive in schema:
            node |= {bound: schema[exclusive], exclusive: True}
    if "properties" in schema:
        node["properties"] = {name: _node(value, definitions) for name, value in schema["properties"].items()}
    elif isinstance(values := schema.get("additionalProperties"), Mapping):
        node["additionalProperties"] = _node(values, definitions)
    elif patterns := schema.get("patternProperties"):
        ((pattern, values),) = patterns.items()
        node["additionalProperties"] = _node(values, definitions)
        node["x-kubernetes-validations"] = [_keys_match(pattern), *node.get("x-kubernetes-validations", ())]
    if "items" in schema:
        node["items"] = _node(schema["items"], definitions)
    return _bounded(node)


def _merged(members: Sequence[Schema]) -> Schema:
    """Return what stands for a choice, which may have no types inside: its only member, or one pattern of text."""
    if len(members) == 1:
        return members[0]
    assert all(member.get("type") == "string" for member in members), "only texts may be of several forms"
    patterns = [member.get("pattern") or re.escape(member["const"]) for member in members]
    return {
        "type": "string",
        "pattern": "^(?:" + "|".join(pattern.removeprefix("^").removesuffix("$") for pattern in patterns) + ")$",
        "maxLength": max(member.get("maxLength", 0) for member in members),
    }


def _keys_match(pattern: str) -> dict[str, str]:
    escaped = pattern.replace("\\", "\\\\").replace("'", "\\'")
    return {
        "rule": f"self.all(key, key.matches('{escaped}'))",
        "message": "a key is not of the form it should have",
    }


def _bounded(node: dict[str, Any]) -> dict[str, Any]:
    kind = node.get("type", "")
    if kind in _FORMATS:
        node.setdefault("format", _FORMATS[kind])
    if kind in BOUNDS and not {"enum", "format", "properties"} & node.keys():
        key, most = BOUNDS[kind]
        if kind != "object" or "additionalProperties" in node:
            node.setdefault(key, most)
    return node
