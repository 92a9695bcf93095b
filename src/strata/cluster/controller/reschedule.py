"""Who has a place that came to nothing, and could have another: its pod is made anew, or its job routed anew."""

from __future__ import annotations

from collections.abc import Iterator

from strata.cluster.api import jobs
from strata.cluster.api.actions import Action, Delete, Event, Patch, ref_of
from strata.cluster.api.crd.compute_claim import pascal
from strata.cluster.api.jobs import is_managed, is_queued
from strata.cluster.api.kinds import POD, Object, annotations_of, meta
from strata.cluster.api.pod_claims import CLAIM, claim_of_pod, job_claim, named_claim
from strata.cluster.cache.cache import Snapshot
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index
from strata.decision import Reason
from strata.errors import BadFile


def recreated(snapshot: Snapshot, index: Index, pod: Object, profile: str) -> Iterator[Action]:
    """Yield what has a pod's owner make another, where it has one and there is room."""
    if not any(owner.get("controller") for owner in meta(pod).get("ownerReferences") or ()):
        return
    try:
        claim = named_claim(snapshot.claims, pod, "Pod") if CLAIM in annotations_of(pod) else claim_of_pod(pod)
    except BadFile:  # a claim that went, or was changed, meanwhile: another pod would be refused
        return
    if evaluate(index, claim, snapshot.profiles).choice.placement is not None:
        ref = ref_of(pod, POD)
        reason = Reason("recreated", ref.name, {"profile": profile})
        yield Event(ref, pascal(reason.token), str(reason))
        yield Delete(ref)


def held_back(snapshot: Snapshot, index: Index, gang: str) -> Iterator[Action]:
    """Yield what suspends a job of whose pods none can be bound, where there is room: it is routed anew then.

    With a pod that is bound it would lose work; Kueue's jobs are Kueue's to hold back.
    """
    job = snapshot.jobs.get(gang)
    is_ours = job is not None and is_managed(job) and not is_queued(job)
    if (
        job is None
        or not is_ours
        or jobs.is_suspended(job)
        or not snapshot.unbound.keys() >= set(snapshot.pods.get(gang, ()))
    ):
        return
    try:
        claim = job_claim(job, snapshot.claims)
    except BadFile:  # it would wait, and be told so, where it may still get its place here
        return
    if evaluate(index, claim, snapshot.profiles).choice.placement is not None:
        kind = jobs.kind_of(job)
        assert kind is not None, "only kinds with suspend are kept"
        ref, reason = ref_of(job, kind), Reason("placement-lost", meta(job)["name"], {})
        version = str(meta(job).get("resourceVersion") or "")
        yield Patch(ref, jobs.suspension(job, wanted=True), resource_version=version)
        yield Event(ref, pascal(reason.token), str(reason))
