"""Workloads that Kueue asks us about, as they are heard, and the step that answers them.

What a workload was given is held in the book until its job shows it: other checks may take their time.
"""

from __future__ import annotations

import logging
import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from strata.cluster.api.actions import Action
from strata.cluster.api.kinds import Object, ObjectKind, meta, name_of, namespace_of
from strata.cluster.api.protocol import Api
from strata.cluster.api.watch import Listed, News, Watcher
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.kueue import workload as kueue
from strata.cluster.kueue.flavors import ADMISSION_CHECK
from strata.errors import BadFile

log = logging.getLogger(__name__)

WATCHED: Final = (ADMISSION_CHECK, kueue.WORKLOAD)
"""What is to be heard of."""
HELD_S: Final = 60.0
AGAIN_S: Final = 30.0
"""When an answer that did not arrive is given again."""


@dataclass
class AdmissionChecks:
    """checks, workloads: by `namespace/name`, as they were heard last."""

    checks: dict[str, Object] = field(default_factory=dict)
    workloads: dict[str, Object] = field(default_factory=dict)
    _answered: dict[str, tuple[str, float]] = field(default_factory=dict)
    _holding: set[str] = field(default_factory=set)
    _news: queue.SimpleQueue[News] = field(default_factory=queue.SimpleQueue)
    _watchers: list[Watcher] = field(default_factory=list)

    def start(self, api: Api, *, rng: random.Random) -> None:
        """Listen to an API server; what is heard is taken at the next step."""
        self._watchers = [Watcher(api, kind, self._news.put, rng=rng).start() for kind in WATCHED]

    def stop(self) -> None:
        """Stop listening."""
        for watcher in self._watchers:
            watcher.stop()

    def unready(self) -> str:
        """Return why nothing should be placed yet: what workloads hold is not known. Empty where it is."""
        waits = [kind.plural for kind, one in zip(WATCHED, self._watchers, strict=False) if not one.is_synced]
        return f"not listed yet: {', '.join(waits)}" if waits else ""

    def hear(self, news: News) -> None:
        """Take what was heard of our kinds; anything else passes."""
        if news.kind not in WATCHED:
            return
        known = self._of(news.kind)
        if isinstance(news, Listed):
            known.clear()
            known.update((_key(obj), obj) for obj in news.objects)
        elif news.type == "DELETED":
            known.pop(_key(news.obj), None)
        else:
            known[_key(news.obj)] = news.obj

    def step(self, cache: ClusterCache, now_s: float, *, stamp: str) -> Iterator[Action]:
        """Yield what to say to Kueue now, the oldest workload first. stamp: as the API server writes the time."""
        while not self._news.empty():
            self.hear(self._news.get())
        for check in self.checks.values():
            if active := kueue.activation(check, stamp=stamp):
                yield active
        ours = self._ours()
        self._answered = {key: said for key, said in self._answered.items() if key in self.workloads}
        self._hold(cache, now_s)
        asked = [key for key, workload in self.workloads.items() if kueue.is_asked(workload, ours)]
        for key in sorted(asked, key=lambda one: (str(meta(self.workloads[one]).get("creationTimestamp")), one)):
            yield from self._answer(cache, key, now_s, stamp)

    def moved(self, gang: str, message: str, *, stamp: str) -> Iterator[Action]:
        """Yield what has Kueue take a gang's pods down and ask for a place anew: its devices are broken."""
        ours = self._ours()
        for workload in self.workloads.values():
            if kueue.gang_of(workload) == gang and kueue.is_held(workload, ours):
                yield kueue.send_back(workload, ours, message, stamp=stamp)

    def _answer(self, cache: ClusterCache, key: str, now_s: float, stamp: str) -> Iterator[Action]:
        workload = self.workloads[key]
        version = str(meta(workload).get("resourceVersion") or "")
        told, at_s = self._answered.get(key, ("", 0.0))
        if told == version and now_s - at_s < AGAIN_S:
            return
        self._answered[key] = version, now_s
        gang = kueue.gang_of(workload)
        cache.forget(gang)  # what it was given before did not come about
        job = cache.jobs.get(gang)
        answer = kueue.answer(
            workload, cache.index, cache.profiles, checks=self._ours(), stamp=stamp, job=job, claims=cache.claims
        )
        if answer is None:
            return
        if answer.placement is not None:
            cache.assume(gang, answer.placement, until_s=now_s + HELD_S)
            self._holding.add(gang)
        yield answer.patch

    def _hold(self, cache: ClusterCache, now_s: float) -> None:
        """Hold what workloads were given and no job shows yet; let go what they lost."""
        ours, placed = self._ours(), cache.placements
        held = {
            kueue.gang_of(one): one
            for one in self.workloads.values()
            if kueue.is_held(one, ours) or kueue.is_asked(one, ours)
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

    def _ours(self) -> frozenset[str]:
        return frozenset(name_of(check) for check in self.checks.values() if kueue.is_ours(check))

    def _of(self, kind: ObjectKind) -> dict[str, Object]:
        return self.checks if kind == ADMISSION_CHECK else self.workloads


def _key(obj: Object) -> str:
    return f"{namespace_of(obj)}/{name_of(obj)}"
