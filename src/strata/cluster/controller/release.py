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
from strata.cluster.api.kinds import annotations_of, meta
from strata.cluster.api.placement_annotation import (
    CHECKPOINT,
    FIRST,
    GANG,
    MANAGED,
    PER_JOB,
    PLACEMENT,
    encode,
    nodes_of,
)
from strata.cluster.cache.cache import job_placement
from strata.cluster.controller.pending import PendingWorkload
from strata.cluster.scheduling.snapshot import Placement
from strata.errors import BadFile

OFFER: Final = PREFIX + "offer"
"""Annotation of a job: what it could have instead of what it was written for, if it consents."""


def release_patch(workload: PendingWorkload, placement: Placement, checkpoint: str) -> Patch:
    """Return the patch by which a job or a gated pod goes to its place.

    checkpoint: what a job goes on from, empty where there is nothing. It fails where the object has changed.
    """
    version = str(meta(workload.obj).get("resourceVersion") or "")
    if workload.ref.kind.kind == "Pod":
        body = jobs.merge_patch(workload.obj, release(workload.obj, placement))
        return Patch(workload.ref, body, resource_version=version)
    try:
        before = job_placement(workload.obj)
    except BadFile:  # somebody wrote into it; it is written anew
        before = None
    old = nodes_of(before.pods) if before else ()
    templates = [
        _template(workload, pods, placement, old=old, checkpoint=checkpoint) if pods.has_devices else pods.template
        for pods in jobs.pod_sets(workload.obj)
    ]
    body = jobs.with_templates(workload.obj, templates)
    _merge(body, jobs.suspension(workload.obj, wanted=False))
    if OFFER in annotations_of(workload.obj):
        _merge(body, {"metadata": {"annotations": {OFFER: None}}})
    return Patch(workload.ref, body, resource_version=version)


def _template(
    workload: PendingWorkload,
    pods: jobs.PodSet,
    placement: Placement,
    *,
    old: Sequence[str],
    checkpoint: str,
) -> dict[str, Any]:
    """Return a template with its way: only what the API server lets be changed while a job is suspended.

    The rest the webhook adds to each pod, by the annotation, and gives it up with the pod.
    """
    template: dict[str, Any] = copy.deepcopy(dict(pods.template))
    metadata = template.setdefault("metadata", {})
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    labels[MANAGED] = "true"
    for key, value in annotations_of(workload.obj).items():
        if key.startswith(PREFIX) and key != OFFER:
            annotations.setdefault(key, value)
    annotations |= {PLACEMENT: encode(placement), GANG: workload.gang}
    optional_annotations: Mapping[str, str] = {
        FIRST: str(pods.first) if pods.first else "",
        PER_JOB: str(pods.per_job) if pods.per_job else "",
        CHECKPOINT: checkpoint,
    }
    for key, value in optional_annotations.items():
        annotations.pop(key, None)
        if value:
            annotations[key] = value
    metadata["labels"], metadata["annotations"] = labels, annotations
    spec = template.setdefault("spec", {})
    spec["affinity"] = on_nodes(spec, nodes_of(placement.pods), instead_of=old)
    return template


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(into.get(key), dict) and isinstance(value, Mapping):
            _merge(into[key], value)
        else:
            into[key] = value
