"""What the controller wants done: jobs that wait are routed and let go, or told why not. Pure but for its memory.

One `step` looks at everything that waits, in order of priority and age; what it places is taken at once, so that
two jobs of one step never share a device. A job that fits nowhere does not hold back smaller ones behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.cluster.admission.inject import release
from strata.cluster.api import jobs
from strata.cluster.api.actions import Action, Event, Patch, ref_of
from strata.cluster.api.affinity import on_nodes
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.crd.compute_claim import pascal
from strata.cluster.api.jobs import is_managed
from strata.cluster.api.kinds import annotations_of, meta
from strata.cluster.api.placement_annotation import (
    CHECKPOINT,
    FIRST,
    GANG,
    INJECTED,
    MANAGED,
    PER_JOB,
    PLACEMENT,
    encode,
    nodes_of,
)  # fmt: skip
from strata.cluster.cache.cache import ClusterCache, job_placement
from strata.cluster.controller.pending import PendingWorkload, pending_jobs, pending_pods
from strata.cluster.controller.reschedule import held_back, recreated
from strata.cluster.controller.status_writer import claim_of_job, just, offer_of, says_routed
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.explain import decide
from strata.cluster.scheduling.router import Choice, choose
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.decision import Decision, Reason
from strata.errors import BadFile, StrataError

OFFER: Final = PREFIX + "offer"
"""Annotation of a job: what it could have instead of what it was written for, if it consents."""
CHECKPOINT_DIR: Final = PREFIX + "checkpoint-dir"
"""Annotation of a job: the folder it saves to, by the path its pods and the controller know it under."""


@dataclass(frozen=True, slots=True)
class Policy:
    """explain_every_s: how often a job that still fits nowhere is told every node's reason anew, but where many
    wait, only every explain_each_s one of them: at 500 nodes it takes a tenth of that. again_s: until a release
    that the API server refused is tried again. settle_every_s: how often claims of jobs that run are looked at.
    place_s, explain_s: how long one step may take to place, and until it explains nothing more.

    assume_s: how long a place is held for a job that was let go and does not show it. elsewhere_after_s: how long
    a pod waits behind its gate, or for kube-scheduler, before its owner has to make another, where there is room.
    """

    explain_every_s: float = 30.0
    explain_each_s: float = 0.3
    again_s: float = 30.0
    settle_every_s: float = 30.0
    place_s: float = 5.0
    explain_s: float = 0.25
    assume_s: float = 30.0
    elsewhere_after_s: float = 60.0


@dataclass(slots=True)
class _Told:
    """What a waiting object was told last, and when; when it was seen first.

    refused: what the API server said to its release, which is tried again at `again_s`.
    """

    since_s: float
    at_s: float = float("-inf")
    what: tuple[Any, ...] = ()
    refused: str = ""
    again_s: float = float("-inf")


@dataclass
class Controller:
    """checkpoint_of: the newest complete checkpoint in a folder, empty where there is none; raises StrataError.

    given: the places of gangs that gated pods of theirs got and do not show yet, by the pod, and until when.
    """

    policy: Policy = field(default_factory=Policy)
    checkpoint_of: Callable[[str], str] = lambda folder: ""
    given: dict[str, tuple[str, PodPlace, float]] = field(default_factory=dict)
    _told: dict[str, _Told] = field(default_factory=dict)
    _stuck: dict[str, float] = field(default_factory=dict)
    _known: dict[str, PendingWorkload] = field(default_factory=dict)
    _hopeless: dict[str, Choice] = field(default_factory=dict)
    _grown: int = -1
    _let_go: dict[str, float] = field(default_factory=dict)
    _looked_s: float = float("-inf")

    @property
    def waiting(self) -> int:
        """How many waited at the last step."""
        return len(self._told)

    def step(
        self, cache: ClusterCache, now_s: float, *, stamp: str, spent_s: Callable[[], float] = lambda: 0.0
    ) -> Iterator[Action | None]:
        """Yield what to do now, and None between two jobs. stamp: the time as the API server writes it.

        Between two of them the book may be told of anything. Actions on one job come in order, and the later ones
        mean nothing if the first fails. spent_s: since the step was begun; what is left then the next one finds.
        """
        cache.expire(now_s)
        found = [*pending_jobs(cache.jobs, cache.claims, self._known), *pending_pods(cache.gated, self._known)]
        everyone = sorted(found, key=lambda one: one.order)
        self._known = {one.gang: one for one in everyone}
        self.given = {gang: one for gang, one in self.given.items() if gang in self._known and now_s < one[2]}
        self._told = {one.gang: self._told.get(one.gang) or _Told(now_s) for one in everyone}
        left: list[tuple[PendingWorkload, Choice]] = []
        for one in everyone:
            yield None
            if spent_s() > self.policy.place_s:
                return
            if _is_current(cache, one):
                choice = yield from self._place(cache, one, now_s, stamp)
                if choice is not None:
                    left.append((one, choice))
        every_s = max(self.policy.explain_every_s, self.policy.explain_each_s * len(everyone))
        for one, choice in left:
            yield None
            if spent_s() > self.policy.explain_s:
                return
            if _is_current(cache, one):
                yield from self._explain(cache, one, choice, now_s, stamp, every_s=every_s)
        yield from self._free(cache, now_s)
        yield from self._settle(cache, now_s, stamp)

    def refused(self, gang: str, message: str, now_s: float) -> None:
        """Take that the API server refuses to let something go: it is told so, and it is tried again later."""
        if told := self._told.get(gang):
            told.refused, told.again_s = message, now_s + self.policy.again_s

    def _place(
        self, cache: ClusterCache, one: PendingWorkload, now_s: float, stamp: str
    ) -> Generator[Action | None, None, Choice | None]:
        """Let one go where there is room for it; return why not, None where it is not to be told."""
        told = self._told[one.gang]
        if cache.is_assumed(one.gang):
            return None  # it was let go, and the watch lags; a second answer would take the first one's place
        if one.claim is None:
            reason = Reason("claim-unreadable", one.ref.name, {"why": one.fault})
            yield from self._tell(cache, one, told, now_s, just(reason), stamp)
            return None
        if told.refused:
            reason = Reason("release-refused", one.ref.name, {"why": told.refused})
            yield from self._tell(cache, one, told, now_s, just(reason), stamp)
            told.refused = ""
        if now_s < told.again_s:
            return None
        if one.ref.kind.kind != "Pod" and (reset := jobs.start_reset(one.obj)):
            if jobs.is_quiet(one.obj):
                yield Patch(one.ref, reset, "status")
            return None
        if one.of:
            yield from self._give(cache, one, now_s)
            return None
        choice = self._choose(cache, one, one.claim)
        if choice.placement is None:
            return choice
        decision = decide(cache.index, one.claim, cache.profiles)
        placement = decision.choice
        assert placement is not None, "it was just found"
        cache.assume(one.gang, placement, until_s=now_s + self.policy.assume_s)
        self._let_go[one.gang] = now_s
        checkpoint, trouble = self._checkpoint(one)
        yield self._release(one, placement, checkpoint)
        if trouble is not None:
            yield Event(one.ref, pascal(trouble.token), str(trouble), is_warning=True)
        yield from self._tell(cache, one, told, now_s, decision, stamp)

        return None

    def _give(self, cache: ClusterCache, one: PendingWorkload, now_s: float) -> Iterator[Action]:
        """Let a pod of a gang go to a place of the gang that no other pod has; nothing numbers its pods."""
        placement, free = cache.placement_of(one.of), cache.free_places(one.of)
        for gang, place, until_s in self.given.values():
            if gang == one.of and now_s < until_s and place in free:
                free.remove(place)
        if placement is not None and free and one.gang not in self.given:
            self.given[one.gang] = one.of, free[0], now_s + self.policy.assume_s
            yield self._release(one, replace(placement, pods=(free[0],)), "")

    def _choose(self, cache: ClusterCache, one: PendingWorkload, claim: Claim) -> Choice:
        """Return the router's answer; who asks for the same as somebody who got nothing gets nothing."""
        index = cache.index
        if cache.grown != self._grown:
            self._grown = cache.grown
            self._hopeless.clear()
        choice = self._hopeless.get(one.asks)
        if choice is None:
            choice = choose(index, claim, cache.profiles)
            if choice.placement is None:
                self._hopeless[one.asks] = choice
        return choice

    def _explain(
        self,
        cache: ClusterCache,
        one: PendingWorkload,
        choice: Choice,
        now_s: float,
        stamp: str,
        *,
        every_s: float,
    ) -> Iterator[Action]:
        assert one.claim is not None, "only what can be read is explained"
        told = self._told[one.gang]
        is_new_offer = choice.offer is not None and told.what[:1] != ("ask",)
        if now_s - told.at_s < every_s and not is_new_offer:
            return
        decision = decide(cache.index, one.claim, cache.profiles)
        if decision.choice is not None:
            return  # room has come meanwhile; the next step takes it
        yield from self._tell(cache, one, told, now_s, decision, stamp)
        offered = annotations_of(one.obj).get(OFFER, "")
        offer = offer_of(decision)
        if offer != offered and one.ref.kind.kind != "Pod":
            yield Patch(one.ref, {"metadata": {"annotations": {OFFER: offer or None}}})
        yield from self._elsewhere(cache, one, told, now_s)

    def _settle(self, cache: ClusterCache, now_s: float, stamp: str) -> Iterator[Action | None]:
        """Have claims say so where their jobs run: who let them go may have ended, or not been heard, before."""
        if now_s - self._looked_s < self.policy.settle_every_s:
            return
        self._looked_s = now_s
        self._let_go = {gang: at_s for gang, at_s in self._let_go.items() if gang in cache.jobs}
        for gang, obj in list(cache.jobs.items()):
            is_recent = now_s - self._let_go.get(gang, float("-inf")) < self.policy.settle_every_s
            if is_recent or not is_managed(obj) or jobs.is_suspended(obj) or jobs.is_finished(obj):
                continue
            yield None
            kind, placement = jobs.kind_of(obj), cache.placement_of(gang)
            assert kind is not None, "only kinds with suspend are kept"
            if placement is not None and not says_routed(cache, ref := ref_of(obj, kind)):
                data = {"devices": placement.devices_per_pod, "model": placement.model}
                data |= {"pods": len(placement.pods), "nodes": len(nodes_of(placement.pods))}
                reason = Reason("gang-runs", ref.name, data)
                yield from claim_of_job(
                    cache, PendingWorkload(gang, ref, obj, None), just(reason, placement), stamp
                )

    def _tell(
        self,
        cache: ClusterCache,
        one: PendingWorkload,
        told: _Told,
        now_s: float,
        decision: Decision[Placement],
        stamp: str,
    ) -> Iterator[Action]:
        """Write a decision into the claim's status, and an event where the answer is another than before."""
        told.at_s = now_s
        first = decision.reasons[0]
        what = ("ask" if first.token == "substitution-wanted" else first.token, str(first))
        if one.ref.kind.kind != "Pod":
            yield from claim_of_job(cache, one, decision, stamp)
        if what != told.what:
            told.what = what
            yield Event(one.ref, pascal(first.token), str(first), is_warning=decision.choice is None)

    def _checkpoint(self, one: PendingWorkload) -> tuple[str, Reason | None]:
        """Return what a job goes on from, empty where there is nothing, and what is wrong with its folder."""
        folder = annotations_of(one.obj).get(CHECKPOINT_DIR, "")
        try:
            return (self.checkpoint_of(folder) if folder else ""), None
        except StrataError as error:
            return "", Reason("checkpoint-unknown", folder[:200], {"what": str(error)[:500]})

    def _release(self, one: PendingWorkload, placement: Placement, checkpoint: str) -> Patch:
        version = str(meta(one.obj).get("resourceVersion") or "")
        if one.ref.kind.kind == "Pod":
            body = jobs.merge_patch(one.obj, release(one.obj, placement))
            return Patch(one.ref, body, resource_version=version)
        try:
            before = job_placement(one.obj)
        except BadFile:  # somebody wrote into it; it is written anew
            before = None
        old = nodes_of(before.pods) if before else ()
        templates = [
            _template(one, each, placement, old=old, checkpoint=checkpoint) if each.has_devices else each.template
            for each in jobs.pod_sets(one.obj)
        ]
        body = jobs.with_templates(one.obj, templates)
        _merge(body, jobs.suspension(one.obj, wanted=False))
        if OFFER in annotations_of(one.obj):
            _merge(body, {"metadata": {"annotations": {OFFER: None}}})
        return Patch(one.ref, body, resource_version=version)

    def _elsewhere(self, cache: ClusterCache, one: PendingWorkload, told: _Told, now_s: float) -> Iterator[Action]:
        """Have a gated pod made anew where another kind of card has room: what was injected cannot be changed."""
        if one.ref.kind.kind == "Pod" and now_s - told.since_s >= self.policy.elsewhere_after_s:
            assert one.claim is not None, "only what can be read gets here"
            freed = tuple(recreated(cache, one.obj, one.claim.profile))
            if freed:
                told.since_s = now_s
            yield from freed

    def _free(self, cache: ClusterCache, now_s: float) -> Iterator[Action | None]:
        """Have one pod made anew, or one job routed anew, that was placed where somebody else was quicker.

        Webhooks and the controller decide apart, and learn from each other a moment late; kube-scheduler counts
        devices, and leaves who came second where they are for ever.
        """
        self._stuck = {key: self._stuck.get(key, now_s) for key in cache.unbound}
        for key, since_s in self._stuck.items():
            yield None
            pod = cache.unbound.get(key)
            if pod is not None and now_s - since_s >= self.policy.elsewhere_after_s:
                self._stuck[key] = now_s
                gang, profile = annotations_of(pod)[GANG], annotations_of(pod).get(INJECTED, "")
                alone = gang.startswith("Pod/")
                if freed := tuple(recreated(cache, pod, profile) if alone else held_back(cache, gang)):
                    yield from freed
                    return


