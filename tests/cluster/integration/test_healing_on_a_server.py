"""Healing against a real API server: what it takes of our patches, conditions and events, and what it refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from strata.cluster.agent.publish import MANAGER as AGENT
from strata.cluster.api.actions import Event
from strata.cluster.api.applier import Applier
from strata.cluster.api.crd.compute_node import compute_node, fingerprint_of
from strata.cluster.api.kinds import COMPUTE_NODE, EVENT, NODE, annotations_of, meta, moment
from strata.cluster.controller.healing import HealingPolicy, HealingView, heal
from strata.cluster.controller.isolation_state import STANDING, UNHEALTHY, node_ref, states_of
from strata.fleet.isolation import HOLD_S
from tests.cluster.builders import node
from tests.cluster.integration.definitions import define

T0 = 1_800_000_000.0
THEIRS = {"key": "team", "value": "a", "effect": "NoSchedule"}


class World:
    """One node on the server, its agent, and a controller with a clock of its own."""

    def __init__(self, api, nodes, name):
        self.api, self.name, self.now_s, self.states = api, name, T0, {}
        ids = itertools.count()
        self.applier = Applier(api, clock=lambda: self.now_s, new_id=lambda: f"{next(ids)}", instance="test")
        nodes.add(name, taints=(THEIRS,))
        self.health()

    def health(self, health=1.0, *faults):
        fingerprint = node(self.name, count=2).fingerprint
        devices = list(fingerprint.devices)
        devices[0] = replace(devices[0], health=health, faults=faults)
        made = compute_node(replace(fingerprint, devices=tuple(devices)), at=moment(self.now_s))
        self.api.apply(COMPUTE_NODE, {k: made[k] for k in made if k != "status"}, manager=AGENT)
        self.api.apply(COMPUTE_NODE, made, subresource="status", manager=AGENT)

    def node(self):
        return self.api.get(NODE, self.name)

    def look(self, node=None):
        own = self.api.get(COMPUTE_NODE, self.name)
        prints, received = {self.name: fingerprint_of(own)}, {self.name: self.now_s}
        view = HealingView({self.name: node or self.node()}, {self.name: own}, prints, received)
        return heal(view, self.states, self.now_s, policy=HealingPolicy())

    def step(self, now_s):
        self.now_s = now_s
        healing = self.look()
        self.states = healing.states
        assert self.applier.do(healing.actions) == ()

    def taints(self):
        return [
            (one["key"], one.get("value"), one["effect"])
            for one in self.node()["spec"]["taints"]
            if not one["key"].startswith("node.kubernetes.io/")
        ]

    def condition(self):
        conditions = self.api.get(COMPUTE_NODE, self.name)["status"].get("conditions", [])
        return [(one["type"], one["status"], one["reason"]) for one in conditions]

    def events(self):
        found, _ = self.api.list(EVENT, namespace="default")
        return [one for one in found if one["regarding"]["name"] == self.name]


@pytest.fixture
def world(api, nodes, request):
    define(api)
    return World(api, nodes, "healing-" + request.node.name[-20:].replace("_", "-").strip("-"))


OTHERS = ("team", "a", "NoSchedule")
OURS = (UNHEALTHY, "xid-79", "NoSchedule")


def test_a_fault_taints_and_after_its_time_the_taint_is_gone(world):
    world.health(0.0, "xid-79")
    world.step(T0)
    assert world.taints() == [OTHERS, OURS]
    assert world.condition() == [("Isolated", "True", "NodeIsolated")]
    world.health()  # the agent applies anew, and takes nothing of ours with it
    assert world.condition() == [("Isolated", "True", "NodeIsolated")]
    world.step(T0 + 10)
    world.states, _ = states_of({world.name: world.node()}, T0 + 20)  # another controller goes on
    world.step(T0 + 10 + HOLD_S)
    assert world.taints() == [OTHERS]
    assert world.condition() == [("Isolated", "False", "NodeReleased")]
    assert {one["reason"] for one in world.events()} == {"NodeIsolated", "NodeReleased"}
    world.step(T0 + 20 + HOLD_S)  # says nothing more
    assert world.look().actions == ()


def test_a_node_that_somebody_else_changed_is_looked_at_again(world):
    world.health(0.0, "xid-79")
    old = world.node()
    other = {"metadata": {"labels": {"changed": "meanwhile"}}}
    world.api.patch(NODE, world.name, body=other)
    failures = world.applier.do(world.look(old).actions)
    assert {failure.what for failure in failures} == {"look-again"}
    assert world.taints() == [OTHERS]
    assert world.events() == []
    world.step(T0 + 1)
    assert world.taints() == [OTHERS, OURS]
    assert STANDING in annotations_of(world.node())
    assert meta(world.node())["labels"]["changed"] == "meanwhile"


def test_events_are_counted_and_their_lengths_cut(world):
    ref = node_ref(world.node())
    long = Event(ref, "NodeIsolated", "é" * 3000, is_warning=True)
    assert world.applier.do([long, long, long]) == ()
    (event,) = world.events()
    assert event["series"]["count"] == 3
    assert event["regarding"]["uid"] == meta(world.node())["uid"]
    assert event["type"] == "Warning"
