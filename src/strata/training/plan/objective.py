"""What makes one plan better than another: time, money, the seeds' linear reward, augmented Tchebycheff.

Every score is minimised and never improves when time or money grows or utilisation falls, so the score of
bounds is a bound of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.simulate.report import StepReport
from strata.workload.job import Objective, TrainingJob

AUGMENTATION: Final = 1e-3
"""Weight of the sum in augmented Tchebycheff: keeps weakly dominated plans out (Steuer & Choo 1983, §3)."""


@dataclass(frozen=True, slots=True)
class Scales:
    """What time and money are measured against.

    baseline_s and baseline_usd: of `reference.py`, infinite where nothing is to be weighed; ideal and nadir:
    (time, -utilisation, money) at the ends of the front, used by Tchebycheff alone. is_estimate: time ran out
    before they were proved.
    """

    baseline_s: float = 1.0
    baseline_usd: float = 1.0
    ideal: tuple[float, float, float] = (0.0, -1.0, 0.0)
    nadir: tuple[float, float, float] = (1.0, 0.0, 1.0)
    is_estimate: bool = False


def score(job: TrainingJob, scales: Scales, step_s: Any, utilization: Any, cost_usd: Any) -> Any:
    """Return the score of plans from (arrays of) step time, utilisation and cost per step; less is better.

    reward: minus R = w1 (T_base - T) / T_base + w2 U - w3 C / C_base (seed 000 §2.1).
    tchebycheff: max_k w_k (z_k - ideal_k) / range_k + 0.001 Σ the same.
    """
    match job.objective:
        case Objective.TIME:
            return step_s
        case Objective.COST:
            return cost_usd
        case Objective.REWARD | Objective.REWARD_EGRESS:
            w1, w2, w3 = job.weights
            efficiency = (scales.baseline_s - step_s) / scales.baseline_s
            return -(w1 * efficiency + w2 * utilization - w3 * cost_usd / scales.baseline_usd)
        case Objective.TCHEBYCHEFF:
            values = (step_s, -utilization, cost_usd)
            terms = [
                weight * (value - low) / max(high - low, 1e-12)
                for weight, value, low, high in zip(job.weights, values, scales.ideal, scales.nadir, strict=True)
            ]
            return np.maximum(np.maximum(terms[0], terms[1]), terms[2]) + AUGMENTATION * (sum(terms))


def score_report(job: TrainingJob, scales: Scales, report: StepReport) -> float:
    """Return the score of one evaluated plan; money that is not known counts as egress alone."""
    is_egress = job.objective is Objective.REWARD_EGRESS
    usd = report.egress_usd_per_step if is_egress else money(report)
    return float(score(job, scales, report.step_time_s, report.utilization, usd))


def money(report: StepReport) -> float:
    """Return USD per step: devices and egress where prices are known, else egress alone."""
    return report.egress_usd_per_step if report.cost_usd_per_step is None else report.cost_usd_per_step


def check_prices(job: TrainingJob, missing: list[str]) -> None:
    """Raise UsageError where money is the objective or a limit, and a domain has no price."""
    needs_prices = job.objective is Objective.COST or job.limits.cost_usd_per_step is not None
    if needs_prices and missing:
        raise UsageError(
            f"money cannot be compared: no price for {', '.join(missing)}",
            hint="add `price: $2.50/h` (per device) to these domains of the fleet file",
        )


def check_egress(job: TrainingJob, fleet: Fleet) -> None:
    """Raise UsageError where egress alone is to be weighed and there is none, or a budget counts devices."""
    if job.limits.cost_usd_per_step is not None:
        raise UsageError(
            "reward-egress leaves out what devices cost, and the job's budget counts it", hint="--minimize reward"
        )
    if all(link.price_usd_per_byte == 0 for link in fleet.links.values()):
        raise UsageError(
            f"no link of {fleet.name} has a price: the egress of every plan is 0",
            hint="add `price: $0.02/GB` to the links of the fleet file, or --minimize reward",
        )


def within_limits(job: TrainingJob, report: StepReport) -> bool:
    """Whether an evaluated plan keeps the job's budget and throughput floor."""
    limits = job.limits
    if limits.cost_usd_per_step is not None and money(report) > limits.cost_usd_per_step:
        return False
    return limits.tokens_per_s is None or report.tokens_per_s >= limits.tokens_per_s
