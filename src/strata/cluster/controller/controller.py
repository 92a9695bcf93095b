"""The scheduling cycle: jobs that wait are placed and started, or told why not.

    1. snapshot  what the cache holds now; nobody changes it, so that all that follows agrees
    2. queue     what waits, in order of priority and age
    3. decide    where each goes, on the snapshot and what those before it took; one that fits nowhere does not
                 hold back smaller ones behind it
    4. assume    its places are held in the cache, unless somebody has taken one of them meanwhile
    5. apply     it is released; what the API server refuses gives its places back at once
    6. explain   every node's reason, from the choice that was made, into its claim

The lock is held for 1 and 4 alone. 2, 3 and what 6 writes are pure but for what is remembered of those who wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.cluster.api import jobs, kinds
from strata.cluster.api.actions import Action, Event, Patch, ref_of
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.applier import Failure
from strata.cluster.api.crd.compute_claim import pascal
from strata.cluster.api.kinds import annotations_of
from strata.cluster.api.placement_annotation import (
    GANG,
    INJECTED,
    nodes_of,
)  # fmt: skip
from strata.cluster.cache.cache import ClusterCache, Snapshot
from strata.cluster.controller.pending import PendingWorkload, pending_jobs, pending_pods
from strata.cluster.controller.release import OFFER, release_patch
from strata.cluster.controller.reschedule import held_back, recreated
from strata.cluster.controller.status_writer import claim_of_job, just, offer_of, says_routed
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import Choice, Evaluation, evaluate
from strata.cluster.scheduling.explain import explain
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.decision import Decision, Reason
from strata.errors import StrataError

CHECKPOINT_DIR: Final = PREFIX + "checkpoint-dir"
"""Annotation of a job: the folder it saves to, by the path its pods and the controller know it under."""


@dataclass(frozen=True, slots=True)
class CyclePolicy:
    """explain_every_s: how often a job that still fits nowhere is told every node's reason anew, but where many
    wait, only every explain_each_s one of them: at 500 nodes it takes a tenth of that. again_s: until a release
    that the API server refused is tried again. settle_every_s: how often claims of jobs that run are looked at.
    decide_s, explain_s: after how much of a cycle nothing more is decided, or explained; the next one goes on.
    most_released: how many a cycle releases, so that none is released on a snapshot that is old by then.

    assume_s: how long a place is held for a job that was released and does not show it. reschedule_after_s: how
    long a pod waits behind its gate, or for kube-scheduler, before its owner has to make another, where there is
    room.
    """

    explain_every_s: float = 30.0
    explain_each_s: float = 0.3
    again_s: float = 30.0
    settle_every_s: float = 30.0
    decide_s: float = 5.0
    explain_s: float = 0.25
    most_released: int = 64
    assume_s: float = 30.0
    reschedule_after_s: float = 60.0


@dataclass(slots=True)
class _Notice:
    """What a waiting object was told last, and when; when it was seen first.

    refused: what the API server said to its release, which is tried again at `again_s`.
    """

    since_s: float
    at_s: float = float("-inf")
    what: tuple[Any, ...] = ()
    refused: str = ""
    again_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A place for what waits. evaluation: None for a pod that gets one of its gang's places, which are held."""

    workload: PendingWorkload
    placement: Placement
    evaluation: Evaluation | None = None


@dataclass(slots=True)
class _Decisions:
    """index: after all assignments. resets: patches some jobs need before they can be released.

    unplaced: with their choice, None where it was not asked for: `reason` then says why. is_whole: the queue was
    read to its end.
    """

    index: Index
    assignments: list[Assignment] = field(default_factory=list)
    resets: list[Patch] = field(default_factory=list)
    unreleasable: list[tuple[PendingWorkload, Reason]] = field(default_factory=list)
    unplaced: list[tuple[PendingWorkload, Choice]] = field(default_factory=list)
    is_whole: bool = True


Apply = Callable[[Iterable[Action]], Sequence[Failure]]
"""Does actions in order and returns those that were not done."""


