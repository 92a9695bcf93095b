"""Row `inter_domain_latency_s`: wall time of a whole decision between domains, beside exact planning and search.

A decision is everything from the fleet and the job to the plan: feasibility, candidates, features, the network,
the guard and the explanation, with nothing computed before. The first decision of a process stands apart.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strata.decision import Trust
from strata.evaluation.kpi.instances import LATENCY, PlanningCase
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.searches import nsga2_front, random_front
from strata.evaluation.kpi.study import MOST_PLANS, Study
from strata.stats import quantile_interval
from strata.training.plan.baselines import nsga2
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.planner import DEFAULT_TIME_LIMIT_S, plan_training

TARGET_S: Final = 1.0
HEADLINE_DOMAINS: Final = 10
REPEATS: Final = {True: 6, False: 100}
OTHER_REPEATS: Final = {True: 6, False: 30}
"""Fleets of HEADLINE_DOMAINS, and of each other number, by whether the run is quick; 99th percentiles of few are
the worst one."""

BESIDE: Final = {True: 1, False: 2}
"""Of them, those on which the exact planner and the searches run too: half a minute each at WIDE domains."""

WIDE: Final = 10
"""Fleets of more domains are left out of that: there each runs until its limit."""

_COLD: Final = """
import time; started = time.perf_counter()
from strata.training.hi_ppo.global_agent import decide
from strata.training.hi_ppo.policy import load_policy
from strata.evaluation.kpi.instances import LATENCY
problem = LATENCY.with_domains(10, 0).problem()
policy = load_policy({file!r} or None)
decide(problem, policy=policy, clock=time.perf_counter)
print(time.perf_counter() - started)
"""


def measure(study: Study) -> Kpi:
    """Return the row; its value is the 99th percentile at HEADLINE_DOMAINS."""
    table: dict[str, Any] = {}
    headline: list[float] = []
    for done, count in enumerate(LATENCY.domains, 1):
        repeats = (REPEATS if count == HEADLINE_DOMAINS else OTHER_REPEATS)[study.quick]
        instances = [LATENCY.with_domains(count, repeat) for repeat in range(repeats)]
        taken, cpu_s, plans = _timed(study, instances)
        if count == HEADLINE_DOMAINS:
            headline = taken
        beside = instances[: BESIDE[study.quick]] if count <= WIDE else []
        table[str(count)] = {
            "p50_s": float(np.quantile(taken, 0.5)),
            "p99_s": float(np.quantile(taken, 0.99)),
            "most_s": max(taken),
            "cpu_p50_s": float(np.quantile(cpu_s, 0.5)),
            "cpu_p99_s": float(np.quantile(cpu_s, 0.99)),
            "decisions": len(taken),
            **_beside(study, beside, plans),
        }
        study.advance(done / len(LATENCY.domains))
    return Kpi(
        name="inter_domain_latency_s",
        definition=f"99th percentile of the wall time of a whole decision at {HEADLINE_DOMAINS} domains: "
        "candidates, features, network, guard, explanation; one thread, a fresh problem each time",
        baseline=f"none: a bound; exact planner ({DEFAULT_TIME_LIMIT_S:.0f} s at most), NSGA-II and random search "
        f"stand beside with time and quality, on {BESIDE[study.quick]} of the fleets of each number up to {WIDE}",
        value=float(np.quantile(headline, 0.99)),
        target=TARGET_S,
        sense="below",
        ci95=ends(quantile_interval(headline, 0.99)),
        instances=len(headline),
        guards={
            "by_domains": table,
            "first_decision_of_a_process_s": _cold_start_s(study),
            "met_at_most_domains": table[str(LATENCY.domains[-1])]["p99_s"] < TARGET_S,
        },
        trust=Trust.MEASURED,
    )


def _timed(
    study: Study, instances: Sequence[PlanningCase]
) -> tuple[list[float], list[float], list[Evaluated | None]]:
    """Return wall seconds, CPU seconds and the plan of each decision."""
    taken, cpu_s, plans = [], [], []
    # What earlier rows left behind is frozen: else every garbage collection in a decision would walk it.
    gc.collect()
    gc.freeze()
    for instance in instances:
        started, cpu_started = study.clock(), study.cpu_clock()
        plans.append(study.decide(instance.problem()))
        taken.append(study.clock() - started)
        cpu_s.append(study.cpu_clock() - cpu_started)
    gc.unfreeze()
    return taken, cpu_s, plans


def _beside(
    study: Study, instances: Sequence[PlanningCase], plans: Sequence[Evaluated | None]
) -> dict[str, dict[str, float | None]]:
    """Return mean seconds and mean step time over the best known, for the policy and for the searches."""
    steps: dict[str, list[float]] = {}
    taken: dict[str, list[float]] = {}
    for instance, ours in zip(instances, plans, strict=False):
        methods = {"hi_ppo": (_step_s([ours]), 0.0)}
        started = study.clock()
        exact = plan_training(instance.fleet, instance.job, clock=study.clock, rank=0).best
        methods["exact"] = (_step_s([exact]), study.clock() - started)
        searches = {"random_search": random_front} | ({"nsga2": nsga2_front} if nsga2.available() else {})
        for name, search in searches.items():
            context = study.context(seed=instance.seed)
            started = study.clock()
            items = search(instance.problem(), context, evaluations=MOST_PLANS)
            methods[name] = (_step_s(items), study.clock() - started)
        best_s = min(step_s for step_s, _ in methods.values())
        if np.isfinite(best_s):
            for name, (step_s, seconds) in methods.items():
                steps.setdefault(name, []).append(step_s / best_s)
                taken.setdefault(name, []).append(seconds)
    return {
        name: {
            "step_time_over_best": float(np.mean(ratios)) if np.isfinite(ratios).all() else None,
            "found_no_plan": float(np.mean(~np.isfinite(ratios))),
            "mean_s": None if name == "hi_ppo" else float(np.mean(taken[name])),
        }
        for name, ratios in steps.items()
    }


def _step_s(items: Sequence[Evaluated | None]) -> float:
    return min((item.report.step_time_s for item in items if item is not None), default=np.inf)


def _cold_start_s(study: Study) -> float | None:
    """Return the time of the first decision in a new process, imports and loading the policy included."""
    code = _COLD.format(file=study.policy.file)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None
