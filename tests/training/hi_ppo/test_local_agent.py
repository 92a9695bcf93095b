from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.kpi.domain_states import random_state
from strata.evaluation.kpi.straggling import compare, history
from strata.training.hi_ppo.binding import planned_binding
from strata.training.hi_ppo.candidates import candidates
from strata.training.hi_ppo.local_agent import LocalCase, decide, local_options, needs_global
from strata.training.replan.rules import hysteresis, keep, mpc, myopic, random
from tests.support.laws import examples
from tests.training.hi_ppo.domain_states import domain_state, part


def case(of, **states):
    return LocalCase(of, domain_state(of, **states), planned_binding(of.assignment))


def tokens(answer):
    return [reason.token for reason in answer.reasons]


def test_where_all_is_well_nothing_is_done():
    [answer] = decide([case(part())], hysteresis())
    assert answer.name == "keep"
    assert answer.throughput == pytest.approx(1, rel=1e-9)
    assert (answer.downtime_s, answer.keeping_loses) == (0, 0)
    assert tokens(answer) == ["kept-binding"]


def test_a_straggler_is_answered_inside_the_domain():
    [kept] = decide([case(part(), slow=[0])], keep)
    [answer] = decide([case(part(), slow=[0])], hysteresis())
    assert kept.throughput < 0.5
    assert answer.throughput > 0.7
    assert answer.keeping_loses > 1
    assert tokens(answer) == ["rebound"]
    assert needs_global(answer, since=1.0, most_fall=0.3) is None


def test_a_lost_device_is_answered_inside_the_domain_and_keeping_is_shown_as_impossible():
    [answer] = decide([case(part(), lost=[5])], hysteresis())
    assert 5 not in answer.binding.used
    assert answer.keeping_loses == np.inf
    assert str(answer.considered[0].reasons[0]) == "a: cannot continue unchanged without 5"


def test_every_alternative_is_shown_with_what_it_earns_and_costs():
    [answer] = decide([case(part(), slow=[0])], hysteresis())
    assert {"keep", "rebalance", answer.name} <= {item.name for item in answer.considered}
    assert all(set(item.cost) == {"throughput", "downtime_s", "gain_over_8"} for item in answer.considered)


def test_a_domain_that_cannot_hold_its_part_says_so_and_wakes_the_global_agent():
    [answer] = decide([case(part(), lost=range(15))], hysteresis())
    assert answer.binding is None
    assert str(answer.reasons[0]) == (
        "a: 1 device remains, but its part of the plan needs 12 in groups of 2 within a node"
    )
    assert needs_global(answer, since=1.0, most_fall=0.9) is answer.reasons[0]


def test_a_domain_that_fell_too_far_wakes_the_global_agent_once():
    of = part(devices=12)
    [answer] = decide([case(of, lost=[0, 1, 2, 3])], hysteresis())
    assert 0 < answer.throughput < 0.8
    assert needs_global(answer, since=1.0, most_fall=0.2).token == "throughput-fell"
    assert needs_global(answer, since=answer.throughput, most_fall=0.2) is None


def test_the_first_binding_needs_none_before_it():
    of = part()
    [answer] = decide([LocalCase(of, domain_state(of, taken=[0]))], hysteresis())
    assert 0 not in answer.binding.used
    assert np.isnan(answer.keeping_loses)


def test_many_domains_decide_as_each_alone():
    cases = [case(part(), slow=[0]), case(part(), lost=range(15)), case(part(devices=24), lost=[1])]
    together = decide(cases, hysteresis())
    alone = [decide([one], hysteresis())[0] for one in cases]
    assert [item.name for item in together] == [item.name for item in alone]
    assert [item.throughput for item in together] == [item.throughput for item in alone]


def test_a_policy_that_picks_at_random_is_held_by_the_guard():
    [answer] = decide([case(part())], random(np.random.default_rng(1)))
    assert answer.name == "keep"
    assert tokens(answer) == ["kept-binding", "switch-never-pays"]


def test_options_say_what_each_candidate_earns_and_what_its_devices_are_like():
    one = case(part(), slow=[0])
    menu = candidates(one.part, one.domain_state, one.current)
    options = local_options([one], [menu])
    names = [item.name for item in menu]
    assert options.inside
    assert options.cost[0, 0] == options.cost[0, names.index("rebalance")] == 0
    assert options.links[0, 0, 0] == 0.3
    assert options.links[0, names.index("swap-worst")].tolist() == pytest.approx(
        [1, 1, 1, 1], abs=0.02
    )  # good devices, which the chain may slow down later
    assert (options.value[0, 0, 1:] > options.value[0, 0, 0]).all()


@given(seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_options_are_finite_and_a_decision_never_binds_what_is_gone(seed):
    rng = np.random.default_rng(seed)
    of = part(devices=32, per_node=8, ranks=int(rng.choice([2, 4])), copies=3)
    where = random_state(of.domain, rng)
    one = LocalCase(of, where, planned_binding(of.assignment))
    menu = candidates(of, where, one.current)
    options = local_options([one], [menu])
    assert np.isfinite(options.value).all()
    assert np.isfinite(options.cost).all()
    [answer] = decide([one], myopic)
    assert answer.binding is None or (where.speed[answer.binding.used] > 0).all()


def test_rules_keep_more_than_doing_nothing_and_hardly_more_than_changing_for_free():
    of = part(devices=24, microbatches=12)
    rng = np.random.default_rng(8)
    domain_states = [
        domain_state(of),
        *[domain_state(of, slow=[1])] * 5,
        *history(domain_state(of, lost=[2], slow=[9]), rng, steps=15),
    ]
    found = compare(of, domain_states, {"mpc": mpc()})
    assert found["nothing"].throughput < found["mpc"].throughput <= found["oracle"].throughput * 1.02
    assert found["mpc"].changes > 0
    assert found["nothing"].changes == 0
