"""Placements, a domain for each layer as in seed 001, as training plans.

Consecutive layers in one domain are a stage, so a placement that comes back to a domain gives it several. Nothing
else is chosen: tensor parallelism as wide as nodes and visits allow, copies as many as then fit, microbatches of
one sequence, classic 1F1B, full recomputation only where it is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from strata.fleet.fleet import Domain
from strata.simulate.pipeline import classic_warmup
from strata.training.plan.exact.config_space import TENSOR_PARALLEL
from strata.training.plan.exact.problem import Problem
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan


def home_placement(num_layers: int) -> list[int]:
    """Return the placement of all layers in domain 0."""
    return [0] * num_layers


def uniform_placement(num_layers: int, num_domains: int) -> list[int]:
    """Return equal shares in the order of the domains, as equal as whole layers are."""
    return [layer * num_domains // num_layers for layer in range(num_layers)]


def plan_of(problem: Problem, placement: Sequence[int]) -> TrainingPlan:
    """Return the plan of a placement (one domain index a layer), whether or not its devices and memory suffice."""
    domains, job = problem.fleet.domains, problem.job
    runs = [(index, len(list(layers))) for index, layers in groupby(placement)]
    visits = Counter(index for index, _ in runs)
    ranks = {index: _ranks(problem, domains[index], count) for index, count in visits.items()}
    rooms = [problem.slots(domains[index], ranks[index]) // count for index, count in visits.items()]
    copies = max(1, min(*rooms, job.global_batch)) if rooms else 1
    microbatches = -(-job.global_batch // copies)
    stages, first = [], 0
    for (index, size), warmup in zip(runs, classic_warmup(len(runs)), strict=True):
        depth = min(warmup, microbatches - 1)
        stages.append(Stage(domains[index].name, first, size, ranks[index], depth))
        first += size
    pipeline = Pipeline(tuple(stages), copies, microbatches)
    plans = [
        TrainingPlan((pipeline,), 1, Schedule.ONE_F_ONE_B, recompute, max(job.zero_stages))
        for recompute in job.recompute
    ]
    return next((plan for plan in plans if problem.model.fits(plan)), plans[-1])


def why_not(problem: Problem, plan: TrainingPlan) -> str:
    """Return what a plan does not fit, "devices" or "memory", or "" where it fits."""
    if any(count > problem.fleet.domain(name).num_devices for name, count in plan.devices().items()):
        return "devices"
    return "" if problem.model.fits(plan) else "memory"


def _ranks(problem: Problem, domain: Domain, visits: int) -> int:
    """Return the devices of one stage: the most with which each visit has its own, 1 where there is none."""
    widths = [
        ranks
        for ranks in TENSOR_PARALLEL
        if ranks <= domain.devices_per_node
        and problem.job.divides(ranks)
        and problem.slots(domain, ranks) >= visits
    ]
    return max(widths, default=1)
