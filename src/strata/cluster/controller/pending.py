"""Who waits for a place: suspended jobs of ours, and pods that were let in behind a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strata.cluster.api.actions import Ref, ref_of
from strata.cluster.api.jobs import Job, pod_sets
from strata.cluster.api.kinds import POD, Object, annotations_of, meta, version_of
from strata.cluster.api.placement_annotation import GANG
from strata.cluster.api.pod_claims import CLAIM, claim_of_gated, job_claim
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.snapshot import Placement
from strata.errors import BadFile


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """One job or pod without a place. claim: None where it cannot be read; `fault` then says why.

    gang: its key in the cache. of: the gang whose places a gated pod may have, empty for one that came alone.
    version: of `obj`. before: where a job was placed the last time. names_claim: a ComputeClaim says what it asks.
    since: when it was made, as the API server writes it, for the order.
    asks: the same for all that ask for the same, whoever they are.
    """

    gang: str
    ref: Ref
    obj: Object
    claim: Claim | None
    annotations: Mapping[str, str]
    version: str
    fault: str = ""
    since: str = ""
    asks: str = ""
    of: str = ""
    before: Placement | None = None
    names_claim: bool = False

    @property
    def is_pod(self) -> bool:
        """Whether it is a gated pod and not a job."""
        return self.ref.kind == POD


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
            if old is None or old.obj is not job.obj or old.names_claim:  # the claim may be another by now
                old = _workload(job.gang, job.ref, job.obj, lambda obj: job_claim(obj, claims))
                objects = (job.obj, *(pod_set.template for pod_set in pod_sets(job.obj)))
                names_claim = any(CLAIM in annotations_of(obj) for obj in objects)
                old = replace(old, before=job.placement, names_claim=names_claim)
            workloads.append(old)
    for pod in gated.values():
        gang = gang_of_gated(pod)
        old = known.get(gang)
        if old is None or old.obj is not pod:
            old = _workload(gang, ref_of(pod, POD), pod, claim_of_gated)
            of = old.annotations.get(GANG) or gang
            old = old if of == gang else replace(old, of=of)
        workloads.append(old)
    # Priority first, then age, then name, so that the order never depends on the API server's.
    return sorted(workloads, key=lambda each: (-(each.claim.priority if each.claim else 0), each.since, each.gang))


def gang_of_gated(pod: Object) -> str:
    """Return what a gated pod is called in the cache while it waits: by itself, whatever job made it."""
    annotated_gang = annotations_of(pod).get(GANG, "")
    return annotated_gang if annotated_gang.startswith("Pod/") else str(ref_of(pod, POD))


def _workload(gang: str, ref: Ref, obj: Object, read: Callable[[Object], Claim]) -> PendingWorkload:
    since = str(meta(obj).get("creationTimestamp") or "")
    unread = PendingWorkload(gang, ref, obj, None, annotations_of(obj), version_of(obj), since=since)
    try:
        claim = read(obj)
    except BadFile as error:
        return replace(unread, fault=str(error))
    return replace(unread, claim=claim, asks=str(replace(claim, name="", namespace="", priority=0)))
