from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.evaluation.kpi.domain_states import random_state
from strata.fleet.dynamics.regimes import Regimes
from strata.training.hi_ppo.assignment import assignments
from strata.training.hi_ppo.binding import (
    Binding,
    balanced,
    equal_shares,
    group_speed,
    holds,
    pace,
    planned_binding,
)
from strata.training.hi_ppo.candidates import RESTART_S, candidates, downtime_s
from strata.training.hi_ppo.outlook import chances, expected
from strata.training.hi_ppo.placement import fresh, gathered, node_groups, swap
from strata.workload.job import SEARCHED
from strata.workload.plan import TrainingPlan
from tests.support.laws import examples
from tests.training.hi_ppo.domain_states import LOST, chain_plan, domain_state, part

SEEDS = st.integers(0, 2**32 - 1)


def names(menu):
    return [candidate.name for candidate in menu]


def in_state(where, devices, states):
    health = where.health.copy()
    health[devices] = states
    return replace(where, health=health)


def ahead_of(of, where, binding):
    return expected(where, binding, pace(of, where, binding), planned_s=1.0)


def menu(of, where, binding=None):
    return {item.name: item for item in candidates(of, where, binding or planned_binding(of.assignment))}


def test_the_planned_binding_on_good_devices_takes_what_the_cost_model_says():
    for schedule in SEARCHED:
        mine = part(schedule=schedule, microbatches=32)
        step_s = pace(mine, domain_state(mine), planned_binding(mine.assignment)).step_s
        [report] = mine.model.reports([mine.assignment.plan])
        assert step_s == pytest.approx(report.step_time_s, rel=0.01)


@given(seed=SEEDS)
@examples(40)
def test_the_step_of_stragglers_is_at_most_one_percent_short_of_the_recurrence(seed):
    rng = np.random.default_rng(seed)
    mine = part(devices=24, stages=int(rng.integers(1, 5)), copies=3, microbatches=int(rng.integers(1, 65)))
    where, binding = random_state(mine.domain, rng), planned_binding(mine.assignment)
    where = in_state(where, np.arange(24), rng.integers(0, LOST, 24))
    exact = pace(mine, where, binding, is_exact=True).step_s
    assert 0.99 * exact <= pace(mine, where, binding).step_s <= exact * (1 + 1e-9) or exact == np.inf


def test_one_slow_member_slows_its_whole_group():
    mine = part()
    binding = planned_binding(mine.assignment)
    assert group_speed(domain_state(mine, slow=[5]), binding.devices).tolist() == [[1, 1], [0.3, 1], [1, 1]]


def test_a_lost_device_ends_the_binding_that_uses_it_and_no_other():
    mine = part()
    binding = planned_binding(mine.assignment)
    assert not holds(mine, domain_state(mine, lost=[5]), binding)
    assert pace(mine, domain_state(mine, lost=[5]), binding).step_s == np.inf
    assert holds(mine, domain_state(mine, lost=[13]), binding)


def test_a_device_without_the_memory_cannot_hold_its_stage():
    mine = part()
    where = domain_state(mine)
    where.free_memory_bytes[3] = 1e9
    assert not holds(mine, where, planned_binding(mine.assignment))


# A pipeline that does not fill on so few microbatches: by the time of its slowest stage, three ended with two.
@example(seed=1575)
@given(seed=SEEDS)
@examples(60)
def test_shares_serve_every_microbatch_and_are_never_slower_than_equal_ones(seed):
    rng = np.random.default_rng(seed)
    mine = part(devices=32, copies=int(rng.integers(2, 7)), microbatches=int(rng.integers(2, 20)))
    where, binding = random_state(mine.domain, rng), planned_binding(mine.assignment)
    [better] = balanced(mine, where, [binding.devices])
    assert better.microbatches.sum() == mine.assignment.microbatches
    assert better.microbatches.min() >= 1
    assert pace(mine, where, better).step_s <= pace(mine, where, binding).step_s


def test_a_slow_copy_gets_fewer_microbatches():
    mine = part()
    [binding] = balanced(mine, domain_state(mine, slow=[0]), [planned_binding(mine.assignment).devices])
    counts = binding.microbatches
    assert counts[0] < counts[1] == counts[2] or abs(int(counts[1]) - int(counts[2])) == 1


