"""The patch that releases what has a place: a job's templates with its way, or a pod's gate removed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.cluster.admission.inject import release
from strata.cluster.api import jobs
from strata.cluster.api.actions import Patch
from strata.cluster.api.affinity import on_nodes
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.placement_annotation import (
    CHECKPOINT,
    FIRST,
    GANG,
    MANAGED,
    PER_JOB,
    PLACEMENT,
    encode,
)
from strata.cluster.controller.pending import PendingWorkload
from strata.cluster.scheduling.snapshot import Placement

OFFER: Final = PREFIX + "offer"
"""Annotation of a job: what it could have instead of what it was written for, if it consents."""

_OPTIONAL: Final = (FIRST, PER_JOB, CHECKPOINT)
"""Annotations of a template that are absent where they are empty."""


def release_patch(workload: PendingWorkload, placement: Placement, checkpoint: str) -> Patch:
    """Return the patch by which a job or a gated pod goes to its place.

    checkpoint: what a job goes on from, empty where there is nothing. It fails where the object has changed.
    """
    if workload.is_pod:
        body = jobs.merge_patch(workload.obj, release(workload.obj, placement))
        return Patch(workload.ref, body, resource_version=workload.version)
    nodes, old = placement.nodes, workload.before.nodes if workload.before else ()
    of_all = {PLACEMENT: encode(placement), GANG: workload.gang, CHECKPOINT: checkpoint}
    templates = [
        _template(workload, pods, of_all, nodes=nodes, old=old) if pods.has_devices else pods.template
        for pods in jobs.pod_sets(workload.obj)
    ]
    body = jobs.with_templates(workload.obj, templates)
    _merge(body, jobs.suspension(workload.obj, wanted=False))
    if OFFER in workload.annotations:
        _merge(body, {"metadata": {"annotations": {OFFER: None}}})
    return Patch(workload.ref, body, resource_version=workload.version)


def _template(
    workload: PendingWorkload,
    pods: jobs.PodSet,
    of_all: Mapping[str, str],
    *,
    nodes: Sequence[str],
    old: Sequence[str],
) -> dict[str, Any]:
    """Return a template with its way: only what the API server lets be changed while a job is suspended.

    The rest the webhook adds to each pod, by the annotation, and gives it up with the pod.
    """
    template: dict[str, Any] = copy.deepcopy(dict(pods.template))
    metadata, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    asked = {key: value for key, value in workload.annotations.items() if key.startswith(PREFIX) and key != OFFER}
    of_set = {FIRST: str(pods.first or ""), PER_JOB: str(pods.per_job or "")}
    annotations = {**asked, **(metadata.get("annotations") or {}), **of_all, **of_set}
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED: "true"}
    metadata["annotations"] = {key: value for key, value in annotations.items() if value or key not in _OPTIONAL}
    spec["affinity"] = on_nodes(spec, nodes, instead_of=old)
    return template


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(into.get(key), dict) and isinstance(value, Mapping):
            _merge(into[key], value)
        else:
            into[key] = value
