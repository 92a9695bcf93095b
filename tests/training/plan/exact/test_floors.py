from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.simulate.screening import zero_bubble_share
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.floors import ChainFloors, zero_bubble_shares
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shards import ShardSpace
from tests.support.builders import domain, fleet, job
from tests.support.laws import examples
from tests.support.small_cases import small_case

EPS = 1e-9


@examples(20)
@given(st.integers(0, 10**6))
def test_no_branch_of_a_setting_has_a_bound_below_the_settings_floor(seed):
    problem = Problem.of(*small_case(seed))
    members = tuple(range(len(problem.fleet.domains)))
    space, floors = ChainSpace(problem, members), ChainFloors(problem, members)
    step_s, usd = floors.step_s_and_usd(problem.configs)
    count = space.inside.sum(axis=1)
    for setting, least_s, least_usd in zip(problem.configs, step_s, usd, strict=True):
        bounds = space.bounds(setting)
        some = np.isfinite(bounds.step_s)
        assert (bounds.step_s[some] >= least_s[count[some] - 1] * (1 - EPS)).all()
        assert (bounds.cost_usd[some] >= least_usd * (1 - EPS)).all()


@examples(20)
@example(2237)
@given(st.integers(0, 10**6))
def test_no_sharing_has_a_bound_below_the_floor_of_what_its_pipelines_have_in_common(seed):
    problem = Problem.of(*small_case(seed))
    space = ShardSpace(problem, tuple(range(len(problem.fleet.domains))))
    floors = space.floors()
    assert space.groups or not floors
    for common, (least_s, least_usd) in floors.items():
        ways, step_s = space.bounds_of(common)
        assert step_s.min(initial=np.inf) >= least_s * (1 - EPS)
        assert space.least_usd(ways, step_s)[np.isfinite(step_s)].min(initial=np.inf) >= least_usd * (1 - EPS)


@pytest.mark.parametrize("share", [0.0, 0.2, 1 / 3])
def test_shares_of_many_pipelines_are_those_of_each(share):
    stages, batches = np.broadcast_arrays(np.arange(1, 9), np.array([[1], [3], [40]]))
    each = [zero_bubble_share(int(s), int(m), share) for s, m in zip(stages.flat, batches.flat, strict=True)]
    assert zero_bubble_shares(stages, batches, share).ravel() == pytest.approx(each)


def test_no_settings_cost_and_take_nothing():
    pair = fleet(domain("a", price=2.0), domain("b", price=2.0))
    floors = ChainFloors(Problem.of(pair, job()), (0, 1))
    assert [each.size for each in floors.step_s_and_usd([])] == [0, 0]