def _is_current(cache: ClusterCache, one: PendingWorkload) -> bool:
    """Return whether what waits is still as it was read."""
    is_pod = one.ref.kind.kind == "Pod"
    now = cache.gated.get(f"{one.ref.namespace}/{one.ref.name}") if is_pod else cache.jobs.get(one.gang)
    return now is one.obj


def _template(
    one: PendingWorkload,
    each: jobs.PodSet,
    placement: Placement,
    *,
    old: Sequence[str],
    checkpoint: str,
) -> dict[str, Any]:
    """Return a template with its way: only what the API server lets be changed while a job is suspended.

    The rest the webhook adds to each pod, by the annotation, and gives it up with the pod.
    """
    template: dict[str, Any] = copy.deepcopy(dict(each.template))
    metadata = template.setdefault("metadata", {})
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    labels[MANAGED] = "true"
    for key, value in annotations_of(one.obj).items():
        if key.startswith(PREFIX) and key != OFFER:
            annotations.setdefault(key, value)
    annotations |= {PLACEMENT: encode(placement), GANG: one.gang}
    said: Mapping[str, str] = {
        FIRST: str(each.first) if each.first else "",
        PER_JOB: str(each.per_job) if each.per_job else "",
        CHECKPOINT: checkpoint,
    }
    for key, value in said.items():
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