@given(seed=SEEDS)
@examples(40)
def test_every_candidate_can_run_and_keeps_groups_within_nodes_and_devices_apart(seed):
    rng = np.random.default_rng(seed)
    mine = part(devices=32, per_node=8, ranks=4, copies=3)
    where = random_state(mine.domain, rng)
    for item in candidates(mine, where, planned_binding(mine.assignment)):
        devices = item.binding.devices
        assert len(set(item.binding.used.tolist())) == item.binding.used.size
        assert (where.node[devices] == where.node[devices[:, :, :1]]).all()
        assert item.binding.microbatches.sum() == mine.assignment.microbatches
        assert item.name == "keep" or (item.is_legal and holds(mine, where, item.binding))


def test_keeping_comes_first_and_is_legal_unless_what_it_runs_on_is_gone():
    mine = part()
    assert names(candidates(mine, domain_state(mine), planned_binding(mine.assignment)))[0] == "keep"
    first, *rest = candidates(mine, domain_state(mine, lost=[0]), planned_binding(mine.assignment))
    assert (first.name, first.is_legal) == ("keep", False)
    assert rest


def test_a_straggler_offers_all_ways_out():
    mine = part(devices=24)
    assert {"keep", "rebalance", "swap-worst", "drop-slowest", "fresh-tight", "tensor-parallel-1"} <= set(
        menu(mine, domain_state(mine, slow=[0]))
    )


def test_where_nothing_is_slow_no_binding_beats_keeping_but_by_its_layout():
    mine = part()
    where, binding = domain_state(mine), planned_binding(mine.assignment)
    kept = pace(mine, where, binding).step_s
    assert all(pace(mine, where, item.binding).step_s > 0.98 * kept for item in candidates(mine, where, binding))


def test_a_spare_replaces_the_slow_device_and_nothing_else_moves():
    mine = part()
    swapped = menu(mine, domain_state(mine, slow=[5]))["swap-worst"].binding
    before = planned_binding(mine.assignment)
    changed = (swapped.devices != before.devices).any(axis=2)
    assert changed.sum() == 1
    assert 5 not in swapped.used


def test_a_swap_prefers_a_spare_of_the_same_node():
    mine = part(devices=16, per_node=8)  # devices 0..11 in use
    swapped = swap(domain_state(mine), planned_binding(mine.assignment).devices, np.ones(16, dtype=bool), [(2, 1)])
    assert np.array_equal(swapped, planned_binding(mine.assignment).devices)  # nothing is faster
    where = domain_state(mine, slow=[11])
    swapped = swap(where, planned_binding(mine.assignment).devices, where.speed > 0, [(2, 1)])
    assert swapped[2, 1].tolist() == [10, 12]


def test_stragglers_gather_in_one_copy_without_loading_anything():
    mine = part()
    where, before = domain_state(mine, slow=[1, 6]), planned_binding(mine.assignment)
    after = Binding(gathered(where, before.devices), before.microbatches)
    assert group_speed(where, after.devices).tolist() == [[1, 1], [1, 1], [0.3, 0.3]]
    assert downtime_s(mine, where, before, after) == RESTART_S


def test_under_zero_a_copy_that_moves_loads_its_shard():
    mine = part(zero_stage=1)
    where, before = domain_state(mine, slow=[1, 6]), planned_binding(mine.assignment)
    after = Binding(gathered(where, before.devices), before.microbatches)
    assert downtime_s(mine, where, before, after) > RESTART_S


def test_sharing_microbatches_anew_is_free_and_a_swap_loads_one_stage():
    mine = part()
    where = domain_state(mine, slow=[5])
    found = menu(mine, where)
    assert found["rebalance"].downtime_s == 0
    loads = float(mine.costs((2, 2), 3).load_bytes[0])
    # Device 5 goes and the whole group moves to the free node: both of its devices load the stage.
    assert found["swap-worst"].downtime_s == pytest.approx(RESTART_S + 2 * loads / 50e9)


def test_without_spares_a_lost_device_takes_its_copy_with_it():
    mine = part(devices=12)
    found = menu(mine, domain_state(mine, lost=[5]))
    assert "swap-all" not in found
    assert found["drop-gone"].binding.devices.shape[0] == 2


