"""Who has a place that came to nothing, and could have another: its pod is made anew, or its job routed anew."""

from __future__ import annotations

from collections.abc import Sequence

from strata.cluster.api.actions import Action, Delete, Patch, event, ref_of
from strata.cluster.api.jobs import suspension
from strata.cluster.api.kinds import POD, Object, annotations_of, meta
from strata.cluster.api.pod_claims import CLAIM, claim_of_pod, job_claim, named_claim
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index
from strata.decision import Reason
from strata.errors import BadFile


def recreated(snapshot: ClusterSnapshot, index: Index, pod: Object, profile: str) -> Sequence[Action]:
    """Return what has a pod's owner make another, where it has one and there is room."""
    if not any(owner.get("controller") for owner in meta(pod).get("ownerReferences") or ()):
        return ()
    try:
        claim = named_claim(snapshot.claims, pod, "Pod") if CLAIM in annotations_of(pod) else claim_of_pod(pod)
    except BadFile:  # a claim that went, or was changed, meanwhile: another pod would be refused
        return ()
    if evaluate(index, claim, snapshot.profiles).choice.placement is None:
        return ()
    ref = ref_of(pod, POD)
    return event(ref, Reason("recreated", ref.name, {"profile": profile})), Delete(ref)


def held_back(snapshot: ClusterSnapshot, index: Index, gang: str) -> Sequence[Action]:
    """Return what suspends a job of whose pods none can be bound, where there is room: it is routed anew then.

    With a pod that is bound it would lose work; Kueue's jobs are Kueue's to hold back.
    """
    job = snapshot.jobs.get(gang)
    if job is None or not job.is_ours or job.is_suspended:
        return ()
    if not snapshot.unbound.keys() >= set(snapshot.pods.get(gang, ())):
        return ()
    try:
        claim = job_claim(job, snapshot.claims)
    except BadFile:  # it would wait, and be told so, where it may still get its place here
        return ()
    if evaluate(index, claim, snapshot.profiles).choice.placement is None:
        return ()
    hold = Patch(job.ref, suspension(job.obj, wanted=True), resource_version=job.version)
    return hold, event(job.ref, Reason("placement-lost", job.ref.name, {}))
