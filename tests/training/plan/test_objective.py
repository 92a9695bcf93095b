from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.simulate.report import StepReport
from strata.training.plan.objective import Scales, check_prices, money, score, within_limits
from strata.training.plan.planner import plan_training
from strata.workload.job import Limits, Objective
from tests.support.builders import domain, fleet, job, layers

SCALES = Scales(baseline_s=10.0, baseline_usd=5.0, ideal=(1.0, -0.9, 1.0), nadir=(20.0, -0.1, 9.0))
figures = st.floats(0.01, 100)


@given(st.sampled_from(list(Objective)), figures, figures, st.floats(0, 1), st.floats(1, 3))
def test_no_score_improves_when_time_or_money_grows_or_utilisation_falls(objective, step_s, usd, use, worse):
    asked = replace(job(), objective=objective)
    before = score(asked, SCALES, step_s, use, usd)
    assert score(asked, SCALES, step_s * worse, use, usd) >= before - 1e-9
    assert score(asked, SCALES, step_s, use, usd * worse) >= before - 1e-9
    assert score(asked, SCALES, step_s, use / worse, usd) >= before - 1e-9


def test_the_reward_is_the_seeds_formula():
    asked = replace(job(), objective=Objective.REWARD, weights=(0.5, 0.3, 0.2))
    reward = 0.5 * (10 - 4) / 10 + 0.3 * 0.6 - 0.2 * 8 / 5
    assert score(asked, SCALES, 4.0, 0.6, 8.0) == pytest.approx(-reward)


def test_tchebycheff_takes_the_worst_weighted_distance_to_the_ideal():
    asked = replace(job(), objective=Objective.TCHEBYCHEFF, weights=(1.0, 0.0, 0.0))
    assert score(asked, SCALES, 1.0, 0.5, 5.0) == pytest.approx(0.0)
    assert score(asked, SCALES, 20.0, 0.5, 5.0) == pytest.approx(1.001)


def report(step_s: float = 2.0, usd: float | None = 3.0) -> StepReport:
    from strata.decision import Trust

    return StepReport(step_s, 100.0 / step_s, 0.5, 0.0, 0.25, usd, usd, 8, (), Trust.ANALYTIC, {})


def test_unknown_money_counts_as_egress_alone():
    assert money(report(usd=None)) == 0.25
    assert money(report()) == 3.0


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(), True),
        (Limits(cost_usd_per_step=3.0), True),
        (Limits(cost_usd_per_step=2.9), False),
        (Limits(tokens_per_s=50.0), True),
        (Limits(tokens_per_s=51.0), False),
    ],
)
def test_limits_bind_from_their_value_on(limits, kept):
    assert within_limits(job(limits=limits), report()) is kept


@pytest.mark.parametrize("more", [{"objective": Objective.COST}, {"limits": Limits(cost_usd_per_step=1.0)}])
def test_money_asked_for_without_prices_names_the_domains(more):
    with pytest.raises(UsageError, match="no price for b, c"):
        check_prices(job(**more), ["b", "c"])
    check_prices(job(), ["b", "c"])


@pytest.mark.parametrize("objective", [Objective.REWARD, Objective.TCHEBYCHEFF])
def test_a_fleet_without_prices_is_not_scored_on_its_egress(objective):
    """Egress over no money at all would be an endless penalty for every plan that crosses domains."""
    unpriced = fleet(domain("a", price=None), domain("b", price=None), gbps=100, ms=1)
    asked = job(layers(8), batch=256, objective=objective, weights=(0.98, 0.01, 0.01))
    answer = plan_training(unpriced, asked, clock=lambda: 0.0)
    assert len(answer.best.plan.domains) == 2
