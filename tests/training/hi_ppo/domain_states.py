"""Parts of plans on small sites, and options, in one line each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from strata.simulate.analytic import StepModel
from strata.training.hi_ppo.assignment import AssignmentCosts, assignments
from strata.training.hi_ppo.domain_state import DomainState, nominal_state
from strata.training.replan.options import Options
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers

SLOW = 4  # index of factor 0.3
LOST = 5


def chain_plan(*names: str, stages: int = 2, ranks: int = 2, copies: int = 3, microbatches: int = 8, **more: Any):
    """One pipeline with `stages` stages of two layers in each of the domains."""
    total = stages * len(names)
    return TrainingPlan(
        (
            Pipeline(
                tuple(Stage(names[i // stages], 2 * i, 2, ranks, total - 1 - i) for i in range(total)),
                copies,
                microbatches,
            ),
        ),
        1,
        **more,
    )


def part(devices: int = 16, *, others: tuple[str, ...] = (), per_node: int = 4, **more: Any) -> AssignmentCosts:
    """The part of domain `a`; `others` work on the same pipeline. 2 stages x 2 ranks x 3 copies unless named."""
    plan = chain_plan("a", *others, **more)
    domain_states = [domain(name, devices, per_node=per_node) for name in ("a", *others)]
    count = 2 * len(plan.pipelines[0].stages)
    work = job(layers(count - 2), batch=plan.pipelines[0].replicas * plan.pipelines[0].microbatches)
    return AssignmentCosts(StepModel(fleet(*domain_states), work), assignments(plan)["a"])


def domain_state(of: AssignmentCosts, **states: Any) -> DomainState:
    """The part's domain with all devices good but the named ones: slow=[3], lost=[5], taken=[7]."""
    found = nominal_state(of.domain)
    health, load, memory = found.health.copy(), found.load.copy(), found.free_memory_bytes.copy()
    health[states.get("slow", [])] = SLOW
    health[states.get("lost", [])] = LOST
    load[states.get("taken", [])] = 1.0
    memory[states.get("taken", [])] = 0.0
    return replace(found, health=health, load=load, free_memory_bytes=memory)


def options(value: Any, cost: Any, *, current: Any, legal: Any = None) -> Options:
    """Options from value [B, P] (the same at every horizon) or [B, P, 5]."""
    worth = np.asarray(value, dtype=float)
    if worth.ndim == 2:
        worth = np.repeat(worth[..., None], 5, axis=2)
    rows, count = worth.shape[:2]
    return Options(
        worth,
        np.asarray(cost, dtype=float),
        np.ones((rows, count, 4)),
        np.asarray(current),
        np.ones((rows, count), dtype=bool) if legal is None else np.asarray(legal),
        np.tile((1.0, 0.0, 0.0), (rows, 1)),
    )
