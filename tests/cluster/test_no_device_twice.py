"""The controller between a server that answers late or not at all, and a watch that lags: no device goes twice."""

from __future__ import annotations

import itertools
import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import cluster_objects as objects
from cluster_builders import A100, PROFILES
from merge_patches import merged
from strata.cluster import jobs, kinds
from strata.cluster.act import Actor
from strata.cluster.book import Book, job_placement
from strata.cluster.controller import Controller
from strata.cluster.healing import Policy
from strata.cluster.kinds import ObjectKind, meta
from strata.cluster.kube.api import ApiFailed
from strata.cluster.kube.watch import Change
from strata.cluster.live import Live
from strata.cluster.manager import Manager
from strata.cluster.window import Window

OVER = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}


class Server:
    """Jobs with versions; what changed waits in `news` until it is delivered. Fails as `trouble` says."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        self.news: dict[ObjectKind, list[Change]] = {}
        self.trouble: list[str] = []
        self._versions = itertools.count(1)

    def put(self, kind: ObjectKind, obj: Any) -> Any:
        obj = merged(obj, {"metadata": {"resourceVersion": str(next(self._versions))}})
        self.objects[kind.kind, meta(obj)["name"]] = obj
        self.news.setdefault(kind, []).append(Change(kind, "MODIFIED", obj))
        return obj

    def remove(self, kind: ObjectKind, name: str) -> None:
        if obj := self.objects.pop((kind.kind, name), None):
            self.news.setdefault(kind, []).append(Change(kind, "DELETED", obj))

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
        return obj

    def delete(self, kind: ObjectKind, name: str, namespace: str = "") -> None:
        self.remove(kind, name)


class World:
    """Two nodes of eight devices, and a controller that may be replaced by one that has just listed everything."""

    def __init__(self) -> None:
        self.server, self.now_s = Server(), 1_800_000_000.0
        for name in ("n1", "n2"):
            self.server.put(kinds.NODE, objects.node(name))
            self.server.put(kinds.COMPUTE_NODE, objects.devices(name))
        self.take_over()

    def take_over(self) -> None:
        self.server.news.clear()
        self.live = Live(self.server, Book(PROFILES), rng=random.Random(1), clock=lambda: self.now_s)  # type: ignore[arg-type]
        ids = itertools.count()
        actor = Actor(self.server, clock=lambda: self.now_s, new_id=lambda: f"{next(ids)}", instance="t")  # type: ignore[arg-type]
        self.manager = Manager(
            self.live,
            actor,
            Controller(),
            is_leader=lambda: True,
            policy=Policy(),
            window=Window(),
            clock=lambda: self.now_s,
        )
        for kind in (kinds.NODE, kinds.COMPUTE_NODE, *KINDS):
            there = [obj for (name, _), obj in self.server.objects.items() if name == kind.kind]
            self.live.book.listed(kind, there)

    def deliver(self, kind: ObjectKind, count: int) -> None:
        for one in self.server.news.get(kind, [])[:count]:
            self.live.book.changed(kind, one.obj, is_gone=one.type == "DELETED")
        del self.server.news.get(kind, [])[:count]

    def held(self) -> list[tuple[str, int]]:
        found = []
        for (kind, _), obj in self.server.objects.items():
            if kind in ("Job", "JobSet") and not jobs.is_suspended(obj) and not jobs.is_finished(obj):
                placement = job_placement(obj)
                assert placement is not None
                found += [(pod.node, device) for pod in placement.pods for device in pod.devices]
        return found


KINDS = (kinds.JOB, kinds.JOB_SET)
"""Two, since nothing orders what is heard of one after what is heard of the other."""


def job(kind: ObjectKind, name: str, pods: int, devices: int) -> Any:
    made = objects.job(name, pods=pods, devices=devices, accelerator=A100)
    if kind == kinds.JOB:
        return made
    spec = {"suspend": True, "replicatedJobs": [{"name": "w", "template": {"spec": made["spec"]}}]}
    return {**made, "apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}


def key(name: str) -> ObjectKind:
    return KINDS[name > "c"]


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
EVENTS = st.one_of(
    st.tuples(st.just("submit"), NAMES, st.integers(1, 3), st.sampled_from([2, 4, 8])),
    st.tuples(st.just("deliver"), st.sampled_from(KINDS), st.integers(1, 6)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("touch"), NAMES),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("trouble"), st.lists(st.sampled_from(["", "refused", "lost"]), max_size=4).map(tuple)),
    st.tuples(st.just("wait"), st.just(0.5)),
    st.tuples(st.just("take over")),
)


LATE = [("submit", "a", 1, 2), ("deliver", kinds.JOB, 1), ("turn",), ("submit", "d", 1, 2)]
LATE += [("deliver", kinds.JOB_SET, 1), ("turn",)]


@settings(deadline=None)
@example(LATE)
@example([LATE[0], LATE[1], ("trouble", ("lost",)), *LATE[2:]])
@given(st.lists(EVENTS, min_size=5, max_size=40))
def test_whatever_is_late_lost_or_refused_no_device_is_given_twice(events: list[tuple[Any, ...]]) -> None:
    world = World()
    server = world.server
    for what, *said in events:
        name = said[0] if said and isinstance(said[0], str) else ""
        kind = key(name)
        old = server.objects.get((kind.kind, name))
        if what == "submit" and old is None:
            server.put(kind, job(kind, *said))
        elif what == "deliver":
            world.deliver(*said)
        elif what == "turn":
            world.manager.turn()
        elif what == "touch" and old:
            server.put(kind, merged(old, {"status": {"ready": 0}}))
        elif what == "end" and old:
            server.put(kind, merged(old, OVER))
        elif what == "delete":
            server.remove(kind, name)
        elif what == "trouble":
            server.trouble = list(said[0])
        elif what == "wait":
            world.now_s += said[0]
        elif what == "take over":
            world.take_over()
        held = world.held()
        assert len(held) == len(set(held)), f"after {what} {said}: {sorted(held)}"
