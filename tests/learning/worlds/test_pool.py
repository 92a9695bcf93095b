"""Pools of instances: the same for the same seed, something to decide in them, and what moving a job takes."""

from dataclasses import fields, replace

import numpy as np
import pytest

from strata.learning.worlds.instance import kind_of
from strata.learning.worlds.pool import Pool, make_pool
from strata.training.plan.exact.problem import Problem
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan.relocation import relocation_costs
from tests.learning.worlds.worlds import pool
from tests.support.builders import card, domain, fleet, job, layers

GBPS = 1e9 / 8

pytestmark = pytest.mark.xdist_group("pool")  # drawn once


@pytest.fixture(scope="module")
def drawn():
    return [make_pool(4, instances=2, domains=(3, 3), shares=(1.0,), options=16) for _ in range(2)]


def test_a_seed_gives_the_same_pool_again(drawn):
    one, other = drawn
    for part in fields(Pool):
        if part.name != "instances":
            np.testing.assert_array_equal(getattr(one, part.name), getattr(other, part.name))


def test_of_most_instances_another_plan_is_best_in_some_states(drawn):
    changes = [kind.changes for instance in drawn[0].instances for kind in instance.kinds]
    assert max(changes) >= 0.1


def test_every_plan_fits_the_devices_of_its_fleet(drawn):
    made = drawn[0]
    assert (made.needs <= made.devices.repeat(made.num_kinds, axis=0)[:, None, :]).all()
    assert (made.memory <= 1.0).all()
    assert made.exists[:, 0].all()
    assert np.isinf(made.compute_s[:, 0]).all()


def test_moving_from_one_domain_to_another_takes_all_weights_over_the_link_between_them():
    sites = fleet(*(domain(name, 8, accelerator=card(gib=80)) for name in "ab"), gbps=8.0)
    work = job(layers(mparams=100), batch=32)
    plans = [item.plan for item in shortlist(Problem.of(sites, work), most=24)]
    kind = kind_of(sites, work, plans, np.random.default_rng(0), most=24)
    alone = {plan.domains: p for p, plan in enumerate(kind.plans) if plan.kind == "single"}
    here, there = alone["a",], alone["b",]
    weights = float(work.layers.params.sum()) * 2
    assert kind.moved_s[here, there] == pytest.approx(weights / (8.0 * GBPS))
    assert kind.moved_usd[here, there] == pytest.approx(weights * 0.02 / 1e9)
    assert kind.moves[here, there]


def test_staying_moves_nothing_and_only_moves_need_a_restart():
    for kind in (kind for instance in pool().instances for kind in instance.kinds):
        np.testing.assert_array_equal(np.diagonal(kind.moved_s), 0.0)
        assert not np.diagonal(kind.moves).any()
        assert (kind.moved_s[~kind.moves] == 0).all()
        assert np.isfinite(kind.moved_s).all()


def test_to_change_only_how_often_gradients_cross_needs_no_restart():
    sites = fleet(*(domain(name, 8, accelerator=card(gib=80)) for name in "ab"), gbps=8.0)
    work = job(layers(mparams=100), batch=32, local_steps=(8,))
    rare = next(e.plan for e in shortlist(Problem.of(sites, work), most=24) if e.plan.local_steps == 8)
    plans = [rare, replace(rare, local_steps=1), replace(rare, gradient_compression=2.0)]
    moved_s, moved_usd, moves = relocation_costs(sites, work, plans)
    assert not moves.any()
    assert (moved_s == 0).all()
    assert (moved_usd == 0).all()


def test_instances_of_other_sizes_are_padded_with_nothing():
    made = pool()
    np.testing.assert_array_equal(made.devices[0], [16, 16, 0])
    assert (made.bandwidth[0, 2] == 0).all()
    assert (made.needs[: made.num_kinds, :, 2] == 0).all()
    used = made.pair[: made.num_kinds]
    assert set(np.unique(used)) <= {0, made.num_pairs}
