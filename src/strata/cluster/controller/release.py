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
    if (job := workload.job) is None:
        after = release(workload.obj, placement)
    else:
        of_all = {PLACEMENT: encode(placement), GANG: workload.gang, CHECKPOINT: checkpoint}
        nodes, old = placement.nodes, job.placement.nodes if job.placement else ()
        templates = [
            _template(job, pods, of_all, nodes=nodes, old=old) if pods.has_devices else pods.template
            for pods in job.pod_sets
        ]
        after = jobs.changed(job.obj, templates, is_suspended=False)
        after.get("metadata", {}).get("annotations", {}).pop(OFFER, None)
    return Patch(workload.ref, jobs.merge_patch(workload.obj, after), resource_version=workload.version)


def _template(
    job: jobs.Job,
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
    requested = {key: value for key, value in job.annotations.items() if key.startswith(PREFIX) and key != OFFER}
    of_set = {FIRST: str(pods.first or ""), PER_JOB: str(pods.per_job or "")}
    annotations = {**requested, **(metadata.get("annotations") or {}), **of_all, **of_set}
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED: "true"}
    metadata["annotations"] = {key: value for key, value in annotations.items() if value or key not in _OPTIONAL}
    spec["affinity"] = on_nodes(spec, nodes, instead_of=old)
    return template
