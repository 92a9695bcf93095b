"""What Kueue is set up with: a flavor for each kind of devices, and the check that has workloads routed.

A flavor has a label of its own, by which a workload can be kept off it (`steering.py`). Kueue asks for that label
on the nodes of what it admits, so the controller puts it on those that have the flavor's devices.

References
----------
kubernetes-sigs/kueue apis/kueue/v1beta2/{resourceflavor,admissioncheck}_types.go; read at ff69552e (0.19).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.actions import Patch, ref_of
from strata.cluster.api.kinds import NODE, RESOURCE_FLAVOR, Object, labels_of
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.fleet.fingerprint import Fingerprint

CONTROLLER: Final = "ai.compute/router"
"""`controllerName` of admission checks that are ours to answer."""
MOST: Final = 8
"""Tolerations and labels a flavor or an update may have."""

FLAVOR_LABEL: Final = "flavor.ai.compute/"
"""Labels of nodes and flavors begin so and end in a flavor's name; the value is "true"."""


def flavor_name(profile: RuntimeProfile) -> str:
    """Return the flavor of a profile's devices: profiles of other frameworks for the same devices share it."""
    return re.sub(r"[^a-z0-9]+", "-", f"{profile.vendor} {profile.resource.rpartition('/')[2]}".lower())


def flavors(profiles: Iterable[RuntimeProfile]) -> list[Object]:
    """Return a ResourceFlavor for each kind of devices: its label, those its profiles share, all tolerations."""
    groups: dict[str, list[RuntimeProfile]] = {}
    for profile in profiles:
        groups.setdefault(flavor_name(profile), []).append(profile)
    return [_object(name, some) for name, some in sorted(groups.items())]


def _object(name: str, profiles: Sequence[RuntimeProfile]) -> Object:
    common = sorted(set.intersection(*(set(profile.node_selector.items()) for profile in profiles)))
    tolerations = each_once(dict(toleration) for profile in profiles for toleration in profile.tolerations)
    spec: dict[str, Any] = {"nodeLabels": dict([(FLAVOR_LABEL + name, "true"), *common][:MOST])}
    if tolerations:
        spec["tolerations"] = tolerations[:MOST]
    return {
        "apiVersion": RESOURCE_FLAVOR.api_version,
        "kind": RESOURCE_FLAVOR.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def node_labels(
    nodes: Mapping[str, Object], fingerprints: Mapping[str, Fingerprint], profiles: Sequence[RuntimeProfile]
) -> Iterator[Patch]:
    """Yield what gives each node the labels of its devices' flavors, and takes away those of others."""
    for name, fingerprint in fingerprints.items():
        if name not in nodes:
            continue
        models = {device.model for device in fingerprint.devices}
        flavors = {flavor_name(profile) for profile in profiles if models & set(profile.models)}
        wanted = {FLAVOR_LABEL + flavor for flavor in flavors}
        present = {key for key in labels_of(nodes[name]) if key.startswith(FLAVOR_LABEL)}
        if wanted != present:
            labels = {key: "true" if key in wanted else None for key in sorted(wanted | present)}
            yield Patch(ref_of(nodes[name], NODE), {"metadata": {"labels": labels}})


def each_once(some: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return mappings in their order, equal ones once."""
    distinct: list[dict[str, str]] = []
    for mapping in some:
        if mapping not in distinct:
            distinct.append(mapping)
    return distinct
