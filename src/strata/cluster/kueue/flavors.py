"""What Kueue is set up with: a flavor for each kind of devices, and the check that has workloads routed.

References
----------
kubernetes-sigs/kueue apis/kueue/v1beta2/{resourceflavor,admissioncheck}_types.go; read at ff69552e (0.19).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from strata.cluster.api.kinds import Object, ObjectKind
from strata.cluster.scheduling.profile import RuntimeProfile

CONTROLLER: Final = "ai.compute/router"
"""`controllerName` of admission checks that are ours to answer."""
MOST: Final = 8
"""Tolerations and labels a flavor or an update may have."""

RESOURCE_FLAVOR: Final = ObjectKind(
    "kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", is_namespaced=False
)


def flavor_name(profile: RuntimeProfile) -> str:
    """Return the flavor of a profile's devices: profiles of other frameworks for the same devices share it."""
    return re.sub(r"[^a-z0-9]+", "-", f"{profile.vendor} {profile.resource.rpartition('/')[2]}".lower())


def flavors(profiles: Iterable[RuntimeProfile]) -> list[Object]:
    """Return one ResourceFlavor for each kind of devices: the labels all its profiles ask for, all tolerations."""
    groups: dict[str, list[RuntimeProfile]] = {}
    for profile in profiles:
        groups.setdefault(flavor_name(profile), []).append(profile)
    return [_object(name, some) for name, some in sorted(groups.items())]


def _object(name: str, profiles: Sequence[RuntimeProfile]) -> Object:
    common = set.intersection(*(set(profile.node_selector.items()) for profile in profiles))
    tolerations = each_once(dict(toleration) for profile in profiles for toleration in profile.tolerations)
    spec: dict[str, Any] = {}
    if common:
        spec["nodeLabels"] = dict(sorted(common)[:MOST])
    if tolerations:
        spec["tolerations"] = tolerations[:MOST]
    return {
        "apiVersion": RESOURCE_FLAVOR.api_version,
        "kind": RESOURCE_FLAVOR.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def each_once(some: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return mappings in their order, equal ones once."""
    distinct: list[dict[str, str]] = []
    for mapping in some:
        if mapping not in distinct:
            distinct.append(mapping)
    return distinct
