"""Row `communication_cost_reduction`: egress per token at equal time, against uniform synchronous data parallel.

Equal time: the cheapest of the policy's plans under 64 preferences whose step is at most 5 % longer than the
comparator's. A plan in one domain sends nothing, which is why the instances where it crosses stand apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strata.decision import worst
from strata.simulate.collective import eta
from strata.stats import mean_interval
from strata.training.exact.search import Evaluated
from strata.training.kpi.compared import SYNC_DP, Compared
from strata.training.kpi.kpi import Kpi, ends, summary
from strata.training.kpi.study import Study

TARGET: Final = 0.30
EQUAL_TIME: Final = 1.05
STRONGER: Final = ("latency_blind", "uniform_split", "sailor_like")


def measure(study: Study, compared: Sequence[Compared]) -> Kpi:
    """Return the row over the instances where the comparator runs at all."""
    usable = [one for one in compared if one.others[SYNC_DP] is not None]
    savings = _savings(usable, SYNC_DP)
    interval = mean_interval(savings, rng=study.rng()) if len(savings) > 1 else None
    return Kpi(
        name="communication_cost_reduction",
        definition="mean of 1 - egress USD per token / that of the comparator, by the policy's cheapest plan "
        "(64 preferences) whose step is at most 5 % longer; 0 where it has none",
        baseline="uniform synchronous data parallel over all domains, its fastest setting",
        value=float(np.mean(savings)) if savings else None,
        target=TARGET,
        sense="at least",
        ci95=ends(interval),
        instances=len(savings),
        guards=_guards(compared, usable),
        trust=worst(*(one.ours.report.trust for one in usable)),
    )


def cheapest_in_time(plans: Sequence[Evaluated], limit_s: float) -> Evaluated | None:
    """Return the plan of the least egress per token among those that keep a step time, the faster of a tie."""
    fast = [item for item in plans if item.report.step_time_s <= limit_s]
    return min(fast, key=lambda item: (egress(item), item.report.step_time_s), default=None)


def egress(item: Evaluated) -> float:
    """Return what a plan pays for links [USD per token of a synchronous run]: DiLoCo needs eta times as many."""
    report = item.report
    tokens = report.tokens_per_s * report.step_time_s
    return report.egress_usd_per_step * eta(item.plan.local_steps) / tokens


def _pairs(compared: Sequence[Compared], name: str) -> list[tuple[Compared, Evaluated, Evaluated | None]]:
    """Return each instance where this comparator pays for links, its plan and ours at equal time."""
    found = []
    for one in compared:
        other = one.others[name]
        if other is not None and egress(other) > 0:
            limit_s = EQUAL_TIME * other.report.step_time_s
            found.append((one, other, cheapest_in_time((*one.front, one.ours), limit_s)))
    return found


def _savings(compared: Sequence[Compared], name: str) -> list[float]:
    return [0.0 if ours is None else 1 - egress(ours) / egress(other) for _, other, ours in _pairs(compared, name)]


def _guards(compared: Sequence[Compared], usable: Sequence[Compared]) -> dict[str, Any]:
    pairs = _pairs(usable, SYNC_DP)
    with_ours = [(one, other, ours) for one, other, ours in pairs if ours is not None]
    crossing = [row for row in with_ours if len(row[2].plan.domains) > 1]
    against = {name: summary(_savings(compared, name)) for name in (SYNC_DP, *STRONGER)}
    alike = [1 - egress(ours) / egress(other) for _, other, ours in crossing if ours.plan.local_steps == 1]
    reached = [name for name in (SYNC_DP, *STRONGER) if (against[name]["mean"] or 0.0) >= TARGET]
    return {
        "saving_against": against,
        "sync_only": summary(_savings([one for one in usable if one.instance.is_sync_only], SYNC_DP)),
        "only_where_it_crosses": summary([1 - egress(ours) / egress(other) for _, other, ours in crossing]),
        "crosses_and_synchronises_every_step": summary(alike),
        "share_in_one_domain": 1 - len(crossing) / len(with_ours) if with_ours else None,
        "share_without_a_plan_in_time": 1 - len(with_ours) / len(pairs) if pairs else None,
        "step_time_ratio": summary([ours.report.step_time_s / o.report.step_time_s for _, o, ours in with_ours]),
        "whole_cost_per_token_saving": summary(
            [
                1 - ours.report.cost_usd_per_mtoken / other.report.cost_usd_per_mtoken
                for _, other, ours in with_ours
                if ours.report.cost_usd_per_mtoken is not None and other.report.cost_usd_per_mtoken
            ]
        ),
        "saving_of_the_time_optimal_plan": summary(
            [1 - egress(one.ours) / egress(other) for one, other, _ in pairs]
        ),
        "comparator_slowdown_against_ours": summary(
            [other.report.step_time_s / one.ours.report.step_time_s for one, other, _ in pairs]
        ),
        "comparator_does_not_fit": len(compared) - len(usable),
        "passes_only_against": reached if SYNC_DP in reached and len(reached) <= len(STRONGER) else [],
        "misses_against": [name for name in STRONGER if name not in reached],
    }
