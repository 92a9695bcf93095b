"""What strata's plan is compared with: one function per baseline, all named in every comparison.

Each returns the plan that its rule would choose, evaluated by strata's model; None where it finds no legal one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strata.errors import install
from strata.training.plan.baselines import exact_rules, nsga2, random_search, uniform_rules
from strata.training.plan.baselines.context import Context
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated

Baseline = Callable[[Problem, Context], Evaluated | None]

BASELINES: Final[dict[str, Baseline]] = {
    "best_single_domain": exact_rules.single_domain,
    "equal_gpus_one_domain": exact_rules.ideal_domain,
    "uniform_split": uniform_rules.uniform_split,
    "home_domain": exact_rules.home_domain,
    "mast_like": exact_rules.mast_like,
    "sailor_like": uniform_rules.sailor_like,
    "latency_blind": exact_rules.latency_blind,
    "random_search": random_search.plan,
    "nsga2": nsga2.plan,
}


def absent(name: str) -> str:
    """Return why a baseline found no plan: what it needs is not installed, or nothing legal came out."""
    if name == "nsga2" and not nsga2.available():
        return f"needs pymoo ({install('dev')})"
    return "no plan of this rule fits"
