"""Who waits for a place: suspended jobs of ours, and pods that were let in behind a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from strata.cluster.api.actions import Ref, ref_of
from strata.cluster.api.jobs import Job
from strata.cluster.api.kinds import POD, Object, annotations_of, meta, version_of
from strata.cluster.api.placement_annotation import gang_of
from strata.cluster.api.pod_claims import CLAIM, claim_of_gated, job_claim
from strata.cluster.scheduling.claim import Claim
from strata.errors import BadFile


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """One job or pod without a place. claim: None where it cannot be read; `fault` then says why.

    gang: its key in the cache. version: of `obj`. job: None for a pod.
    of: the gang whose places a gated pod may have, empty for one that came alone.
    since: when it was made, as the API server writes it, for the order.
    asks: the same for all that ask for the same, whoever they are.
    """

    gang: str
    ref: Ref
    obj: Object
    version: str
    since: str
    annotations: Mapping[str, str]
    job: Job | None = None
    claim: Claim | None = None
    fault: str = ""
    asks: str = ""
    of: str = ""


def pending_workloads(
    jobs: Mapping[str, Job],
    gated: Mapping[str, Object],
    claims: Mapping[str, Object],
    known: Mapping[str, PendingWorkload],
) -> list[PendingWorkload]:
    """Return the jobs of ours that are suspended and not over, and the pods behind our gate, in their order.

    Pods ask for what was injected, which cannot be changed any more. known: of before, by gang; what has not
    changed is not read again.
    """
    workloads = []
    for job in jobs.values():
        if job.is_ours and job.is_suspended and not job.is_finished:
            old = known.get(job.gang)
            if old is None or old.job is not job or _names_claim(job):  # the claim may be another by now
                unread = PendingWorkload(job.gang, job.ref, job.obj, job.version, job.since, job.annotations, job)
                old = _read(unread, partial(job_claim, job, claims))
            workloads.append(old)
    for pod in gated.values():
        gang = gang_of_gated(pod)
        old = known.get(gang)
        if old is None or old.obj is not pod:
            since, annotations = str(meta(pod).get("creationTimestamp") or ""), annotations_of(pod)
            of = gang_of(pod)
            unread = PendingWorkload(gang, ref_of(pod, POD), pod, version_of(pod), since, annotations)
            old = _read(replace(unread, of="" if of == gang else of), partial(claim_of_gated, pod))
        workloads.append(old)
    # Priority first, then age, then name, so that the order never depends on the API server's.
    return sorted(workloads, key=lambda each: (-(each.claim.priority if each.claim else 0), each.since, each.gang))


def gang_of_gated(pod: Object) -> str:
    """Return what a gated pod is called in the cache while it waits: by itself, whatever job made it."""
    gang = gang_of(pod)
    return gang if gang.startswith("Pod/") else str(ref_of(pod, POD))


def _read(workload: PendingWorkload, read: Callable[[], Claim]) -> PendingWorkload:
    try:
        claim = read()
    except BadFile as error:
        return replace(workload, fault=str(error))
    return replace(workload, claim=claim, asks=str(replace(claim, name="", namespace="", priority=0)))


def _names_claim(job: Job) -> bool:
    return any(
        CLAIM in annotations
        for annotations in (job.annotations, *(annotations_of(pods.template) for pods in job.pod_sets))
    )
