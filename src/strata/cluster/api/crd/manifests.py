"""The three custom resource definitions, made from their schemas, and the bundled profiles as objects.

JSON schemas go in as API servers take them, structural OpenAPI v3. What such a schema may be is said on
kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions". In short: no references, no defaults of
ours, a type at every node and none inside a choice, properties or additionalProperties but not both, bounds as
OpenAPI 3.0 has them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.crd.claim_schema import ClaimSpec, ClaimStatus
from strata.cluster.api.crd.node_schema import NodeSpec, NodeStatus
from strata.cluster.api.crd.profile_schema import RuntimeProfileSpec
from strata.cluster.api.crd.runtime_profile import profile_object
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, CRD, RUNTIME_PROFILE, Object, ObjectKind
from strata.cluster.api.profile_schema import bundled_profiles
from strata.files import FileModel

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

Column = tuple[str, str, str]
"""Name, type and JSON path of what a list shows of each object."""

_AGE: Final[Column] = ("Age", "date", ".metadata.creationTimestamp")


def crds() -> list[Object]:
    """Return the definitions of ComputeNode, RuntimeProfile and ComputeClaim."""
    return [
        _crd(
            COMPUTE_NODE,
            "cnode",
            "A node's accelerators, as its agent found them.",
            NodeSpec,
            NodeStatus,
            [
                ("Devices", "integer", ".status.summary.devices"),
                ("Model", "string", ".status.summary.model"),
                ("ACU", "number", ".status.summary.acu"),
                ("Health", "number", ".status.summary.health"),
                _AGE,
            ],
        ),
        _crd(
            RUNTIME_PROFILE,
            "rtp",
            "What a pod needs to run on a kind of accelerator.",
            RuntimeProfileSpec,
            None,
            [
                ("Framework", "string", ".spec.framework"),
                ("Vendor", "string", ".spec.vendor"),
                ("Resource", "string", ".spec.resource"),
                ("Tried", "boolean", ".spec.wasTried"),
            ],
        ),
        _crd(
            COMPUTE_CLAIM,
            "cclaim",
            "What a job asks for, where it goes, and why no node else.",
            ClaimSpec,
            ClaimStatus,
            [
                ("Routed", "string", '.status.conditions[?(@.type=="Routed")].status'),
                ("Profile", "string", ".status.profile"),
                ("Model", "string", ".status.model"),
                ("Devices", "integer", ".status.devices"),
                _AGE,
            ],
        ),
    ]


def profiles() -> list[Object]:
    """Return the bundled runtime profiles as objects."""
    return [profile_object(profile) for profile in bundled_profiles()]


def _crd(
    kind: ObjectKind,
    short: str,
    description: str,
    spec: type[FileModel],
    status: type[FileModel] | None,
    columns: list[Column],
) -> Object:
    schema: dict[str, Any] = {
        "description": description,
        "type": "object",
        # A node is all status, and its agent creates it with nothing else.
        **({} if spec is NodeSpec else {"required": ["spec"]}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(spec.model_json_schema(by_alias=True)),
            **({} if status is None else {"status": structural(status.model_json_schema(by_alias=True))}),
        },
    }
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns
        ],
        **({} if status is None else {"subresources": {"status": {}}}),
    }
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.is_namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [short],
                "categories": ["strata"],
            },
            "versions": [version],
        },
    }


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
