"""A controller and the server it acts on, which answers late or not at all, under a watch that lags."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from typing import Any

from strata.cluster.api import jobs, kinds
from strata.cluster.api.applier import Applier
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import ObjectKind, meta
from strata.cluster.api.watch import Listed, WatchEvent
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.informer import Informer
from strata.cluster.controller.controller import CyclePolicy
from strata.cluster.controller.healing import HealingPolicy
from strata.cluster.controller.manager import Manager
from strata.cluster.controller.sub_health import Window
from tests.cluster import objects
from tests.cluster.builders import A100, PROFILES
from tests.cluster.merge_patches import merged

KINDS = (kinds.JOB, kinds.JOB_SET)
"""Two, since nothing orders what is heard of one after what is heard of the other."""


def job(kind: ObjectKind, name: str, pods: int, devices: int) -> Any:
    may_move = {"preemptible": "true", "checkpoint_dir": f"/{name}"}
    made = objects.job(name, pods=pods, devices=devices, accelerator=A100, **may_move)
    if kind == kinds.JOB:
        return made
    spec = {"suspend": True, "replicatedJobs": [{"name": "w", "template": {"spec": made["spec"]}}]}
    return {**made, "apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}


class Server:
    """Jobs with versions; what changed waits in `news` until it is delivered. Fails as `trouble` says."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        self.news: dict[ObjectKind, list[WatchEvent]] = {}
        self.trouble: list[str] = []
        self.events: list[Any] = []
        self._versions = itertools.count(1)

    def put(self, kind: ObjectKind, obj: Any) -> Any:
        obj = merged(obj, {"metadata": {"resourceVersion": str(next(self._versions))}})
        self.objects[kind.kind, meta(obj)["name"]] = obj
        self.news.setdefault(kind, []).append(WatchEvent(kind, "MODIFIED", obj))
        return obj

    def remove(self, kind: ObjectKind, name: str) -> None:
        if obj := self.objects.pop((kind.kind, name), None):
            self.news.setdefault(kind, []).append(WatchEvent(kind, "DELETED", obj))

    def patch(self, kind: ObjectKind, name: str, namespace: str = "", **said: Any) -> Any:
        trouble = self.trouble.pop() if self.trouble else ""
        old = self.objects.get((kind.kind, name))
        if old is None:
            raise ApiFailed("gone", status=404)
        if trouble == "refused" or said.get("resource_version", "") not in ("", meta(old)["resourceVersion"]):
            raise ApiFailed("changed meanwhile", status=409)
        new = self.put(kind, merged(old, said["body"]))
        if trouble == "lost":
            raise ApiFailed("no answer")
        return new

    def apply(self, kind: ObjectKind, obj: Any, **said: Any) -> Any:
        return self.put(kind, merged(self.objects.get((kind.kind, meta(obj)["name"])), obj))

    def create(self, kind: ObjectKind, obj: Any, **said: Any) -> Any:
        self.events.append(obj)
        return obj

    def delete(self, kind: ObjectKind, name: str, namespace: str = "") -> None:
        self.remove(kind, name)


class BusyLock:
    """A cache's lock that others hold first: `meanwhile` is what they do, one call each time it is taken."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.meanwhile = lock, []

    def __enter__(self) -> None:
        if self.meanwhile and (do := self.meanwhile.pop(0)):
            rest, self.meanwhile = self.meanwhile, []  # what is done takes the lock as well
            do()
            self.meanwhile = rest
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


class World:
    """Two nodes of eight devices, and a controller that may be replaced by one that has just listed everything.

    does_make_room: it moves jobs for others.
    """

    def __init__(self, *, does_make_room: bool = False) -> None:
        self.cycle_policy = CyclePolicy(does_make_room=does_make_room)
        self.server, self.now_s = Server(), 1_800_000_000.0
        for name in ("n1", "n2"):
            self.server.put(kinds.NODE, objects.node(name))
            self.server.put(kinds.COMPUTE_NODE, objects.devices(name))
        self.take_over()

    def take_over(self) -> None:
        self.server.news.clear()
        self.informer = Informer(
            self.server, ClusterCache(PROFILES), rng=random.Random(1), clock=lambda: self.now_s
        )  # type: ignore[arg-type]
        self.informer.lock = BusyLock(self.informer.lock)
        ids = itertools.count()
        applier = Applier(self.server, clock=lambda: self.now_s, new_id=lambda: f"{next(ids)}", instance="t")  # type: ignore[arg-type]
        self.manager = Manager(
            self.informer,
            applier,
            applier,
            is_leader=lambda: True,
            policy=HealingPolicy(),
            window=Window(),
            saved_s=lambda folder: 0.0,
            cycle_policy=self.cycle_policy,
            clock=lambda: self.now_s,
        )
        for kind in (kinds.NODE, kinds.COMPUTE_NODE, kinds.COMPUTE_CLAIM, *KINDS):
            there = [obj for (name, _), obj in self.server.objects.items() if name == kind.kind]
            self.informer._news.put(Listed(kind, tuple(there)))
        self.informer.pump(0.0)

    def turn(self) -> None:
        self.manager.heal()
        self.manager.place()

    def deliver(self, kind: ObjectKind, count: int) -> None:
        for one in self.server.news.get(kind, [])[:count]:
            self.informer._news.put(one)
            self.informer.pump(0.0)
        del self.server.news.get(kind, [])[:count]

    def meanwhile(self, deliveries: Sequence[tuple[ObjectKind, int] | None]) -> None:
        """Deliver these in the middle of the next turn, each where the lock of the cache is taken again."""
        made = [delivery and functools.partial(self.deliver, *delivery) for delivery in deliveries]
        self.informer.lock.meanwhile = made

    def held(self) -> list[tuple[str, int]]:
        found = []
        for (kind, _), obj in self.server.objects.items():
            if kind in ("Job", "JobSet") and not jobs.is_suspended(obj) and not jobs.is_finished(obj):
                placement = jobs.job_placement(obj)
                assert placement is not None
                found += [(pod.node, device) for pod in placement.pods for device in pod.devices]
        return found
