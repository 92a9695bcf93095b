"""When nothing fits: the smallest change that would make it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from strata.decision import Reason
from strata.fleet.fleet import Fleet
from strata.training.objective import Scales
from strata.training.problem import POOL, Problem
from strata.training.search import Found, Search
from strata.units import show_bytes, show_usd
from strata.workload.job import Limits, Objective, Recompute, TrainingJob

MOST_NODES: Final = 4096
"""Where the search for a sufficient number of nodes gives up: beyond any cluster of today."""


def smallest(problem: Problem, found: Found) -> list[Reason]:
    """Return why there is no plan, and the least relaxation of what was asked that gives one."""
    if not problem.fleet.domains:
        return []
    if found.missed:
        return [_limit(problem, found)]
    reasons = list(found.refusals.values())[:1]
    if Recompute.FULL not in problem.job.recompute and _fits(problem, replace(
        problem.job, recompute=(Recompute.FULL,), limits=_no_limits(problem.job))):  # fmt: skip
        return [*reasons, Reason("fits-with-recompute", "", {"mode": "full"})]
    if _limits_given(problem.job) and _fits(problem, replace(problem.job, limits=_no_limits(problem.job))):
        return [*reasons, Reason("needs-limit", "", {"limit": "cost or tokens_per_s", "value": "none"})]
    return [*reasons, _devices(problem)]


def _limit(problem: Problem, found: Found) -> Reason:
    limits = problem.job.limits
    reports = [item.report for item in found.missed.values()]
    if limits.cost_usd_per_step is not None:
        fast = [r for r in reports if limits.tokens_per_s is None or r.tokens_per_s >= limits.tokens_per_s]
        costs = [r.cost_usd_per_step for r in fast if r.cost_usd_per_step is not None]
        if costs:
            return Reason("needs-limit", "", {"limit": "cost", "value": f"{show_usd(min(costs))} per step"})
    best = max(r.tokens_per_s for r in reports)
    return Reason("needs-limit", "", {"limit": "tokens_per_s", "value": f"{best:,.0f}"})


def _no_limits(job: TrainingJob) -> Limits:
    return Limits(domains=job.limits.domains, memory_headroom=job.limits.memory_headroom)


def _limits_given(job: TrainingJob) -> bool:
    return job.limits.cost_usd_per_step is not None or job.limits.tokens_per_s is not None


def _fits(problem: Problem, job: TrainingJob | None = None, fleet: Fleet | None = None) -> bool:
    """Whether any plan exists on a changed problem (searched without a deadline: the first one found will do)."""
    job, fleet = job or problem.job, fleet or problem.fleet
    members = sorted(range(len(fleet.domains)), key=lambda i: -fleet.domains[i].num_devices)[:POOL]
    changed = Problem.of(fleet, replace(job, objective=Objective.TIME))
    if not changed.fleet.domains:
        return False
    return Search(changed, Scales(), members, clock=lambda: 0.0, deadline=1.0).exists()


def _devices(problem: Problem) -> Reason:
    """Return how many more devices in the domain of the largest ones would hold the job, whole nodes at a time.

    The count is checked by planning with it, and the next smaller one was checked not to do.
    """
    domains = problem.fleet.domains
    largest = max(domains, key=lambda d: (d.accelerator.memory_bytes, d.num_devices))
    node = largest.devices_per_node

    def enough(nodes: int) -> bool:
        grown = replace(largest, num_devices=largest.num_devices + nodes * node)
        changed = tuple(grown if d is largest else d for d in domains)
        return _fits(problem, fleet=replace(problem.fleet, domains=changed))

    low, high = 0, 1
    while high <= MOST_NODES and not enough(high):
        low, high = high, high * 2
    while high - low > 1 and high <= MOST_NODES:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    memory = show_bytes(largest.accelerator.memory_bytes)
    count = f"over {MOST_NODES * node}" if high > MOST_NODES else str(high * node)
    return Reason("needs-devices", "", {"count": count, "memory": memory, "kind": largest.accelerator.name})
