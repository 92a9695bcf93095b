"""What watches tell, as the cache is told it."""

from __future__ import annotations

import random

import pytest

from strata.cluster.api.kinds import COMPUTE_NODE, POD
from strata.cluster.api.watch import Listed, WatchEvent
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.informer import Informer
from tests.cluster import objects


class Told(ClusterCache):
    """A cache that notes what it is told: a pod's name and where it runs."""

    def __init__(self):
        super().__init__()
        self.said = []

    def changed(self, kind, obj, *, is_gone=False):
        self.said.append((obj["metadata"]["name"], "gone" if is_gone else obj["spec"].get("nodeName", "")))
        super().changed(kind, obj, is_gone=is_gone)

    def listed(self, kind, some):
        self.said.append("listed")
        super().listed(kind, some)


@pytest.mark.parametrize(
    ("news", "told"),
    [
        pytest.param(["a", "b", "a@n1", "a@n2"], [("b", ""), ("a", "n2")], id="of changes the last"),
        pytest.param(["a@n1", "-a", "a"], [("a", "n1"), ("a", "gone"), ("a", "")], id="made anew"),
        pytest.param(["a", "list", "a@n1"], [("a", ""), "listed", ("a", "n1")], id="listed between"),
    ],
)
def test_news_of_one_object_that_follow_each_other_are_told_once(news, told):
    informer = Informer(None, Told(), watched=(), rng=random.Random(0))
    for item in news:
        name, _, node = item.removeprefix("-").partition("@")
        what = "DELETED" if item.startswith("-") else "MODIFIED"
        event = WatchEvent(POD, what, objects.pod(name, on=node))
        informer._news.put(Listed(POD, ()) if item == "list" else event)
    assert informer.pump(0.0) == {POD}
    assert informer.cache.said == told


def test_a_heartbeat_that_says_nothing_new_is_no_news_but_the_node_is_heard_of():
    now_s = 0.0
    informer = Informer(None, ClusterCache(), watched=(), rng=random.Random(0), clock=lambda: now_s)
    for at, sick, heard in (("10:00:00", (), True), ("10:02:30", (), False), ("10:05:00", (3,), True)):
        node = objects.devices("n1", sick=sick)
        node = {**node, "status": {**node["status"], "observedAt": f"2026-11-27T{at}Z"}}
        now_s += 150.0
        informer._news.put(WatchEvent(COMPUTE_NODE, "MODIFIED", node))
        assert informer.pump(0.0) == ({COMPUTE_NODE} if heard else set())
        assert informer.received_s == {"n1": now_s}
    informer._news.put(WatchEvent(COMPUTE_NODE, "DELETED", node))
    assert informer.pump(0.0) == {COMPUTE_NODE}
