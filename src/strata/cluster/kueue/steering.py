"""Which flavors Kueue is not to try for a workload, since their cards have no room for it.

Kueue takes the first flavor that has quota, and a check that says Retry gets the same flavor again: it knows
nothing of devices. What it does look at is the node affinity of the workload's pods against a flavor's labels. So
a workload without quota is kept off the flavors that have no room, by expressions in the Workload alone: its job
never sees them, and they go as soon as there is room, or there is none anywhere.

References
----------
kubernetes-sigs/kueue pkg/scheduler/flavorassigner/flavorassigner.go (checkFlavorForPodSets: only a flavor's own
labels count), pkg/util/equality/podset.go (affinity is not compared with the job's); read at ff69552e (0.19).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.actions import Patch, ref_of
from strata.cluster.api.affinity import keeping_off, kept_off
from strata.cluster.api.kinds import WORKLOAD, Object, meta, version_of
from strata.cluster.kueue.flavors import FLAVOR_LABEL, flavor_name
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile

VARIANT: Final = "kueue.x-k8s.io/workload-allowed-resource-flavors"
"""Annotation of a variant (Kueue's ConcurrentAdmission): the flavors it may have, others are other variants'."""


def full_flavors(index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]) -> frozenset[str]:
    """Return the flavors whose cards have no room for a gang; none where no flavor has any."""
    by_flavor: dict[str, list[RuntimeProfile]] = {}
    for profile in profiles:
        by_flavor.setdefault(flavor_name(profile), []).append(profile)
    full = {flavor for flavor, some in by_flavor.items() if evaluate(index, claim, some).choice.placement is None}
    return frozenset(full) if full < by_flavor.keys() else frozenset()


def avoided(workload: Object) -> frozenset[str]:
    """Return the flavors a workload is kept off by us."""
    pod_sets = (workload.get("spec") or {}).get("podSets") or ()
    specs = ((pod_set.get("template") or {}).get("spec") or {} for pod_set in pod_sets)
    return frozenset(key.removeprefix(FLAVOR_LABEL) for spec in specs for key in kept_off(spec, FLAVOR_LABEL))


def steered(workload: Object, flavors: Collection[str], pod_sets: Collection[str]) -> Patch:
    """Return the patch that keeps the named pod sets of a workload off flavors, and off no others by us.

    The list goes whole, so not over a newer one. Kueue takes it from workloads without quota only.
    """
    keys = sorted(FLAVOR_LABEL + flavor for flavor in flavors)
    after = []
    for pod_set in (workload.get("spec") or {}).get("podSets") or ():
        changed: dict[str, Any] = copy.deepcopy(dict(pod_set))
        if changed.get("name", "main") in pod_sets:
            spec: dict[str, Any] = changed.setdefault("template", {}).setdefault("spec", {})
            affinity = keeping_off(spec, keys, prefix=FLAVOR_LABEL)
            if affinity:
                spec["affinity"] = affinity
            else:
                spec.pop("affinity", None)
        after.append(changed)
    return Patch(ref_of(workload, WORKLOAD), {"spec": {"podSets": after}}, resource_version=version_of(workload))


def may_be_steered(workload: Object) -> bool:
    """Return whether Kueue chooses among flavors for a workload: a variant has its own."""
    annotations: Mapping[str, Any] = meta(workload).get("annotations") or {}
    return VARIANT not in annotations
