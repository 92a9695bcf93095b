"""Healing: who gets the taint and who loses it, what moves, how many at most; across restarts and stale views."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api.actions import Apply, Event, Patch
from strata.cluster.api.kinds import COMPUTE_NODE, NODE
from strata.cluster.cache.informer import STALE_S
from strata.cluster.controller.healing import Healing, HealingPolicy, HealingView, heal, owned
from strata.cluster.controller.isolation_state import (
    STANDING,
)
from strata.fleet.isolation import FORGIVEN_S, HOLD_S, budget
from tests.cluster.controller.healed_cluster import OTHER, T0, World, events
from tests.support.laws import examples

ALL, FAULTS, NEVER = HealingPolicy("all"), HealingPolicy("faults"), HealingPolicy("never")
healths = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 11), st.sampled_from([0.0, 0.2, 0.5, 1.0]), max_size=6),
        st.sampled_from([1.0, 60.0, HOLD_S, 3 * HOLD_S]),
    ),
    min_size=1,
    max_size=12,
)


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


def test_what_left_for_its_clock_at_work_returns_without_evidence_since_it_has_no_work() -> None:
    world = World()
    world.slow("n2", what="clock")
    world.step(T0)
    assert world.taints("n2") == ["slow-clock:NoSchedule"]
    world.slow(judged=False)
    world.step(T0 + 1)
    world.step(T0 + HOLD_S)
    assert world.out() == {"n2"}
    world.step(T0 + HOLD_S + 1)
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
        del world.holds["on-bad"]
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
    healing = world.step(T0 + STALE_S + 1)
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
    world.step(T0 + 400)
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


def test_a_compute_node_goes_with_its_node() -> None:
    nodes = {"n1": {"metadata": {"name": "n1", "uid": "u1"}}}
    compute_nodes = {"n1": {"metadata": {"name": "n1"}}, "n2": {"metadata": {"name": "n2"}}}
    (patch,) = owned(nodes, compute_nodes)
    assert patch.body["metadata"]["ownerReferences"][0]["uid"] == "u1"
    compute_nodes["n1"] = {"metadata": {"name": "n1", **patch.body["metadata"]}}
    assert not list(owned(nodes, compute_nodes))


def test_who_holds_what_is_asked_only_where_a_device_took_its_node_out() -> None:
    """Of 20,000 pods it takes longer than all the rest."""
    world, asked = World(), list[int]()

    def holds():
        asked.append(1)
        return {}

    received_s = dict.fromkeys(world.prints, T0)
    view = HealingView(world.nodes, world.compute_nodes, world.prints, received_s, holds)
    healing = heal(view, {}, T0)
    assert asked == []
    world.health("n0", 0.0, "lost")
    heal(view, healing.states, T0 + 1)
    assert asked == [1]
