"""Row `training_time_reduction`: the policy's step against the best single domain, and against what is harder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strata.decision import worst
from strata.evaluation.kpi.compared import NAMED, SAME, SINGLE, Compared
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.study import SEARCH_LIMIT_S, Study
from strata.stats import mean_interval

TARGET: Final = 0.25
STRONGER: Final = ("mast_like", "uniform_split", "sailor_like", "latency_blind")
"""What else one could run. As many devices in one ideal domain is a bound, not a place: its gap stands beside."""

_NAMED: Final = {"latency_blind": "no_network_seen"}


def measure(study: Study, compared: Sequence[Compared]) -> Kpi:
    """Return the row over the instances that some single domain can run."""
    usable = [case for case in compared if case.step_s(SINGLE) is not None]
    reductions = _reductions(usable, SINGLE)
    interval = mean_interval(reductions, rng=study.rng()) if len(reductions) > 1 else None
    return Kpi(
        name="training_time_reduction",
        definition="mean of 1 - T / T_single, T the time of a step with DiLoCo's extra tokens in it; the plan is "
        "what the policy picks when asked for time alone",
        baseline="best single domain, planned exactly on its own devices",
        value=float(np.mean(reductions)) if reductions else None,
        target=TARGET,
        sense="at least",
        ci95=ends(interval),
        instances=len(usable),
        guards=_guards(compared, usable),
        trust=worst(*(case.ours.report.trust for case in usable)),
        beside=_beside(usable),
    )


def _beside(usable: Sequence[Compared]) -> dict[str, float | None]:
    """Return the reduction that the untrained policy and the baselines have themselves, where they have a plan."""
    steps: dict[str, list[tuple[float, float]]] = {"untrained": [], "no_network_seen": []}
    for case in usable:
        single = case.step_s(SINGLE)
        assert single is not None
        steps["untrained"].append((case.untrained.report.step_time_s, single))
        for name in STRONGER:
            if (step_s := case.step_s(name)) is not None:
                steps.setdefault(_NAMED.get(name, name), []).append((step_s, single))
    return {name: float(np.mean([1 - a / b for a, b in some])) if some else None for name, some in steps.items()}


def _reductions(compared: Sequence[Compared], name: str) -> list[float]:
    return [
        1 - case.ours.report.step_time_s / other
        for case in compared
        if (other := case.step_s(name)) is not None
    ]  # fmt: skip


def _guards(compared: Sequence[Compared], usable: Sequence[Compared]) -> dict[str, Any]:
    against = {name: summary(_reductions(compared, name)) for name in NAMED}
    sync = [case for case in usable if case.instance.is_sync_only]
    crossing = [case for case in usable if len(case.ours.plan.domains) > 1]
    device_hours = [
        (case.ours.report.step_time_s * case.ours.report.num_devices)
        / (single.report.step_time_s * single.report.num_devices)
        for case in usable
        if (single := case.others[SINGLE]) is not None
    ]
    reached = [name for name in (SINGLE, *STRONGER) if (against[name]["mean"] or 0.0) >= TARGET]
    return {
        "reduction_against": against,
        "sync_only": summary(_reductions(sync, SINGLE)),
        "with_local_steps": summary(_reductions([case for case in usable if case not in sync], SINGLE)),
        "device_hours_ratio": summary(device_hours),
        "share_where_a_single_domain_is_best": _share(
            [case.is_single_best for case in usable if case.is_single_best is not None]
        ),
        "not_known_whether_it_is_best": sum(case.is_single_best is None for case in usable),
        "share_where_policy_stays_in_one_domain": _share([case not in crossing for case in usable]),
        "share_slower_than_single": _share([value < -SAME for value in _reductions(usable, SINGLE)]),
        "only_where_it_crosses": summary(_reductions(crossing, SINGLE)),
        "instances_no_single_domain_can_run": len(compared) - len(usable),
        "searches_stopped": [f"{name}, {case.instance.seed}" for case in compared for name in case.unfinished],
        "limit_of_a_search_s": SEARCH_LIMIT_S,
        "passes_only_against": reached if SINGLE in reached and len(reached) <= len(STRONGER) else [],
        "misses_against": [name for name in STRONGER if name not in reached],
    }


def _share(flags: Sequence[bool]) -> float | None:
    return float(np.mean(flags)) if flags else None
