"""Row `communication_cost_reduction`: egress per token at equal time, against uniform synchronous data parallel.

Equal time: the cheapest of the policy's plans under 64 preferences whose step is at most 5 % longer than the
comparator's. A plan in one domain sends nothing and would save everything, so only plans that cross count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strata.decision import worst
from strata.evaluation.kpi.compared import SYNC_DP, Compared
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.study import Study
from strata.simulate.collective import eta
from strata.stats import mean_interval
from strata.training.plan.exact.result import Evaluated

TARGET: Final = 0.30
EQUAL_TIME: Final = 1.05
STRONGER: Final = ("latency_blind", "uniform_split", "sailor_like")
_NAMED: Final = {"latency_blind": "no_network_seen"}


def measure(study: Study, compared: Sequence[Compared]) -> Kpi:
    """Return the row over the instances where the comparator runs at all."""
    usable = [case for case in compared if case.others[SYNC_DP] is not None]
    savings = _savings(usable, SYNC_DP)
    interval = mean_interval(savings, rng=study.rng()) if len(savings) > 1 else None
    return Kpi(
        name="communication_cost_reduction",
        definition="mean of 1 - egress USD per token / that of the comparator, by the policy's cheapest plan "
        "(64 preferences) over several domains whose step is at most 5 % longer; 0 where it has none",
        baseline="uniform synchronous data parallel over all domains, its fastest setting",
        value=float(np.mean(savings)) if savings else None,
        target=TARGET,
        sense="at least",
        ci95=ends(interval),
        instances=len(savings),
        guards=_guards(compared, usable),
        trust=worst(*(case.ours.report.trust for case in usable)),
        beside=_beside(usable),
    )


def _beside(usable: Sequence[Compared]) -> dict[str, float | None]:
    """Return the saving of the untrained policy and of each baseline itself, in time and across domains."""
    saved: dict[str, list[float]] = {"untrained": [], "no_network_seen": []}
    for case, sync, _ in _pairs(usable, SYNC_DP):
        limit_s = EQUAL_TIME * sync.report.step_time_s
        plans = {"untrained": (*case.untrained_front, case.untrained)}
        plans |= {_NAMED.get(name, name): (own,) for name in STRONGER if (own := case.others[name]) is not None}
        for name, some in plans.items():
            cheapest = cheapest_in_time(some, limit_s, may_stay=False)
            saved.setdefault(name, []).append(0.0 if cheapest is None else 1 - egress(cheapest) / egress(sync))
    return {name: float(np.mean(some)) if some else None for name, some in saved.items()}


def cheapest_in_time(plans: Sequence[Evaluated], limit_s: float, *, may_stay: bool) -> Evaluated | None:
    """Return the plan of the least egress per token among those that keep a step time, the faster of a tie.

    may_stay: whether plans in one domain count, which send nothing.
    """
    fast = [
        item for item in plans
        if item.report.step_time_s <= limit_s and (may_stay or len(item.plan.domains) > 1)
    ]  # fmt: skip
    return min(fast, key=lambda item: (egress(item), item.report.step_time_s), default=None)


def egress(item: Evaluated) -> float:
    """Return what a plan pays for links [USD per token of a synchronous run]: DiLoCo needs eta times as many."""
    report = item.report
    tokens = report.tokens_per_s * report.step_time_s
    return report.egress_usd_per_step * eta(item.plan.local_steps) / tokens


Pair = tuple[Compared, Evaluated, Evaluated | None]


def _pairs(compared: Sequence[Compared], name: str, *, may_stay: bool = False) -> list[Pair]:
    """Return each instance where this comparator pays for links, its plan and ours at equal time."""
    pairs: list[Pair] = []
    for case in compared:
        other = case.others[name]
        if other is not None and egress(other) > 0:
            limit_s = EQUAL_TIME * other.report.step_time_s
            pairs.append((case, other, cheapest_in_time((*case.front, case.ours), limit_s, may_stay=may_stay)))
    return pairs


def _savings(compared: Sequence[Compared], name: str, *, may_stay: bool = False) -> list[float]:
    return [
        0.0 if ours is None else 1 - egress(ours) / egress(other)
        for _, other, ours in _pairs(compared, name, may_stay=may_stay)
    ]


def _guards(compared: Sequence[Compared], usable: Sequence[Compared]) -> dict[str, Any]:
    pairs = _pairs(usable, SYNC_DP)
    feasible = [(case, other, ours) for case, other, ours in pairs if ours is not None]
    against = {name: summary(_savings(compared, name)) for name in (SYNC_DP, *STRONGER)}
    alike = [1 - egress(ours) / egress(other) for _, other, ours in feasible if ours.plan.local_steps == 1]
    reached = [name for name in (SYNC_DP, *STRONGER) if (against[name]["mean"] or 0.0) >= TARGET]
    own = [(case, cheapest_in_time(case.front, EQUAL_TIME * case.ours.report.step_time_s, may_stay=True))
           for case in compared if egress(case.ours) > 0]  # fmt: skip
    return {
        "saving_against": against,
        "sync_only": summary(_savings([case for case in usable if case.instance.is_sync_only], SYNC_DP)),
        "plans_that_synchronise_every_step": summary(alike),
        "one_domain_allowed": summary(_savings(usable, SYNC_DP, may_stay=True)),
        "share_without_a_plan_in_time": 1 - len(feasible) / len(pairs) if pairs else None,
        "step_time_ratio": summary([ours.report.step_time_s / o.report.step_time_s for _, o, ours in feasible]),
        "whole_cost_per_token_saving": summary(
            [
                1 - ours.report.cost_usd_per_mtoken / other.report.cost_usd_per_mtoken
                for _, other, ours in feasible
                if ours.report.cost_usd_per_mtoken is not None and other.report.cost_usd_per_mtoken
            ]
        ),
        "saving_of_the_time_optimal_plan": summary([1 - egress(case.ours) / egress(o) for case, o, _ in pairs]),
        "speed_of_the_time_optimal_plan": summary(
            [other.report.step_time_s / case.ours.report.step_time_s for case, other, _ in pairs]
        ),
        "saving_against_own_fastest_plan_within_5_percent": summary(
            [1 - egress(cheap) / egress(case.ours) for case, cheap in own if cheap is not None]
        ),
        "comparator_does_not_fit": len(compared) - len(usable),
        "passes_only_against": reached if SYNC_DP in reached and len(reached) <= len(STRONGER) else [],
        "misses_against": [name for name in STRONGER if name not in reached],
    }
