"""Row `allocation_error`: how much slower the policy's plan is than the exact optimum, and how evenly it loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strata.decision import worst
from strata.evaluation.kpi.compared import NAMED, Compared
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.study import Study
from strata.stats import bootstrap
from strata.training.plan.comparison import work
from strata.training.plan.exact.search import Evaluated

TARGET: Final = 0.05
QUANTILE: Final = 0.95


def measure(study: Study, compared: Sequence[Compared]) -> Kpi:
    """Return the row."""
    regrets = np.array([regret(case.ours, case.optimum) for case in compared])
    interval = bootstrap(_tail, regrets, rng=study.rng()) if len(regrets) > 1 else None
    return Kpi(
        name="allocation_error",
        definition="95th percentile of T / T* - 1, T* the step of the exact optimum of the whole plan space",
        baseline="exact branch and bound (gap below 0.01 %)",
        value=_tail(regrets) if len(regrets) else None,
        target=TARGET,
        sense="below",
        ci95=ends(interval),
        instances=len(regrets),
        guards=_guards(compared, regrets),
        trust=worst(*(case.ours.report.trust for case in compared)),
    )


def regret(ours: Evaluated, optimum: Evaluated) -> float:
    """Return how much longer a step takes than the optimum's, as a share; 0 where the search missed by more."""
    return max(0.0, ours.report.step_time_s / optimum.report.step_time_s - 1)


def realisation_error(item: Evaluated) -> float:
    """Return max |share wanted - share given| over domains: by devices, what whole layers and samples cannot."""
    return max(abs(share - wanted) for share, wanted in _shares(item))


def load_error(item: Evaluated) -> float:
    """Return how much busier than the mean device the devices of the busiest domain are, as a share."""
    return max(share / wanted for share, wanted in _shares(item)) - 1


def _shares(item: Evaluated) -> list[tuple[float, float]]:
    devices = item.plan.devices()
    total = sum(devices.values())
    return [(done.share, devices[name] / total) for name, done in work(item).items()]


def _tail(values: np.ndarray) -> float:
    return float(np.quantile(values, QUANTILE))


def _guards(compared: Sequence[Compared], regrets: Sequence[float] | np.ndarray) -> dict[str, Any]:
    baselines = {
        name: summary(
            [regret(other, case.optimum) for case in compared if (other := case.others[name]) is not None]
        )
        for name in NAMED
        if name != "equal_gpus_one_domain"
    }
    crossing = [case.ours for case in compared if len(case.ours.plan.domains) > 1]
    return {
        "regret": summary(regrets),
        "share_exactly_optimal": float(np.mean(np.asarray(regrets) < 1e-4)) if len(regrets) else None,
        "sync_only_regret": summary(
            [regret(case.ours, case.optimum) for case in compared if case.instance.is_sync_only]
        ),
        "baseline_regret": baselines,
        "realisation_error": summary([realisation_error(item) for item in crossing]),
        "load_error": summary([load_error(item) for item in crossing]),
        "plans_over_several_domains": len(crossing),
    }
