"""When nothing fits: the smallest change that would make it fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from strata.clock import Clock
from strata.decision import Reason
from strata.errors import OutOfTime
from strata.fleet.fleet import Fleet
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, money
from strata.units import show_bytes, show_time, show_usd
from strata.workload.job import PRECISION_BYTES, Limits, Objective, Recompute, Schedule, TrainingJob
from strata.workload.pins import Pins

MOST_NODES: Final = 4096
"""Where the search for a sufficient number of nodes gives up: beyond any cluster of today."""


def smallest(problem: Problem, *, refusal: Reason | None, clock: Clock, deadline: float) -> list[Reason]:
    """Return why there is no plan, and the least relaxation of what was asked that gives one.

    Where the deadline passes before that is known, only why there is none.
    """
    job = problem.job
    if not problem.fleet.domains:
        return []
    reasons, started = [refusal] if refusal is not None else [], clock()
    free = replace(job, limits=_no_limits(job))
    try:
        if _limits_given(job) and _fits(problem, free, clock=clock, deadline=deadline):
            return _limits(problem, clock, deadline)
        if job.pins.names and _fits(problem, replace(free, pins=Pins()), clock=clock, deadline=deadline):
            return [*reasons, _pins(problem, free, clock, deadline)]
        full = replace(free, recompute=(Recompute.FULL,))
        if Recompute.FULL not in job.recompute and _fits(problem, full, clock=clock, deadline=deadline):
            return [*reasons, Reason("fits-with-recompute", "", {"mode": "full"})]
        return [*reasons, _devices(problem, clock, deadline)]
    except OutOfTime:
        return [*reasons, Reason("needs-unknown", "", {"elapsed": show_time(clock() - started)})]


def precision(fleet: Fleet, problem: Problem) -> list[Reason]:
    """Return the precision that a job needs whose own no domain has a rate for: one that all domains have."""
    precision = problem.job.precision
    if problem.fleet.domains or not all(reason.token == "figure-missing" for reason in problem.excluded):
        return []
    cards = [domain.accelerator for domain in fleet.domains]
    known = [other for other in PRECISION_BYTES if all(card.peak_flops(other) is not None for card in cards)]
    data = {"precision": precision, "known": " or ".join(known)}
    return [Reason("needs-precision", "", data)] if known else []


def _pins(problem: Problem, job: TrainingJob, clock: Clock, deadline: float) -> Reason:
    """Return which parts of the layout the job must not fix: any one of those named, or all."""
    enough = [
        name
        for name in job.pins.names
        if _fits(problem, replace(job, pins=job.pins.without(name)), clock=clock, deadline=deadline)
    ]
    dropped = " or without ".join(enough) or "them"
    return Reason("pins-too-narrow", "", {"pins": str(job.pins), "dropped": dropped})


def _limits(problem: Problem, clock: Clock, deadline: float) -> list[Reason]:
    """Return what each limit would have to be, the other one kept."""
    job, reasons = problem.job, []
    if job.limits.cost_usd_per_step is not None:
        limits = replace(job.limits, cost_usd_per_step=None)
        least = _best(problem, replace(job, objective=Objective.COST, limits=limits), clock, deadline)
        if least is not None:
            value = f"{show_usd(money(least.report))} per step"
            reasons.append(Reason("needs-limit", "", {"limit": "cost", "value": value}))
    if job.limits.tokens_per_s is not None:
        limits = replace(job.limits, tokens_per_s=None)
        fastest = _best(problem, replace(job, objective=Objective.TIME, limits=limits), clock, deadline)
        if fastest is not None:
            value = f"{math.floor(fastest.report.tokens_per_s):,}"
            reasons.append(Reason("needs-limit", "", {"limit": "tokens_per_s", "value": value}))
    return reasons or [Reason("needs-limit", "", {"limit": "cost and tokens_per_s", "value": "both"})]


def _best(problem: Problem, job: TrainingJob, clock: Clock, deadline: float) -> Evaluated | None:
    """Return the best plan of a changed job, None where there is none. Raises OutOfTime."""
    changed = replace(problem, job=job)
    search = Search(changed, Scales(), _largest(changed), clock=clock, deadline=deadline)
    result = search.run()
    if result.stopped and not result.ranked:
        raise OutOfTime("the search")
    return result.ranked[0] if result.ranked else None


def _largest(problem: Problem) -> list[int]:
    """Return the positions of the domains with most devices, as many as can be searched at once."""
    domains = problem.fleet.domains
    return sorted(sorted(range(len(domains)), key=lambda i: -domains[i].num_devices)[:POOL])


def _no_limits(job: TrainingJob) -> Limits:
    return Limits(domains=job.limits.domains, memory_headroom=job.limits.memory_headroom)


def _limits_given(job: TrainingJob) -> bool:
    return job.limits.cost_usd_per_step is not None or job.limits.tokens_per_s is not None


def _fits(
    problem: Problem, job: TrainingJob | None = None, fleet: Fleet | None = None, *, clock: Clock, deadline: float
) -> bool:
    """Whether any plan exists on a changed problem: the first one found will do. Raises OutOfTime."""
    relaxed = replace(job or problem.job, objective=Objective.TIME)
    if Schedule.ONE_F_ONE_B in relaxed.schedules and (relaxed.pins.virtual_stages or 1) == 1:
        relaxed = replace(relaxed, schedules=(Schedule.ONE_F_ONE_B,))  # no other holds less (cost-model.md, 6)
    changed = Problem.of(fleet or problem.fleet, relaxed)
    if not changed.fleet.domains:
        return False
    return Search(changed, Scales(), _largest(changed), clock=clock, deadline=deadline).exists()


def _devices(problem: Problem, clock: Clock, deadline: float) -> Reason:
    """Return how many more devices in the domain of the largest ones would hold the job, whole nodes at a time.

    The count is checked by planning with it, and the next smaller one was checked not to do.
    """
    domains = problem.fleet.domains
    largest = max(domains, key=lambda d: (d.accelerator.memory_bytes, d.num_devices))
    node = largest.devices_per_node

    def enough(nodes: int) -> bool:
        grown = replace(largest, num_devices=largest.num_devices + nodes * node)
        changed = tuple(grown if d is largest else d for d in domains)
        fleet = replace(problem.fleet, domains=changed)
        return _fits(problem, fleet=fleet, clock=clock, deadline=deadline)

    low, high = 0, 1
    while high <= MOST_NODES and not enough(high):
        low, high = high, high * 2
    while high - low > 1 and high <= MOST_NODES:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    memory = show_bytes(largest.accelerator.memory_bytes)
    count = f"over {MOST_NODES * node}" if high > MOST_NODES else str(high * node)
    return Reason("needs-devices", "", {"count": count, "memory": memory, "kind": largest.accelerator.name})
