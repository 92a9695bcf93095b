"""Who has a place that came to nothing, and could have another: its pod is made anew, or its job routed anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.cluster.api.actions import Action, Delete, Patch, event, ref_of
from strata.cluster.api.jobs import suspension
from strata.cluster.api.kinds import POD, Object, annotations_of, meta
from strata.cluster.api.placement_annotation import INJECTED, gang_of
from strata.cluster.api.pod_claims import CLAIM, claim_of_pod, job_claim, named_claim
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index
from strata.decision import Reason
from strata.errors import BadFile


@dataclass
class Stuck:
    """Since when pods wait for kube-scheduler where they were placed.

    Webhooks and the controller decide apart, and learn from each other a moment late; kube-scheduler counts
    devices, and leaves who came second where they are for ever.
    """

    _since_s: dict[str, float] = field(default_factory=dict)

    def reschedule(
        self, snapshot: ClusterSnapshot, index: Index, *, now_s: float, after_s: float
    ) -> Sequence[Action]:
        """Have one pod recreated, or one job routed again, that was placed where somebody else was quicker."""
        self._since_s = {key: self._since_s.get(key, now_s) for key in snapshot.unbound}
        for key, since_s in self._since_s.items():
            if now_s - since_s >= after_s:
                self._since_s[key] = now_s
                pod = snapshot.unbound[key]
                gang = gang_of(pod)
                if gang.startswith("Pod/"):
                    actions = recreated(snapshot, index, pod, annotations_of(pod).get(INJECTED, ""))
                else:
                    actions = held_back(snapshot, index, gang)
                if actions:
                    return actions
        return ()


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
