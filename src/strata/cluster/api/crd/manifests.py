"""The three custom resource definitions, made from `models.py`, and the bundled profiles as objects."""

from __future__ import annotations

from typing import Any, Final

from strata.cluster.api.crd import models
from strata.cluster.api.crd.runtime_profile import profile_object
from strata.cluster.api.crd.structural import structural
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, CRD, RUNTIME_PROFILE, Object, ObjectKind
from strata.cluster.api.profile_schema import bundled_profiles
from strata.files import FileModel

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
            models.NodeSpec,
            models.NodeStatus,
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
            models.RuntimeProfileSpec,
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
            models.ClaimSpec,
            models.ClaimStatus,
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
        **({} if spec is models.NodeSpec else {"required": ["spec"]}),
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
