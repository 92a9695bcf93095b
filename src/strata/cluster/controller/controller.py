"""The scheduling cycle: jobs that wait are placed and started, or told why not.

    1. snapshot  what the cache holds now; nobody changes it, so that all that follows agrees
    2. queue     what waits, in order of priority and age
    3. decide    where each goes, on the snapshot and what those before it took; one that fits nowhere does not
                 hold back smaller ones behind it
    4. assume    its places are held in the cache, unless somebody has taken one of them meanwhile
    5. apply     it is released; what the API server refuses gives its places back at once
    6. explain   every node's reason, from the choice that was made, into its claim

The lock is held for 1 and 4 alone. 2, 3 and what 6 writes are pure but for what is remembered of those who wait.
Nothing here knows threads, clocks or an API server: `manager` brings them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from strata.cluster.api.actions import Action, Patch, event
from strata.cluster.api.applier import Failure
from strata.cluster.api.crd.fields import MOST_BESIDE, MOST_NODES
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.controller.making_room import CHECKPOINT_DIR, Rooms, room_by_moving
from strata.cluster.controller.notices import Notices
from strata.cluster.controller.pending import PendingWorkload, pending_workloads
from strata.cluster.controller.release import OFFER, release_patch
from strata.cluster.controller.reschedule import Stuck, recreated
from strata.cluster.controller.status_writer import just, offer_of
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import Choice, Evaluation, evaluate
from strata.cluster.scheduling.explain import explain
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.decision import Reason
from strata.errors import StrataError


@dataclass(frozen=True, slots=True)
class CyclePolicy:
    """explain_every_s: how often a job that still fits nowhere is told every node's reason anew, but where many
    wait, only every explain_each_s one of them: at 500 nodes it takes a tenth of that. again_s: until a release
    that the API server refused is tried again. settle_every_s: how often claims of jobs that run are looked at.
    decide_s, explain_s: after how much of a cycle nothing more is decided, or explained; the next one goes on.
    most_released: how many a cycle releases, so that none is released on a snapshot that is old by then.

    assume_s: how long a place is held for a job that was released and does not show it. reschedule_after_s: how
    long a pod waits behind its gate, or for kube-scheduler, before its owner has to make another, where there is
    room. does_make_room: a proposal of moves is carried out, one at a time, and not only told.
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
    does_make_room: bool = False


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
"""Does actions in order and returns those that were not done: `Applier.do`."""


