"""Kueue's workloads that wait for one of our checks, and the cycle that answers them, as the controller's is.

What a workload was given is held in the cache until its job shows it: other checks may take their time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from strata.cluster.api.actions import Action, Patch
from strata.cluster.api.applier import Failure
from strata.cluster.api.kinds import Object, meta, name_of, namespace_of, version_of
from strata.cluster.api.placement_annotation import MANAGED
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.kueue import workload as kueue
from strata.cluster.kueue.steering import avoided, may_be_steered
from strata.cluster.scheduling.index import Index
from strata.errors import BadFile

HELD_S: Final = 60.0
AGAIN_S: Final = 30.0
"""When an answer that did not arrive is given again."""
NO_WEBHOOK: Final = (
    "no webhook sends pods to their places: install strata-webhook (deploy/base), then it is let go"
)
ANOTHER: Final = "another flavor of the job has a place"

log = logging.getLogger(__name__)


@dataclass
class AdmissionChecks:
    """Remembers what was answered, which gangs' places are held for it, and what is kept off flavors.

    Of the latter the version and what `grown` was when it was looked at.
    """

    _answered: dict[str, tuple[str, float]] = field(default_factory=dict)
    _holding: set[str] = field(default_factory=set)
    _steered: dict[str, tuple[str, int]] = field(default_factory=dict)

    def cycle(
        self,
        cache: ClusterCache,
        now_s: float,
        *,
        apply: Callable[[Iterable[Action]], Sequence[Failure]],
        stamp: str,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Answer what is asked, the oldest workload first. stamp: as the API server writes the time."""
        lock = lock or nullcontext()
        # 1. Snapshot, without what those that ask again were given before: it did not come about
        with lock:
            ours, checks = our_checks(cache), tuple(cache.checks.values())
            has_webhook = any(map(_sends_pods, cache.webhooks.values()))
            workloads, flavors = dict(cache.workloads), dict(cache.flavors)
            held = self._hold(cache, now_s)
            queue = self._queue(cache, ours, now_s)
            for workload in queue:
                if (gang := kueue.gang_of(workload, workloads)) not in held:
                    cache.gangs.forget(gang)
            waiting = [workload for key, workload in workloads.items() if self._may_be_full(key, workload)]
            snapshot = cache.snapshot(now_s) if queue or waiting else None
        apply([active for check in checks if (active := kueue.activation(check, stamp=stamp))])
        if snapshot is None:
            return
        # 2., 3. Decide about each gang, after those before it
        index, answers = snapshot.index, []
        for gang, asking in groupby(queue, key=lambda workload: kueue.gang_of(workload, workloads)):
            gang_answers = [
                (workload, answer)
                for workload in asking
                if (
                    answer := kueue.answer(
                        workload,
                        index,
                        snapshot.profiles,
                        checks=ours,
                        stamp=stamp,
                        job=_job(snapshot, gang),
                        claims=snapshot.claims,
                        workloads=workloads,
                        flavors=flavors,
                    )
                )
            ]
            is_placed = False
            for workload, answer in sorted(gang_answers, key=_preference):
                why_not = ""
                if answer.placement is not None:
                    # From cards that stand in to its own a job may move, where Kueue's policy has it ask.
                    why_not = held.get(gang, "") if answer.is_substitute else ""
                    why_not = NO_WEBHOOK if not has_webhook else ANOTHER if is_placed else why_not
                    is_placed = True
                if why_not:
                    refusal = kueue.later(workload, ours, why_not, stamp=stamp)
                    answers.append((workload, kueue.CheckAnswer(refusal, gang)))
                    continue
                answers.append((workload, answer))
                index = index if answer.placement is None else index.placed(answer.placement)
        # 4. Assume
        with lock:
            is_same = cache.index is snapshot.index
            to_apply = [
                (workload, answer)
                for workload, answer in answers
                if self._assume(cache, workload, answer, now_s, is_same=is_same)
            ]
        # 5. Apply; Kueue tells of it
        for _, answer in to_apply:
            for failure in apply([answer.patch]):
                if answer.placement is not None and 400 <= failure.error.status < 500:
                    with lock:
                        cache.gangs.forget(answer.gang)
        apply([patch for workload in waiting if (patch := self._steer(workload, snapshot, index, workloads))])

    def moved(self, cache: ClusterCache, gang: str, message: str, *, stamp: str) -> Iterator[Action]:
        """Yield what has Kueue take a gang's pods down and ask for a place anew: its devices are broken."""
        ours = our_checks(cache)
        for workload in cache.workloads.values():
            if kueue.gang_of(workload, cache.workloads) == gang and kueue.is_held(workload, ours):
                yield kueue.send_back(workload, ours, message, stamp=stamp)

    def _queue(self, cache: ClusterCache, ours: frozenset[str], now_s: float) -> list[Object]:
        """Return the workloads to answer now, in order."""
        self._answered = {key: answered for key, answered in self._answered.items() if key in cache.workloads}
        waiting = []
        for key, workload in cache.workloads.items():
            version, at_s = self._answered.get(key, ("", 0.0))
            is_again = version == version_of(workload) and now_s - at_s < AGAIN_S
            if kueue.is_asked(workload, ours) and not (version and is_again):
                gang = kueue.gang_of(workload, cache.workloads)
                waiting.append((str(meta(workload).get("creationTimestamp")), gang, key, workload))
        # Variants of a job are as old as it is, and stand together.
        return [workload for *_, workload in sorted(waiting, key=lambda entry: entry[:3])]

    def _may_be_full(self, key: str, workload: Object) -> bool:
        """Whether a workload is to be kept off a flavor, or is, and has no quota, so that it can be changed."""
        is_known = key in self._steered or bool(avoided(workload))
        return is_known and may_be_steered(workload) and kueue.is_waiting(workload)

    def _steer(
        self, workload: Object, snapshot: ClusterSnapshot, index: Index, workloads: Mapping[str, Object]
    ) -> Patch | None:
        """Return what keeps a workload off the flavors that are full, where that has changed."""
        key = f"{namespace_of(workload)}/{name_of(workload)}"
        looked = (version_of(workload), snapshot.grown)
        if self._steered.get(key) == looked:
            return None
        self._steered[key] = looked
        job = _job(snapshot, kueue.gang_of(workload, workloads))
        return kueue.steer(workload, index, snapshot.profiles, job=job, claims=snapshot.claims)

    def _assume(
        self, cache: ClusterCache, workload: Object, answer: kueue.CheckAnswer, now_s: float, *, is_same: bool
    ) -> bool:
        """Hold what an answer gives; return whether it still can be had, by a workload still as it was read."""
        key = f"{namespace_of(workload)}/{name_of(workload)}"
        if cache.workloads.get(key) is not workload:
            return False
        if answer.placement is not None:
            if not is_same and not cache.has_room(answer.placement):
                return False
            cache.gangs.assume(answer.gang, answer.placement, until_s=now_s + HELD_S)
            self._holding.add(answer.gang)
        self._answered[key] = version_of(workload), now_s
        if answer.is_steered:
            self._steered[key] = ("", 0)
        return True

    def _hold(self, cache: ClusterCache, now_s: float) -> dict[str, str]:
        """Hold what workloads were given and no job shows yet; let go what they lost.

        Returns, by gang that has a place, why no other workload of it may have one.
        """
        ours, placed = our_checks(cache), cache.gangs.placements
        self._steered = {key: looked for key, looked in self._steered.items() if key in cache.workloads}
        gangs = [(kueue.gang_of(workload, cache.workloads), workload) for workload in cache.workloads.values()]
        held = {gang: workload for gang, workload in gangs if kueue.is_held(workload, ours)}
        asking_gangs = {gang for gang, workload in gangs if kueue.is_asked(workload, ours)}
        for gang in self._holding - held.keys() - asking_gangs:
            cache.gangs.forget(gang)
        self._holding &= held.keys() | asking_gangs
        for gang in held.keys() - placed.keys():
            try:
                placement = kueue.held(held[gang], ours)
            except BadFile as error:
                log.warning("%s", error)
                continue
            if placement is not None:
                cache.gangs.assume(gang, placement, until_s=now_s + HELD_S)
                self._holding.add(gang)
        return {gang: f"the job has its place as {name_of(workload)}" for gang, workload in held.items()}


def _job(snapshot: ClusterSnapshot, gang: str) -> Object | None:
    job = snapshot.jobs.get(gang)
    return None if job is None else job.obj


def _preference(entry: tuple[Object, kueue.CheckAnswer]) -> tuple[bool, bool, float]:
    """Order a job's variants: with a place, on the cards it was written for, by score."""
    placement = entry[1].placement
    return placement is None, entry[1].is_substitute, 0.0 if placement is None else -placement.score


def _sends_pods(webhook: Object) -> bool:
    """Return whether a webhook configuration has our pods changed when they are made."""
    return any(
        ((hook.get("objectSelector") or {}).get("matchLabels") or {}).get(MANAGED) == "true"
        and any("pods" in (rule.get("resources") or ()) for rule in hook.get("rules") or ())
        for hook in webhook.get("webhooks") or ()
    )


def our_checks(cache: ClusterCache) -> frozenset[str]:
    """Return the names of the AdmissionChecks that are ours to answer."""
    return frozenset(name_of(check) for check in cache.checks.values() if kueue.is_ours(check))
