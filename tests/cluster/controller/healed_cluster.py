"""Nodes as the API server has them, and a controller that heals them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from strata.cluster.api.actions import Apply, Event, Patch
from strata.cluster.controller.healing import Healing, HealingPolicy, HealingView, heal
from strata.cluster.controller.isolation_state import (
    UNHEALTHY,
    IsolationState,
    states_of,
)
from strata.cluster.controller.sub_health import SubHealthReport
from strata.fleet.fingerprint import Fingerprint
from strata.fleet.health import Slow
from tests.cluster.builders import node as node_state
from tests.cluster.merge_patches import merged

SlowBy = Literal["rate", "rate-per-watt", "clock"]
T0 = 1_800_000_000.0
OTHER = {"key": "team", "value": "a", "effect": "NoSchedule"}


@dataclass
class World:
    """Nodes as the API server has them, their fingerprints, and a controller over them."""

    count: int = 10
    devices: int = 4
    policy: HealingPolicy = field(default_factory=HealingPolicy)
    nodes: dict[str, Any] = field(default_factory=dict)
    compute_nodes: dict[str, Any] = field(default_factory=dict)
    prints: dict[str, Fingerprint] = field(default_factory=dict)
    received_s: dict[str, float] = field(default_factory=dict)
    holds: dict[str, dict[str, frozenset[int]]] = field(default_factory=dict)
    sub_health: SubHealthReport = field(default_factory=SubHealthReport)
    states: Mapping[str, IsolationState] = field(default_factory=dict)
    is_silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for i in range(self.count):
            name = f"n{i}"
            metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
            self.nodes[name] = {"metadata": metadata, "spec": {"taints": [OTHER]}}
            self.compute_nodes[name] = {"metadata": {"name": name}, "status": {}}
            self.prints[name] = node_state(name, count=self.devices).fingerprint

    def health(self, name: str, health: float = 1.0, *faults: str, device: int = 0) -> None:
        devices = list(self.prints[name].devices)
        devices[device] = replace(devices[device], health=health, faults=faults)
        self.prints[name] = replace(self.prints[name], devices=tuple(devices))

    def slow(self, *names: str, judged: bool = True, what: SlowBy = "rate-per-watt") -> None:
        uuids = [self.prints[name].devices[0].uuid for name in names]
        everyone = {device.uuid for one in self.prints.values() for device in one.devices}
        slows = tuple(Slow(uuid, "card", what, 0.5) for uuid in uuids)
        self.sub_health = SubHealthReport(slows, frozenset(everyone if judged else ()))

    def gang(self, key: str, *places: tuple[str, tuple[int, ...]]) -> None:
        self.holds[key] = {name: frozenset(devices) for name, devices in places}

    def look(self, now_s: float) -> Healing:
        for name in self.prints:
            if name not in self.is_silent:
                self.received_s[name] = now_s
        view = HealingView(
            self.nodes, self.compute_nodes, self.prints, self.received_s, lambda: self.holds, self.sub_health
        )
        return heal(view, self.states, now_s, policy=self.policy)

    def step(self, now_s: float) -> Healing:
        """Decide, and do all of it."""
        healing = self.look(now_s)
        self.states = healing.states
        for action in healing.actions:
            if isinstance(action, Patch):
                old = self.nodes[action.ref.name]
                assert action.resource_version == old["metadata"]["resourceVersion"]
                new = merged(copy.deepcopy(old), action.body)
                new["metadata"]["resourceVersion"] = str(int(action.resource_version) + 1)
                self.nodes[action.ref.name] = new
            elif isinstance(action, Apply):
                self.compute_nodes[action.ref.name] = merged(self.compute_nodes[action.ref.name], action.body)
        return healing

    def restart(self, now_s: float) -> None:
        self.states, _ = states_of(self.nodes, now_s)

    def taints(self, name: str) -> list[str]:
        taints = self.nodes[name]["spec"]["taints"]
        assert OTHER in taints
        return [f"{one['value']}:{one['effect']}" for one in taints if one["key"] == UNHEALTHY]

    def out(self) -> set[str]:
        return {name for name in self.nodes if any(taint.endswith(":NoSchedule") for taint in self.taints(name))}


def events(healing: Healing) -> list[str]:
    return [f"{one.reason}/{one.ref.name}" for one in healing.actions if isinstance(one, Event)]
