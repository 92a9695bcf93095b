"""Plans ranked by other weights: the seeds' reward, over what an answer holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strata
from strata.api.weighing import by_reward
from strata.errors import UsageError
from tests.cli.test_plan import FLEET, JOB

WEIGHTS = st.tuples(*[st.floats(0, 1)] * 3).filter(lambda weights: sum(weights) > 0.01)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "fleet.yaml").write_text(FLEET)
    (folder / "job.yaml").write_text(JOB)
    return folder / "fleet.yaml", folder / "job.yaml"


@pytest.fixture(scope="module")
def answer(inputs):
    return strata.plan(*inputs, pareto=True).to_dict()


@pytest.mark.parametrize("weights", [(1, 0, 0), (0.4, 0.3, 0.3), (0, 1, 0), (0.2, 0.2, 0.6)])
def test_the_first_is_what_a_search_with_these_weights_chooses(inputs, answer, weights):
    total = sum(weights)
    searched = strata.plan(*inputs, weights=tuple(weight / total for weight in weights), baselines=False)
    best = searched.best.report
    first = by_reward(answer, weights)[0]
    figures = first["step_time_s"], first["utilization"], first["cost_usd_per_mtoken"]
    assert figures == pytest.approx((best.step_time_s, best.utilization, best.cost_usd_per_mtoken))


@given(weights=WEIGHTS)
def test_rewards_fall_and_no_plan_is_lost(answer, weights):
    ranked = by_reward(answer, weights)
    rewards = [plan["reward"] for plan in ranked]
    assert rewards == sorted(rewards, reverse=True)
    every = (*answer["plans"], *answer["front"])
    assert {(plan["name"], plan["step_time_s"]) for plan in ranked} == {
        (plan["name"], plan["step_time_s"]) for plan in every
    }


def test_without_plans_there_is_nothing_to_rank(answer):
    assert by_reward({**answer, "plans": [], "front": None}, (1, 0, 0)) == []


@pytest.mark.parametrize("weights", [(0, 0, 0), (1, -1, 1), (1, 1), (float("nan"), 1, 1), (float("inf"), 0, 0)])
def test_weights_that_are_none_are_refused(answer, weights):
    with pytest.raises(UsageError, match="three weights"):
        by_reward(answer, weights)