def test_narrow_groups_use_what_a_broken_node_still_has():
    mine = part(devices=8, per_node=4, ranks=4, stages=1, copies=2)
    found = menu(mine, domain_state(mine, lost=[0]))
    assert found["tensor-parallel-2"].binding.devices.shape == (3, 1, 2)
    assert pace(mine, domain_state(mine, lost=[0]), found["tensor-parallel-2"].binding).step_s < min(
        pace(mine, domain_state(mine, lost=[0]), found[name].binding).step_s
        for name in ("drop-gone", "fresh-fast")
        if name in found
    )  # fmt: skip


def test_copies_and_shares_are_left_alone_where_another_domain_has_the_rest_of_the_pipeline():
    mine = part(others=("b",))
    for item in candidates(mine, domain_state(mine, slow=[5]), planned_binding(mine.assignment)):
        assert item.binding.microbatches.tolist() == [8, 8, 8]


def test_nothing_is_proposed_where_nothing_fits():
    mine = part(devices=12, others=("b",))
    proposed = candidates(mine, domain_state(mine, lost=range(9)), planned_binding(mine.assignment))
    assert [(item.name, item.is_legal) for item in proposed] == [("keep", False)]


def test_broken_nodes_are_filled_before_whole_ones():
    mine = part(devices=16, per_node=4)
    where = domain_state(mine, taken=[0, 1, 8])
    placed = fresh(where, where.speed > 0, (2,), copies=2, is_tight=True)
    assert sorted(where.node[placed].ravel().tolist()) == [0, 0, 2, 2]


def test_groups_never_span_nodes_and_slow_devices_share_a_group():
    mine = part(devices=8, per_node=4)
    groups = node_groups(domain_state(mine, slow=[0, 2], lost=[4]), domain_state(mine, lost=[4]).speed > 0, 2)
    assert sorted(map(sorted, groups.tolist())) == [[0, 2], [1, 3], [5, 6]]


def test_two_pipelines_in_one_domain_are_refused_with_a_hint():
    plan = chain_plan("a")
    with pytest.raises(UsageError, match="two pipelines"):
        assignments(TrainingPlan(plan.pipelines * 2, 1))


def test_equal_shares_differ_by_at_most_one():
    assert equal_shares(11, 4).tolist() == [3, 3, 3, 2]


def test_expectations_are_exact_for_one_straggler():
    mine = part()
    where, binding = domain_state(mine, slow=[5]), planned_binding(mine.assignment)
    ahead = ahead_of(mine, where, binding)
    rates = [1 / pace(mine, in_state(where, [5], [state]), binding).step_s for state in range(LOST + 1)]
    by_hand = chances(where.chain, where.interval_s)[:, 4] @ np.array(rates)
    np.testing.assert_allclose(ahead, by_hand, rtol=5e-3)
    assert (np.diff(ahead) > 0).all()  # a slow device is likelier to recover than to be lost


@given(seed=SEEDS)
@examples(15)
def test_expectations_agree_with_drawn_futures(seed):
    rng = np.random.default_rng(seed)
    mine = part(microbatches=32)
    where, binding = domain_state(mine, slow=rng.choice(12, 3, replace=False)), planned_binding(mine.assignment)
    off = np.flatnonzero(where.health)
    ahead = ahead_of(mine, where, binding)[-1]
    chance = chances(where.chain, where.interval_s)[-1]
    drawn = []
    for _ in range(300):
        states = [rng.choice(6, p=row / row.sum()) for row in chance[where.health[off]]]
        drawn.append(1 / pace(mine, in_state(where, off, states), binding).step_s)
    # Five standard errors, and the start-up of copies with several stragglers, which is held as it is now.
    assert ahead == pytest.approx(np.mean(drawn), abs=5 * np.std(drawn) / np.sqrt(300) + 0.02 * ahead)


def test_a_binding_of_good_devices_is_expected_to_go_on_as_it_is():
    mine = part()
    ahead = ahead_of(mine, domain_state(mine, slow=[14]), planned_binding(mine.assignment))
    assert np.ptp(ahead) == 0


def test_another_chain_of_health_may_be_measured():
    mine = part()
    where = domain_state(mine)
    chain = Regimes((100.0, 10.0), factors=(1.0, 0.0))
    assert chances(chain, where.interval_s).shape == (5, 2, 2)