@dataclass
class Controller:
    """checkpoint_of: the newest complete checkpoint in a folder, empty where there is none; raises StrataError.

    promised: the places of gangs that gated pods of theirs got and do not show yet, by the pod, and until when.
    """

    policy: CyclePolicy = field(default_factory=CyclePolicy)
    checkpoint_of: Callable[[str], str] = lambda folder: ""
    promised: dict[str, tuple[str, PodPlace, float]] = field(default_factory=dict)
    _notices: dict[str, _Notice] = field(default_factory=dict)
    _stuck: dict[str, float] = field(default_factory=dict)
    _known: dict[str, PendingWorkload] = field(default_factory=dict)
    _unplaceable: dict[str, tuple[Index, Choice]] = field(default_factory=dict)
    _grown: int = -1
    _released_s: dict[str, float] = field(default_factory=dict)
    _settled_s: float = float("-inf")

    @property
    def waiting(self) -> int:
        """How many waited at the last cycle."""
        return len(self._notices)

    def cycle(
        self,
        cache: ClusterCache,
        now_s: float,
        *,
        apply: Apply,
        stamp: str,
        lock: AbstractContextManager[Any] | None = None,
        spent_s: Callable[[], float] = lambda: 0.0,
    ) -> bool:
        """Run one cycle; return whether the next should follow at once.

        stamp: the time as the API server writes it. lock: of the cache. spent_s: since the cycle was begun.
        """
        lock = lock or nullcontext()
        # 1. Snapshot
        with lock:
            cache.expire(now_s)
            snapshot = cache.snapshot()
        # 2. Queue
        queue = self._queue(snapshot, now_s)
        # 3. Decide
        decisions = self._decide(snapshot, queue, now_s, spent_s)
        # 4. Assume
        with lock:
            assumed = self._assume(cache, snapshot, decisions.assignments, now_s)
        # 5. Apply
        released = [
            assignment for assignment in assumed if self._apply(cache, assignment, now_s, apply=apply, lock=lock)
        ]
        apply(decisions.resets)
        # 6. Explain
        for assignment in released:
            if assignment.evaluation is not None:
                decision = explain(assignment.evaluation)
                apply(self._report(snapshot, assignment.workload, decision, now_s, stamp))
        for workload, reason in decisions.unreleasable:
            apply(self._report(snapshot, workload, just(reason), now_s, stamp))
        if not decisions.is_whole or not self._explain(
            cache, snapshot, decisions, now_s, apply=apply, stamp=stamp, lock=lock, spent_s=spent_s
        ):
            return True
        apply(self._reschedule(snapshot, decisions.index, now_s))
        apply(self._settle(snapshot, now_s, stamp))
        return False

    def _queue(self, snapshot: Snapshot, now_s: float) -> list[PendingWorkload]:
        """Return what waits, in order, and forget those that do so no longer."""
        jobs_ = pending_jobs(snapshot.jobs, snapshot.claims, self._known)
        queue = sorted([*jobs_, *pending_pods(snapshot.gated, self._known)], key=lambda workload: workload.order)
        self._known = {workload.gang: workload for workload in queue}
        self.promised = {
            gang: promise for gang, promise in self.promised.items() if gang in self._known and now_s < promise[2]
        }
        self._notices = {gang: self._notices.get(gang) or _Notice(now_s) for gang in self._known}
        return queue

    def _decide(
        self, snapshot: Snapshot, queue: Sequence[PendingWorkload], now_s: float, spent_s: Callable[[], float]
    ) -> _Decisions:
        """Return where everything that waits goes, or why it goes nowhere."""
        if snapshot.grown != self._grown:
            self._grown = snapshot.grown
            self._unplaceable.clear()
        made = _Decisions(snapshot.index)
        free_places = self._free_places(snapshot)
        for workload in queue:
            if len(made.assignments) >= self.policy.most_released or spent_s() > self.policy.decide_s:
                made.is_whole = False
                break
            if workload.gang in snapshot.assumed:
                continue  # it was released, and the watch lags; a second answer would take the first one's place
            notice = self._notices[workload.gang]
            if workload.claim is None:
                reason = Reason("claim-unreadable", workload.ref.name, {"why": workload.fault})
                made.unreleasable.append((workload, reason))
                continue
            if notice.refused:
                reason = Reason("release-refused", workload.ref.name, {"why": notice.refused})
                made.unreleasable.append((workload, reason))
                notice.refused = ""
            if now_s < notice.again_s:
                continue
            if workload.ref.kind != kinds.POD and (reset := jobs.start_reset(workload.obj)):
                if jobs.is_quiet(workload.obj):
                    made.resets.append(Patch(workload.ref, reset, "status"))
            elif workload.of:
                # Nothing numbers the pods of its gang, so it gets any place that no other pod has.
                left = free_places.get(workload.of)
                if left and workload.gang not in self.promised:
                    placement = replace(snapshot.placements[workload.of], pods=(left.pop(0),))
                    made.assignments.append(Assignment(workload, placement))
            else:
                evaluation = self._evaluate(made.index, workload, workload.claim, snapshot.profiles)
                placed = evaluation.choice.placement
                if placed is None:
                    made.unplaced.append((workload, evaluation.choice))
                else:
                    made.assignments.append(Assignment(workload, placed, evaluation))
                    made.index = made.index.placed(placed)
        return made

    def _free_places(self, snapshot: Snapshot) -> dict[str, list[PodPlace]]:
        """Return the places of gangs that no pod has, and none was promised."""
        left = {gang: list(places) for gang, places in snapshot.free_places.items()}
        for gang, place, _ in self.promised.values():
            if place in left.get(gang, ()):
                left[gang].remove(place)
        return left

    def _evaluate(
        self, index: Index, workload: PendingWorkload, claim: Claim, profiles: Sequence[RuntimeProfile]
    ) -> Evaluation:
        """Return the router's answer; who asks for the same as somebody who got nothing gets nothing.

        Room only shrinks until `grown` changes, but an offer is of one index.
        """
        known = self._unplaceable.get(workload.asks)
        if known is not None and (known[1].offer is None or known[0] is index):
            choice = known[1]
            return Evaluation(index, claim, profiles, choice.demands, choice.refusals, choice)
        evaluation = evaluate(index, claim, profiles)
        if evaluation.choice.placement is None:
            self._unplaceable[workload.asks] = index, evaluation.choice
        return evaluation

    def _assume(
        self, cache: ClusterCache, snapshot: Snapshot, assignments: Sequence[Assignment], now_s: float
    ) -> list[Assignment]:
        """Hold the places of assignments; return those that still can be had, by those still as they were read."""
        until_s = now_s + self.policy.assume_s
        is_same = cache.index is snapshot.index
        held = []
        for assignment in assignments:
            workload, placement = assignment.workload, assignment.placement
            if not _is_current(cache, workload):
                continue
            if assignment.evaluation is None:
                if placement.pods[0] in cache.free_places(workload.of):
                    self.promised[workload.gang] = workload.of, placement.pods[0], until_s
                    held.append(assignment)
            elif is_same or cache.has_room(placement):
                cache.assume(workload.gang, placement, until_s=until_s)
                self._released_s[workload.gang] = now_s
                held.append(assignment)
        if len(held) < len(assignments):
            self._unplaceable.clear()  # who came later was refused room that nobody took
        _ = cache.index  # so that `grown` tells when what is taken here comes back
        return held

    def _apply(
        self,
        cache: ClusterCache,
        assignment: Assignment,
        now_s: float,
        *,
        apply: Apply,
        lock: AbstractContextManager[Any],
    ) -> bool:
        """Release what has a place; return whether it was. What is refused gives its places back."""
        workload = assignment.workload
        checkpoint, trouble = self._checkpoint(workload) if assignment.evaluation else ("", None)
        failures = apply([release_patch(workload, assignment.placement, checkpoint)])
        for failure in failures:
            # Without an answer it may have been done, or still be: its places are held until it shows.
            if 400 <= failure.error.status < 500:
                with lock:
                    cache.forget(workload.gang)
                self.promised.pop(workload.gang, None)
                notice = self._notices.get(workload.gang)
                if failure.what == "refused" and notice is not None:
                    notice.refused, notice.again_s = str(failure.error), now_s + self.policy.again_s
        if trouble is not None and not failures:
            apply([Event(workload.ref, pascal(trouble.token), str(trouble), is_warning=True)])
        return not failures

    def _explain(
        self,
        cache: ClusterCache,
        snapshot: Snapshot,
        decisions: _Decisions,
        now_s: float,
        *,
        apply: Apply,
        stamp: str,
        lock: AbstractContextManager[Any],
        spent_s: Callable[[], float],
    ) -> bool:
        """Tell those that got no place why, where it is time to; return whether all were told that had to be."""
        every_s = max(self.policy.explain_every_s, self.policy.explain_each_s * len(self._notices))
        for workload, choice in decisions.unplaced:
            if spent_s() > self.policy.explain_s:
                return False
            notice = self._notices[workload.gang]
            is_new_offer = choice.offer is not None and notice.what[:1] != ("ask",)
            if now_s - notice.at_s < every_s and not is_new_offer:
                continue
            with lock:
                is_current = _is_current(cache, workload)
            if is_current:
                apply(self._unplaced(snapshot, decisions.index, workload, choice, now_s, stamp))
        return True

    def _unplaced(
        self,
        snapshot: Snapshot,
        index: Index,
        workload: PendingWorkload,
        choice: Choice,
        now_s: float,
        stamp: str,
    ) -> Iterator[Action]:
        """Yield what tells one workload why it has no place, what it is offered, and who has to make it again."""
        claim = workload.claim
        assert claim is not None, "only what can be read is evaluated"
        evaluation = Evaluation(index, claim, snapshot.profiles, choice.demands, choice.refusals, choice)
        decision = explain(evaluation)
        yield from self._report(snapshot, workload, decision, now_s, stamp)
        offered, offer = annotations_of(workload.obj).get(OFFER, ""), offer_of(decision)
        notice = self._notices[workload.gang]
        if workload.ref.kind != kinds.POD:
            if offer != offered:
                yield Patch(workload.ref, {"metadata": {"annotations": {OFFER: offer or None}}})
        elif now_s - notice.since_s >= self.policy.reschedule_after_s:
            # What was injected into it cannot be changed: its owner makes one for another kind of card.
            replaced = tuple(recreated(snapshot, index, workload.obj, claim.profile))
            if replaced:
                notice.since_s = now_s
            yield from replaced

    def _report(
        self,
        snapshot: Snapshot,
        workload: PendingWorkload,
        decision: Decision[Placement],
        now_s: float,
        stamp: str,
    ) -> Iterator[Action]:
        """Write a decision into the claim's status, and an event where the answer is another than before."""
        notice, first = self._notices[workload.gang], decision.reasons[0]
        notice.at_s = now_s
        what = ("ask" if first.token == "substitution-wanted" else first.token, str(first))
        if workload.ref.kind != kinds.POD:
            yield from claim_of_job(snapshot.claims, workload, decision, stamp)
        if what != notice.what:
            notice.what = what
            yield Event(workload.ref, pascal(first.token), str(first), is_warning=decision.choice is None)

    def _reschedule(self, snapshot: Snapshot, index: Index, now_s: float) -> Iterator[Action]:
        """Have one pod recreated, or one job routed again, that was placed where somebody else was quicker.

        Webhooks and the controller decide apart, and learn from each other a moment late; kube-scheduler counts
        devices, and leaves who came second where they are for ever.
        """
        self._stuck = {key: self._stuck.get(key, now_s) for key in snapshot.unbound}
        for key, since_s in self._stuck.items():
            if now_s - since_s >= self.policy.reschedule_after_s:
                self._stuck[key] = now_s
                annotations = annotations_of(pod := snapshot.unbound[key])
                if annotations[GANG].startswith("Pod/"):
                    actions = tuple(recreated(snapshot, index, pod, annotations.get(INJECTED, "")))
                else:
                    actions = tuple(held_back(snapshot, index, annotations[GANG]))
                if actions:
                    yield from actions
                    return

    def _settle(self, snapshot: Snapshot, now_s: float, stamp: str) -> Iterator[Action]:
        """Have claims say so where their jobs run: who released them may have ended, or not been heard, before."""
        if now_s - self._settled_s < self.policy.settle_every_s:
            return
        self._settled_s = now_s
        self._released_s = {gang: at_s for gang, at_s in self._released_s.items() if gang in snapshot.jobs}
        for gang, obj in snapshot.jobs.items():
            is_recent = now_s - self._released_s.get(gang, float("-inf")) < self.policy.settle_every_s
            if is_recent or not jobs.is_managed(obj) or jobs.is_suspended(obj) or jobs.is_finished(obj):
                continue
            kind, placement = jobs.kind_of(obj), snapshot.placements.get(gang)
            assert kind is not None, "only kinds with suspend are kept"
            if placement is not None and not says_routed(snapshot.claims, ref := ref_of(obj, kind)):
                data = {"devices": placement.devices_per_pod, "model": placement.model}
                data |= {"pods": len(placement.pods), "nodes": len(nodes_of(placement.pods))}
                decision = just(Reason("gang-runs", ref.name, data), placement)
                yield from claim_of_job(snapshot.claims, PendingWorkload(gang, ref, obj, None), decision, stamp)

    def _checkpoint(self, workload: PendingWorkload) -> tuple[str, Reason | None]:
        """Return what a job goes on from, empty where there is nothing, and what is wrong with its folder."""
        folder = annotations_of(workload.obj).get(CHECKPOINT_DIR, "")
        try:
            return (self.checkpoint_of(folder) if folder else ""), None
        except StrataError as error:
            return "", Reason("checkpoint-unknown", folder[:200], {"what": str(error)[:500]})


def _is_current(cache: ClusterCache, workload: PendingWorkload) -> bool:
    """Return whether what waits is still as it was read."""
    is_pod = workload.ref.kind.kind == "Pod"
    now = (
        cache.gated.get(f"{workload.ref.namespace}/{workload.ref.name}")
        if is_pod
        else cache.jobs.get(workload.gang)
    )
    return now is workload.obj
