"""What strata's plan is compared with: one file per baseline, all named in every comparison.

Each module has `plan(problem, context) -> TrainingPlan | None`; None where the rule finds no legal plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strata.errors import install
from strata.training.plan.baselines import (
    home_domain,
    ideal_domain,
    latency_blind,
    mast_like,
    nsga2,
    random_search,
    sailor_like,
    single_domain,
    uniform_split,
)
from strata.training.plan.baselines.context import Context
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated

Baseline = Callable[[Problem, Context], Evaluated | None]

BASELINES: Final[dict[str, Baseline]] = {
    "best_single_domain": single_domain.plan,
    "equal_gpus_one_domain": ideal_domain.plan,
    "uniform_split": uniform_split.plan,
    "home_domain": home_domain.plan,
    "mast_like": mast_like.plan,
    "sailor_like": sailor_like.plan,
    "latency_blind": latency_blind.plan,
    "random_search": random_search.plan,
    "nsga2": nsga2.plan,
}


def absent(name: str) -> str:
    """Return why a baseline found no plan: what it needs is not installed, or nothing legal came out."""
    if name == "nsga2" and not nsga2.available():
        return f"needs pymoo ({install('dev')})"
    return "no plan of this rule fits"
