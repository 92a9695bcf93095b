"""Kueue's workloads that wait for one of our checks, and the cycle that answers them, as the controller's is.

What a workload was given is held in the cache until its job shows it: other checks may take their time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from strata.cluster.api.actions import Action
from strata.cluster.api.applier import Failure
from strata.cluster.api.kinds import Object, meta, name_of, namespace_of, version_of
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.kueue import workload as kueue
from strata.errors import BadFile

HELD_S: Final = 60.0
AGAIN_S: Final = 30.0
"""When an answer that did not arrive is given again."""

log = logging.getLogger(__name__)


@dataclass
class AdmissionChecks:
    """Remembers what was answered, and which gangs' places are held for it."""

    _answered: dict[str, tuple[str, float]] = field(default_factory=dict)
    _holding: set[str] = field(default_factory=set)

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
            self._hold(cache, now_s)
            queue = self._queue(cache, ours, now_s)
            for workload in queue:
                cache.forget(kueue.gang_of(workload))
            snapshot = cache.snapshot(now_s) if queue else None
        apply([active for check in checks if (active := kueue.activation(check, stamp=stamp))])
        if snapshot is None:
            return
        # 2., 3. Decide about each, after those before it
        index, answers = snapshot.index, []
        for workload in queue:
            job = snapshot.jobs.get(kueue.gang_of(workload))
            answer = kueue.answer(
                workload,
                index,
                snapshot.profiles,
                checks=ours,
                stamp=stamp,
                job=None if job is None else job.obj,
                claims=snapshot.claims,
            )
            if answer is not None:
                answers.append((workload, answer))
                index = index if answer.placement is None else index.placed(answer.placement)
        # 4. Assume
        with lock:
            is_same = cache.index is snapshot.index
            held = [
                (workload, answer)
                for workload, answer in answers
                if self._assume(cache, workload, answer, now_s, is_same=is_same)
            ]
        # 5. Apply; Kueue tells of it
        for _, answer in held:
            for failure in apply([answer.patch]):
                if answer.placement is not None and 400 <= failure.error.status < 500:
                    with lock:
                        cache.forget(answer.gang)

    def moved(self, cache: ClusterCache, gang: str, message: str, *, stamp: str) -> Iterator[Action]:
        """Yield what has Kueue take a gang's pods down and ask for a place anew: its devices are broken."""
        ours = our_checks(cache)
        for workload in cache.workloads.values():
            if kueue.gang_of(workload) == gang and kueue.is_held(workload, ours):
                yield kueue.send_back(workload, ours, message, stamp=stamp)

    def _queue(self, cache: ClusterCache, ours: frozenset[str], now_s: float) -> list[Object]:
        """Return the workloads to answer now, in order."""
        self._answered = {key: answered for key, answered in self._answered.items() if key in cache.workloads}
        waiting = []
        for key, workload in cache.workloads.items():
            version, at_s = self._answered.get(key, ("", 0.0))
            is_again = version == version_of(workload) and now_s - at_s < AGAIN_S
            if kueue.is_asked(workload, ours) and not (version and is_again):
                waiting.append((str(meta(workload).get("creationTimestamp")), key, workload))
        return [workload for *_, workload in sorted(waiting, key=lambda entry: entry[:2])]

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
            cache.assume(answer.gang, answer.placement, until_s=now_s + HELD_S)
            self._holding.add(answer.gang)
        self._answered[key] = version_of(workload), now_s
        return True

    def _hold(self, cache: ClusterCache, now_s: float) -> None:
        """Hold what workloads were given and no job shows yet; let go what they lost."""
        ours, placed = our_checks(cache), cache.placements
        held = {
            kueue.gang_of(workload): workload
            for workload in cache.workloads.values()
            if kueue.is_held(workload, ours) or kueue.is_asked(workload, ours)
        }
        for gang in self._holding - held.keys():
            cache.forget(gang)
        self._holding &= held.keys()
        for gang in held.keys() - placed.keys():
            try:
                placement = kueue.held(held[gang], ours)
            except BadFile as error:
                log.warning("%s", error)
                continue
            if placement is not None:
                cache.assume(gang, placement, until_s=now_s + HELD_S)
                self._holding.add(gang)


def our_checks(cache: ClusterCache) -> frozenset[str]:
    """Return the names of the AdmissionChecks that are ours to answer."""
    return frozenset(name_of(check) for check in cache.checks.values() if kueue.is_ours(check))
