"""Healing: who gets the taint and who loses it, what moves, how many at most; across restarts and stale views."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api.actions import Apply, Event, Patch
from strata.cluster.api.kinds import COMPUTE_NODE, NODE
from strata.cluster.controller.healing import Healing, HealingPolicy, View, heal, owned
from strata.cluster.controller.isolation_state import (
    STANDING,
    UNHEALTHY,
    IsolationState,
    decode,
    encode,
    states_of,
)
from strata.cluster.controller.sub_health import SubHealthReport, Window
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.fleet.fingerprint import Fingerprint, Probe
from strata.fleet.health import Slow
from strata.fleet.isolation import FORGIVEN_S, HOLD_S, MemberState, budget
from tests.cluster.builders import node as node_state
from tests.support.laws import examples

T0 = 1_800_000_000.0
OTHER = {"key": "team", "value": "a", "effect": "NoSchedule"}
ALL, FAULTS, NEVER = HealingPolicy("all"), HealingPolicy("faults"), HealingPolicy("never")


def merged(there: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(there) if isinstance(there, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


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
    placements: dict[str, Placement] = field(default_factory=dict)
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

    def slow(self, *names: str, judged: bool = True) -> None:
        uuids = [self.prints[name].devices[0].uuid for name in names]
        everyone = {device.uuid for one in self.prints.values() for device in one.devices}
        slows = tuple(Slow(uuid, "card", "rate-per-watt", 0.5, 9.0) for uuid in uuids)
        self.sub_health = SubHealthReport(slows, frozenset(everyone if judged else ()))

    def gang(self, key: str, *places: tuple[str, tuple[int, ...]]) -> None:
        pods = tuple(PodPlace(name, devices) for name, devices in places)
        self.placements[key] = Placement("p", pods, 1, 1.0)

    def look(self, now_s: float) -> Healing:
        for name in self.prints:
            if name not in self.is_silent:
                self.received_s[name] = now_s
        view = View(self.nodes, self.compute_nodes, self.prints, self.received_s, self.placements, self.sub_health)
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


def test_a_fault_taints_the_node_at_once_and_says_so() -> None:
    world = World()
    world.health("n3", 0.0, "xid-79", "hot")
    healing = world.step(T0)
    assert world.taints("n3") == ["xid-79:NoSchedule"]
    assert world.out() == {"n3"}
    event = next(one for one in healing.actions if isinstance(one, Event))
    assert (event.ref.kind, event.ref.uid, event.is_warning) == (NODE, "uid-n3", True)
    assert event.message == "n3: xid-79 on n3-0: taken out of service (time 1)"
    apply = next(one for one in healing.actions if isinstance(one, Apply))
    assert (apply.ref.kind, apply.subresource) == (COMPUTE_NODE, "status")
    assert apply.body["status"]["conditions"] == [
        {
            "type": "Isolated",
            "status": "True",
            "reason": "NodeIsolated",
            "message": event.message,
            "lastTransitionTime": "2027-01-15T08:00:00Z",
        }
    ]


def test_of_many_faults_every_taint_comes_before_anything_is_told() -> None:
    world = World(policy=HealingPolicy(share=1.0))
    for name in world.nodes:
        world.health(name, 0.0, "xid-79")
    healing = world.step(T0)
    assert [isinstance(one, Patch) for one in healing.actions[: len(world.nodes)]] == [True] * len(world.nodes)


def test_what_is_as_it_should_be_is_left_alone() -> None:
    world = World()
    world.health("n3", 0.0, "xid-79")
    world.step(T0)
    assert world.step(T0 + 1).actions == ()
    assert World().step(T0) == Healing(World().step(T0).states)


def test_the_word_of_a_taint_stays_and_has_a_labels_form() -> None:
    world = World()
    world.health("n0", 0.0, "ECC error (uncorrected): 3 " + "x" * 99)
    world.step(T0)
    (taint,) = world.taints("n0")
    world.health("n0", 0.0, "hot")
    world.step(T0 + 1)
    assert world.taints("n0") == [taint]
    assert taint.removesuffix(":NoSchedule") == ("ECC-error--uncorrected---3-" + "x" * 99)[:63]


def test_a_device_that_is_slow_takes_its_node_out_and_a_cohort_that_is_slow_nobody() -> None:
    world = World()
    world.slow("n2")
    world.step(T0)
    assert world.taints("n2") == ["slow-rate-per-watt:NoSchedule"]


def test_what_left_as_slow_returns_on_evidence_only() -> None:
    world = World()
    world.slow("n2")
    world.step(T0)
    world.slow(judged=False)
    world.step(T0 + 1)
    world.step(T0 + 2 * HOLD_S)
    assert world.out() == {"n2"}
    world.slow()
    world.step(T0 + 2 * HOLD_S + 1)
    healing = world.step(T0 + 3 * HOLD_S + 1)
    assert events(healing) == ["NodeReleased/n2"]
    assert world.out() == set()


def test_a_node_returns_after_its_time_and_a_relapse_doubles_it() -> None:
    world = World()
    now_s = T0
    for wait_s in (HOLD_S, 2 * HOLD_S, 4 * HOLD_S):
        world.health("n0", 0.0, "hot")
        world.step(now_s)
        world.health("n0")
        world.step(now_s + 1)
        world.step(now_s + wait_s)
        assert world.out() == {"n0"}
        world.step(now_s + 1 + wait_s)
        assert world.taints("n0") == []
        now_s += wait_s + 2
    world.step(now_s + FORGIVEN_S + 1)
    assert STANDING not in world.nodes["n0"]["metadata"]["annotations"]


def test_beyond_the_budget_the_taint_is_soft_and_turns_hard_when_there_is_room() -> None:
    world = World()
    world.health("n0", 0.0, "xid-79")
    world.health("n1", 0.2, "hot")
    healing = world.step(T0)
    assert (healing.waiting, world.out()) == (("n1",), {"n0"})
    assert world.taints("n1") == ["unwell:PreferNoSchedule"]
    assert events(healing) == ["NodeIsolated/n0", "IsolationWaits/n1"]
    world.health("n0")
    world.step(T0 + 1)
    healing = world.step(T0 + 1 + HOLD_S)
    assert events(healing) == ["NodeReleased/n0", "NodeIsolated/n1"]
    assert (world.taints("n0"), world.taints("n1")) == ([], ["hot:NoSchedule"])


def test_the_soft_taint_goes_when_the_node_is_well_not_while_it_wavers() -> None:
    world = World()
    world.health("n0", 0.0, "xid-79")
    world.health("n1", 0.2, "hot")
    world.step(T0)
    for health, expected in ((0.5, 1), (0.2, 1), (0.5, 1), (0.9, 0)):
        world.health("n1", health)
        world.step(T0 + 1)
        assert len(world.taints("n1")) == expected


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    world = World()
    world.health("n0", 0.0, "xid-79")
    world.health("n1", 0.2, "hot")
    world.step(T0)
    said = []
    for at_s, health in ((T0 + 60, 1.0), (T0 + 120, 0.0)):
        world.health("n0", health)
        world.health("n1", health)
        world.step(at_s)
        (condition,) = world.compute_nodes["n1"]["status"]["conditions"]
        said.append((condition["status"], condition["reason"], condition["lastTransitionTime"]))
    assert said == [
        ("False", "NodeReleased", "2027-01-15T08:00:00Z"),
        ("False", "IsolationWaits", "2027-01-15T08:00:00Z"),
    ]


def test_a_taint_removed_by_hand_comes_back_while_the_node_is_out() -> None:
    world = World()
    world.health("n0", 0.0, "xid-79")
    world.step(T0)
    world.nodes["n0"]["spec"]["taints"] = [OTHER]
    world.step(T0 + 1)
    assert world.taints("n0") == ["xid-79:NoSchedule"]


@pytest.mark.parametrize(
    ("policy", "fault", "slow"),
    [
        pytest.param(NEVER, (), (), id="never"),
        pytest.param(FAULTS, ("on-bad",), (), id="faults"),
        pytest.param(ALL, ("on-bad",), ("on-bad",), id="all"),
    ],
)
def test_only_gangs_that_hold_the_device_move_and_only_as_the_policy_says(
    policy: HealingPolicy, fault: tuple[str, ...], slow: tuple[str, ...]
) -> None:
    for is_slow, expected in ((False, fault), (True, slow)):
        world = World(policy=policy)
        world.gang("on-bad", ("n5", (2,)), ("n0", (0, 1)))
        world.gang("beside", ("n0", (2, 3)))
        world.gang("elsewhere", ("n1", (0,)), ("gone", (0,)))
        if is_slow:
            world.slow("n0")
        else:
            world.health("n0", 0.0, "lost")
        assert world.step(T0).moves == expected
        world.health("n0")
        assert world.step(T0 + 1).moves == expected  # until it is gone
        del world.placements["on-bad"]
        assert world.step(T0 + 2).moves == ()


def test_a_slow_device_that_breaks_moves_its_gang() -> None:
    world = World()
    world.gang("job", ("n0", (0,)))
    world.slow("n0")
    assert world.step(T0).moves == ()
    world.health("n0", 0.0, "xid-79")
    assert world.step(T0 + 1).moves == ("job",)


def test_gangs_on_nodes_that_wait_for_the_budget_stay() -> None:
    world = World(policy=ALL)
    for i in range(5):
        world.gang(f"job{i}", (f"n{i}", (0,)))
        world.health(f"n{i}", 0.0, "lost")
    assert len(world.step(T0).moves) == budget(10) == 1


def test_a_node_that_is_not_heard_of_keeps_its_standing_whatever_its_clock_says() -> None:
    world = World()
    world.health("n0", 0.0, "xid-79")
    world.step(T0)
    world.is_silent = {"n0", "n1"}
    world.health("n1", 0.0, "xid-79")  # known, but old by the time it is looked at
    world.received_s["n1"] = T0
    world.health("n0")
    healing = world.step(T0 + 181)
    assert (healing.silent, world.out()) == (("n0", "n1"), {"n0"})
    assert world.step(T0 + 100 * HOLD_S).silent == ("n0", "n1")
    assert world.out() == {"n0"}


def test_silence_does_not_count_as_being_well() -> None:
    world = World()
    world.health("n0", 0.0, "hot")
    world.step(T0)
    world.health("n0")
    world.step(T0 + 1)
    world.is_silent = {"n0"}
    world.step(T0 + 300)
    world.is_silent = set()
    world.step(T0 + HOLD_S + 100)
    assert world.out() == {"n0"}
    world.step(T0 + 2 * HOLD_S + 100)
    assert world.out() == set()


def test_a_node_that_left_the_cluster_takes_no_part_of_the_budget() -> None:
    world = World()
    world.health("n0", 0.0, "xid-79")
    world.step(T0)
    for there in (world.nodes, world.compute_nodes, world.prints):
        there.pop("n0")
    world.health("n1", 0.0, "xid-79")
    world.step(T0 + 1)
    assert world.out() == {"n1"}


healths = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 11), st.sampled_from([0.0, 0.2, 0.5, 1.0]), max_size=6),
        st.sampled_from([1.0, 60.0, HOLD_S, 3 * HOLD_S]),
    ),
    min_size=1,
    max_size=12,
)


@examples(60)
@given(history=healths, share=st.sampled_from([0.05, 0.1, 0.3]))
def test_never_more_than_the_budget_are_out_and_a_restart_changes_nothing(
    history: list[tuple[dict[int, float], float]], share: float
) -> None:
    steady, restarted = (World(12, 1, HealingPolicy("all", share)) for _ in range(2))
    now_s = T0
    for changes, wait_s in history:
        for world in (steady, restarted):
            for i, health in changes.items():
                world.health(f"n{i}", health, "hot")
            world.step(now_s)
            assert len(world.out()) <= budget(12, share=share)
        assert restarted.nodes == steady.nodes
        assert restarted.look(now_s).moves == steady.look(now_s).moves
        restarted.restart(now_s)
        now_s += wait_s


@given(
    is_isolated=st.booleans(),
    ago_s=st.floats(0, 2 * FORGIVEN_S),
    well_ago_s=st.none() | st.floats(0, 1e6),
    times=st.integers(1, 1000),
    causes=st.dictionaries(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60), max_size=8),
)
def test_a_standing_survives_as_text(
    is_isolated: bool, ago_s: float, well_ago_s: float | None, times: int, causes: dict[str, str]
) -> None:
    well_s = None if well_ago_s is None or not is_isolated else T0 - well_ago_s
    standing = MemberState(is_isolated, T0 - ago_s, well_s, times)
    state = IsolationState(standing, causes if is_isolated else {})
    text = encode(state, T0)
    if text:
        assert decode(text, T0) == state
    else:
        assert not is_isolated
        assert ago_s >= FORGIVEN_S * 0.999


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"v":2}',
        '{"v":1,"out":1,"since":0,"times":1}',
        '{"v":1,"out":true,"since":NaN,"times":1}',
        '{"v":1,"out":true,"since":"0","times":1}',
        '{"v":1,"out":true,"since":1e999,"times":1}',
        '{"v":1,"out":true,"since":0,"times":true}',
        '{"v":1,"out":true,"since":0,"times":1e9}',
        '{"v":1,"out":true,"since":0,"times":100000}',
        '{"v":1,"out":true,"since":0,"times":1,"causes":["a"]}',
        '{"v":1,"out":true,"since":0,"times":1,"causes":{"a":3}}',
        '{"v":1,"out":true,"since":0,"times":1,"causes":{"a":"' + "x" * 999 + '"}}',
        "[" * 100_000,
        "1" * 10_000,
    ],
)
def test_garbage_is_told_and_the_taint_alone_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(text, T0)
    world = World(2)
    for name in world.nodes:
        world.nodes[name]["metadata"]["annotations"] = {STANDING: text}
    hard = {"key": UNHEALTHY, "value": "hot", "effect": "NoSchedule"}
    world.nodes["n1"]["spec"]["taints"] = [OTHER, hard]
    states, said = states_of(world.nodes, T0)
    assert states == {"n1": IsolationState(MemberState(is_isolated=True, since_s=T0, times=1))}
    assert [event.reason for event in said] == ["StandingUnreadable", "StandingUnreadable"]


@given(st.text(max_size=200) | st.binary(max_size=50).map(repr))
def test_any_text_is_a_mark_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert decode(text, T0).standing.times >= 1


def test_times_ahead_of_the_readers_clock_count_as_now() -> None:
    ahead = IsolationState(MemberState(is_isolated=True, since_s=T0 + 1e6, well_since_s=T0 + 1e6, times=1))
    read = decode(encode(ahead, T0), T0).standing
    assert (read.since_s, read.well_since_s) == (T0, T0)


def probed(name: str, rate: float, power_w: float | None, said_s: float) -> Fingerprint:
    found = node_state(name, count=1).fingerprint
    return replace(found, devices=(replace(found.devices[0], probe=Probe(said_s, rate, power_w)),))


def watched(rates: dict[str, tuple[float, float]], *, skew_s: float = 0.0, times: int = 11) -> SubHealthReport:
    window = Window()
    for i in range(times):
        for name, (rate, power_w) in rates.items():
            window.add(probed(name, rate, power_w, said_s=i * 30.0 - skew_s), T0 + i * 30.0)
    return window.look(T0 + (times - 1) * 30.0)


WELL = {f"n{i}": (300e12 + i * 1e12, 400.0) for i in range(7)}


def test_fewer_flops_or_fewer_flops_per_watt_than_the_cohort_is_slow() -> None:
    assert [one.what for one in watched(WELL | {"x": (150e12, 200.0)}).slow] == ["rate"]
    assert [one.what for one in watched(WELL | {"x": (300e12, 800.0)}).slow] == ["rate-per-watt"]


def test_a_cohort_that_is_slow_as_a_whole_loses_nobody() -> None:
    assert watched(WELL).slow == ()
    assert watched({name: (rate / 3, power_w) for name, (rate, power_w) in WELL.items()}).slow == ()


def test_a_clock_that_is_off_by_days_changes_nothing() -> None:
    rates = WELL | {"x": (150e12, 200.0)}
    assert watched(rates, skew_s=3 * 86400.0) == watched(rates, skew_s=-3 * 86400.0) == watched(rates)


def test_a_probe_published_again_is_no_new_sample() -> None:
    window = Window()
    for i in range(30):
        for name, (rate, power_w) in (WELL | {"x": (1e12, 400.0)}).items():
            window.add(probed(name, rate, power_w, said_s=7.0), T0 + i * 10.0)
    assert window.look(T0 + 290.0) == SubHealthReport()


def test_one_slow_moment_is_not_enough() -> None:
    window = Window()
    for i in range(11):
        for name, (rate, power_w) in (WELL | {"x": (300e12 if i != 5 else 1e12, 400.0)}).items():
            window.add(probed(name, rate, power_w, said_s=i * 30.0), T0 + i * 30.0)
    assert window.look(T0 + 300.0).slow == ()


def test_a_compute_node_goes_with_its_node() -> None:
    nodes = {"n1": {"metadata": {"name": "n1", "uid": "u1"}}}
    compute_nodes = {"n1": {"metadata": {"name": "n1"}}, "n2": {"metadata": {"name": "n2"}}}
    (patch,) = owned(nodes, compute_nodes)
    assert patch.body["metadata"]["ownerReferences"][0]["uid"] == "u1"
    compute_nodes["n1"] = {"metadata": {"name": "n1", **patch.body["metadata"]}}
    assert not list(owned(nodes, compute_nodes))
