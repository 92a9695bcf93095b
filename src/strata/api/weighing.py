"""The plans of an answer by other weights, without another search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata.errors import UsageError

IDENTITY = "name", "step_time_s", "utilization", "cost_usd_per_mtoken"


def by_reward(data: Mapping[str, Any], weights: Sequence[float]) -> list[dict[str, Any]]:
    """Return the plans of a training answer, best first, each with its `reward`.

    R = w1 (T_base - T) / T_base + w2 U - w3 C / C_base (seed 000 §2.1), against the best single domain, or against
    the slowest and dearest of these plans where there is none. Of an answer with its Pareto front the first is the
    best of all plans for any weights; of another it is the best of those that the answer holds. Raises UsageError
    for weights that are none.
    """
    if len(weights) != 3 or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise UsageError(
            "three weights >= 0, not all 0, are needed", hint="0.4,0.3,0.3 (time, utilisation, money)"
        )
    # Plans of a front may have one name: a domain alone in many layouts.
    plans = {
        tuple(map(plan.get, IDENTITY)): plan for plan in (*data["plans"], *(data.get("front") or ()))
    }.values()
    if not plans:
        return []
    base = (data.get("baselines") or {}).get("best_single_domain") or {}
    base_s = base.get("step_time_s") or max(plan["step_time_s"] for plan in plans)
    base_usd = base.get("cost_usd_per_mtoken") or max(plan["cost_usd_per_mtoken"] or 0.0 for plan in plans) or 1.0
    w1, w2, w3 = (weight / sum(weights) for weight in weights)

    def reward(plan: Mapping[str, Any]) -> float:
        efficiency = (base_s - plan["step_time_s"]) / base_s
        money = (plan["cost_usd_per_mtoken"] or 0.0) / base_usd
        return float(w1 * efficiency + w2 * plan["utilization"] - w3 * money)

    return sorted(({**plan, "reward": reward(plan)} for plan in plans), key=lambda plan: -plan["reward"])
