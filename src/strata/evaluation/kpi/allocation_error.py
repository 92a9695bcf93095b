"""Row `allocation_error`: the share of a job each domain was asked for, against the share it delivered.

Asked: by the devices that the loop's decisions gave the job in each domain, over time. Delivered: of the layers
and samples that were trained, by their FLOPs, over the same time. What is between them is what whole layers and
samples cannot give.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from strata.control.balance import work_shares
from strata.decision import Trust
from strata.evaluation.kpi.dynamics import Change, Dynamics, Played, independent
from strata.evaluation.kpi.instances import NETWORK
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.network_degradation import HALF_WIDTH, crossing
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.ways import OURS, ways
from strata.stats import bootstrap

TARGET: Final = 0.05
QUANTILE: Final = 0.95


def measure(study: Study) -> Kpi:
    """Return the row; its value is the 95th percentile over instances."""
    instances = NETWORK.draw(quick=study.quick)
    errors: dict[str, list[float]] = defaultdict(list)
    crosses = 0
    for done, instance in enumerate(instances, 1):
        rng = np.random.default_rng(instance.seed)
        case = Dynamics(crossing(instance, rng))
        study.advance(done / len(instances))
        if not case.candidates.plans:
            continue
        change = Change(independent(rng, len(case.candidates.pairs), half_width=HALF_WIDTH))
        for way, how in ways(study.policy).items():
            played = case.play(how, change)
            errors[way].append(error(case, played, change))
            crosses += way == OURS and len(case.candidates.plans[played.plans[0]].domains) > 1
    ours = np.array(errors[OURS])
    return Kpi(
        name="allocation_error",
        definition="95th percentile over jobs of the largest |share asked - share delivered| of a domain, in the "
        "control loop with +-30 % on every link: devices given, against FLOPs trained",
        baseline="none: a bound; the same loop under other rules stands beside",
        value=_tail(ours) if len(ours) else None,
        target=TARGET,
        sense="below",
        ci95=ends(bootstrap(_tail, ours, rng=study.rng()) if len(ours) > 1 else None),
        instances=len(ours),
        guards={
            **{way: summary(values) for way, values in errors.items()},
            "plans_over_several_domains": crosses,
        },
        trust=Trust.ASSUMED,
        beside={way: _tail(np.array(values)) for way, values in errors.items() if way != OURS},
    )


def error(case: Dynamics, played: Played, change: Change) -> float:
    """Return the largest difference of shares over domains, of a whole run."""
    rates = case.rates(change)
    wanted: dict[str, float] = defaultdict(float)
    delivered: dict[str, float] = defaultdict(float)
    for row, index in enumerate(played.plans.tolist()):
        plan = case.candidates.plans[index]
        for name, devices in plan.devices().items():
            wanted[name] += devices / plan.num_devices / len(rates)
        for name, share in work_shares(case.candidates.job, plan).items():
            delivered[name] += share * rates[row, index]
    total = sum(delivered.values())
    return max(abs(wanted[name] - delivered[name] / total) for name in wanted)


def _tail(values: np.ndarray) -> float:
    return float(np.quantile(values, QUANTILE))