@dataclass
class Controller:
    """lock: of the cache. timer: how long a cycle has taken [s].

    checkpoint_of: the newest complete checkpoint in a folder, empty where there is none; raises StrataError.
    saved_s: when it was written, None where there is none; raises as well.

    promised: the places of gangs that gated pods of theirs got and do not show yet, by the pod, and until when.
    """

    cache: ClusterCache
    apply: Apply
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    policy: CyclePolicy = field(default_factory=CyclePolicy)
    checkpoint_of: Callable[[str], str] = lambda folder: ""
    saved_s: Callable[[str], float | None] = lambda folder: None
    timer: Callable[[], float] = time.perf_counter
    promised: dict[str, tuple[str, PodPlace, float]] = field(default_factory=dict)
    waiting: int = 0
    """How many waited at the last cycle."""
    _now_s: float = 0.0
    _stamp: str = ""
    _begun_s: float = 0.0
    _notices: Notices = field(default_factory=Notices)
    _stuck: Stuck = field(default_factory=Stuck)
    _to_report: deque[tuple[PendingWorkload, Evaluation]] = field(default_factory=deque)
    _known: dict[str, PendingWorkload] = field(default_factory=dict)
    _unplaceable: dict[str, tuple[Index, Choice]] = field(default_factory=dict)
    _grown: int = -1
    _rooms: Rooms = field(default_factory=Rooms)

    def cycle(self, now_s: float, *, stamp: str) -> bool:
        """Run one cycle; return whether the next should follow at once. stamp: `now_s` for the API server."""
        self._now_s, self._stamp, self._begun_s = now_s, stamp, self.timer()
        # 1. Snapshot
        with self.lock:
            snapshot = self.cache.snapshot(now_s)
        # 2. Queue
        queue = self._queue(snapshot)
        # 3. Decide
        decisions = self._decide(snapshot, queue)
        # 4. Assume
        with self.lock:
            assumed = self._assume(snapshot, decisions.assignments)
        # 5. Apply
        released = [assignment for assignment in assumed if self._release(assignment)]
        self.apply(decisions.resets)
        # 6. Explain
        report = partial(self._notices.report, now_s=now_s, stamp=stamp)
        self._to_report.extend((each.workload, each.evaluation) for each in released if each.evaluation)
        until_s = self.timer() + self.policy.explain_s
        while self._to_report and self.timer() < until_s:  # the rest after those that came meanwhile are released
            workload, evaluation = self._to_report.popleft()
            with self.lock:
                held, placed = self.cache.gangs.placement_of(workload.gang), evaluation.choice.placement
            if held and placed and held.nodes == placed.nodes:  # else another led meanwhile, and moved it
                self.apply(report(snapshot, workload, explain(evaluation, most=MOST_BESIDE)))
        for workload, reason in decisions.unreleasable:
            self.apply(report(snapshot, workload, just(reason)))
        if not (self._explain(snapshot, decisions) and decisions.is_whole) or self._to_report:
            return True
        after_s = self.policy.reschedule_after_s
        self.apply(self._stuck.reschedule(snapshot, decisions.index, now_s=now_s, after_s=after_s))
        settle_every_s = self.policy.settle_every_s
        self.apply(self._notices.settle(snapshot, now_s=now_s, stamp=stamp, every_s=settle_every_s))
        return False

    def _queue(self, snapshot: ClusterSnapshot) -> list[PendingWorkload]:
        """Return what waits, in order, and forget those that do so no longer."""
        queue = pending_workloads(snapshot.jobs, snapshot.gated, snapshot.claims, self._known)
        self._known = {workload.gang: workload for workload in queue}
        self.promised = {
            gang: promise
            for gang, promise in self.promised.items()
            if gang in self._known and self._now_s < promise[2]
        }
        self.waiting = len(queue)
        self._notices.keep(self._known, self._now_s)
        if self._rooms.expire(self._known, self._now_s):
            self._unplaceable.clear()  # of who was refused what was held for another
        return self._rooms.ordered(queue)

    def _decide(self, snapshot: ClusterSnapshot, queue: Sequence[PendingWorkload]) -> _Decisions:
        """Return where everything that waits goes, or why it goes nowhere."""
        if snapshot.grown != self._grown:
            self._grown = snapshot.grown
            self._unplaceable.clear()
        made = _Decisions(snapshot.index)
        free_places = self._free_places(snapshot)
        for workload in queue:
            if len(made.assignments) >= self.policy.most_released or self._is_late(self.policy.decide_s):
                made.is_whole = False
                break
            if workload.gang in snapshot.assumed:
                continue  # it was released, and the watch lags; a second answer would take the first one's place
            notice = self._notices.of[workload.gang]
            if workload.claim is None:
                reason = Reason("claim-unreadable", workload.ref.name, {"why": workload.fault})
                made.unreleasable.append((workload, reason))
                continue
            if notice.refused:
                reason = Reason("release-refused", workload.ref.name, {"why": notice.refused})
                made.unreleasable.append((workload, reason))
                notice.refused = ""
            if self._now_s < notice.again_s:
                continue
            job = workload.job
            if job is not None and job.reset is not None:
                if job.is_quiet:
                    made.resets.append(Patch(job.ref, job.reset, "status"))
            elif workload.of:
                # Nothing numbers the pods of its gang, so it gets any place that no other pod has.
                left = free_places.get(workload.of)
                if left and workload.gang not in self.promised:
                    placement = replace(snapshot.placements[workload.of], pods=(left.pop(0),))
                    made.assignments.append(Assignment(workload, placement))
            else:
                evaluation = self._evaluate(snapshot, made.index, workload, workload.claim)
                placed = evaluation.choice.placement
                if placed is None:
                    made.unplaced.append((workload, evaluation.choice))
                    made.index = self._rooms.held(workload.gang, made.index)
                else:
                    made.assignments.append(Assignment(workload, placed, evaluation))
                    made.index = made.index.placed(placed)
        return made

    def _is_late(self, limit_s: float) -> bool:
        return self.timer() - self._begun_s > limit_s

    def _free_places(self, snapshot: ClusterSnapshot) -> dict[str, list[PodPlace]]:
        """Return the places of gangs that no pod has, and none was promised."""
        left = {gang: list(places) for gang, places in snapshot.free_places.items()}
        for gang, place, _ in self.promised.values():
            if place in left.get(gang, ()):
                left[gang].remove(place)
        return left

    def _evaluate(
        self, snapshot: ClusterSnapshot, index: Index, workload: PendingWorkload, claim: Claim
    ) -> Evaluation:
        """Return the router's answer; who asks for the same as somebody who got nothing gets nothing.

        Room only shrinks until `grown` changes, but an offer is of one index.
        """
        known = self._unplaceable.get(workload.asks)
        if known is not None and (known[1].offer is None or known[0] is index):
            return evaluate(index, claim, snapshot.profiles, known=known[1])
        evaluation = evaluate(index, claim, snapshot.profiles)
        if evaluation.choice.placement is None:
            self._unplaceable[workload.asks] = index, evaluation.choice
        return evaluation

    def _assume(self, snapshot: ClusterSnapshot, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Hold the places of assignments; return those that still can be had, by those still as they were read."""
        until_s = self._now_s + self.policy.assume_s
        is_same = self.cache.index is snapshot.index
        held = []
        for assignment in assignments:
            workload, placement = assignment.workload, assignment.placement
            if not self._is_current(workload):
                continue
            if assignment.evaluation is None:
                if placement.pods[0] in self.cache.gangs.free_places(workload.of):
                    self.promised[workload.gang] = workload.of, placement.pods[0], until_s
                    held.append(assignment)
            elif is_same or self.cache.has_room(placement):
                self.cache.gangs.assume(workload.gang, placement, until_s=until_s)
                self._notices.released(workload.gang, self._now_s)
                held.append(assignment)
        if len(held) < len(assignments):
            self._unplaceable.clear()  # who came later was refused room that nobody took
        _ = self.cache.index  # so that `grown` tells when what is taken here comes back
        return held

    def _is_current(self, workload: PendingWorkload) -> bool:
        """Return whether what waits is still as it was read. The caller holds the lock."""
        if workload.job is None:
            return self.cache.gated.get(f"{workload.ref.namespace}/{workload.ref.name}") is workload.obj
        return self.cache.jobs.get(workload.gang) is workload.job

    def _release(self, assignment: Assignment) -> bool:
        """Release what has a place; return whether it was. What is refused gives its places back."""
        workload = assignment.workload
        checkpoint, trouble = self._checkpoint(workload) if assignment.evaluation else ("", None)
        failures = self.apply([release_patch(workload, assignment.placement, checkpoint)])
        for failure in failures:
            # Without an answer it may have been done, or still be: its places are held until it shows.
            if 400 <= failure.error.status < 500:
                with self.lock:
                    self.cache.gangs.forget(workload.gang)
                self.promised.pop(workload.gang, None)
                notice = self._notices.of.get(workload.gang)
                if failure.what == "refused" and notice is not None:
                    notice.refused, notice.again_s = str(failure.error), self._now_s + self.policy.again_s
        if trouble is not None and not failures:
            self.apply([event(workload.ref, trouble, is_warning=True)])
        return not failures

    def _checkpoint(self, workload: PendingWorkload) -> tuple[str, Reason | None]:
        """Return what a job goes on from, empty where there is nothing, and what is wrong with its folder."""
        folder = workload.annotations.get(CHECKPOINT_DIR, "")
        try:
            return (self.checkpoint_of(folder) if folder else ""), None
        except StrataError as error:
            return "", Reason("checkpoint-unknown", folder[:200], {"what": str(error)[:500]})

    def _explain(self, snapshot: ClusterSnapshot, decisions: _Decisions) -> bool:
        """Tell those that got no place why, where it is time to; return whether all were told that had to be."""
        if not decisions.is_whole:
            return False
        every_s = max(self.policy.explain_every_s, self.policy.explain_each_s * len(self._notices.of))
        for workload, choice in decisions.unplaced:
            if self._is_late(self.policy.explain_s):
                return False
            notice = self._notices.of[workload.gang]
            is_new_offer = choice.offer is not None and notice.what[:1] != ("ask",)
            if self._now_s - notice.at_s < every_s and not is_new_offer:
                continue
            with self.lock:
                is_current = self._is_current(workload)
            if is_current:
                failures = self.apply(self._unplaced(snapshot, decisions.index, workload, choice))
                self._rooms.failed(workload.gang, failures)
        return True

    def _unplaced(
        self, snapshot: ClusterSnapshot, index: Index, workload: PendingWorkload, choice: Choice
    ) -> Sequence[Action]:
        """Return what tells one workload why it has no place, what it is offered, and who has to make it again."""
        assert workload.claim is not None, "only what can be read is evaluated"
        now_s, notice = self._now_s, self._notices.of[workload.gang]
        decision = explain(evaluate(index, workload.claim, snapshot.profiles, known=choice), most=MOST_NODES)
        proposal = None
        if workload.job is not None and workload.claim.pods and choice.offer is None:
            ask = partial(self._rooms.proposed, holds=self._holds, saved_s=self.saved_s, now_s=now_s)
            proposal = ask(snapshot, index, workload.claim)
        if proposal is not None:
            moving = room_by_moving(workload.ref.name, proposal)
            decision = replace(decision, reasons=(*decision.reasons, moving))
        actions = self._notices.report(snapshot, workload, decision, now_s=now_s, stamp=self._stamp)
        if proposal is not None and self.policy.does_make_room:
            actions += self._rooms.make(snapshot, workload.gang, proposal, now_s)
        if workload.job is not None:
            offer = offer_of(decision)
            if offer != workload.annotations.get(OFFER, ""):
                actions.append(Patch(workload.ref, {"metadata": {"annotations": {OFFER: offer or None}}}))
        elif now_s - notice.since_s >= self.policy.reschedule_after_s:
            # What was injected into it cannot be changed: its owner makes one for another kind of card.
            replaced = recreated(snapshot, index, workload.obj, workload.claim.profile)
            notice.since_s = now_s if replaced else notice.since_s
            actions += replaced
        return actions

    def _holds(self) -> Mapping[str, Mapping[str, frozenset[int]]]:
        with self.lock:
            return self.cache.holds()
