"""Which devices of a domain an attempt has, what a local agent sees of them, and the plan of what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from strata.control.state import Attempt, Snapshot
from strata.errors import UsageError
from strata.training.hi_ppo.assignment import Assignment, assignments
from strata.training.hi_ppo.binding import NOBODY, Binding, equal_shares
from strata.training.hi_ppo.domain_state import DomainState, nominal_state
from strata.workload.plan import TrainingPlan


def parts_of(plan: TrainingPlan) -> Mapping[str, Assignment]:
    """Return what each domain does of a plan; nothing where a domain cannot bind its part alone."""
    if plan.refinements or plan.shard_group is not None:
        return {}  # neighbouring copies hold parts of one thing
    try:
        return assignments(plan)
    except UsageError:
        return {}


def held(state: Snapshot, domain: str) -> dict[str, tuple[int, ...]]:
    """Return the devices of a domain that each attempt has, by its id.

    A driver that gives devices out on its own takes the lowest that are free, so that is what is assumed of it.
    """
    here = [a for a in state.live if domain in a.parts and not a.parts[domain].phase.is_over]
    given = {attempt.id: attempt.devices[domain] for attempt in here if domain in attempt.devices}
    taken = set(chain.from_iterable(given.values()))
    free = (number for number in range(10**9) if number not in taken)
    for attempt in here:
        if attempt.id not in given:
            given[attempt.id] = tuple(islice(free, attempt.plan.devices()[domain]))
    return given


def seen_by(state: Snapshot, attempt: Attempt, domain: str, *, interval_s: float) -> tuple[DomainState, Binding]:
    """Return a domain as the local agent of an attempt sees it, and the binding in use.

    What other attempts have is taken. A device between two states of health is in the better one, and loaded.
    """
    given = held(state, domain)
    there = state.fleet.domain(domain)  # jobs may hold more: of a driver that finds more, of a file that had more
    count = max(there.num_devices, 1 + max(chain.from_iterable(given.values())))
    site = nominal_state(replace(there, num_devices=count), interval_s=interval_s)
    speeds, taken = np.zeros(count), np.zeros(count, dtype=bool)
    speeds_now = state.domains[domain].capacity[:count]
    speeds[: len(speeds_now)] = np.minimum(speeds_now, 1.0)
    others = [number for id_, numbers in given.items() if id_ != attempt.id for number in numbers]
    taken[[number for number in others if number < count]] = True
    factors = np.asarray(site.chain.factors)
    health = (factors[None] >= speeds[:, None]).sum(axis=1) - 1
    load = 1 - np.divide(speeds, factors[health], out=np.ones(count), where=factors[health] > 0)
    site = replace(
        site, health=health, load=np.where(taken, 1.0, load),
        free_memory_bytes=np.where(taken, 0.0, site.free_memory_bytes),
    )  # fmt: skip
    return site, _binding(parts_of(attempt.plan)[domain], given[attempt.id])


def rebound(assignment: Assignment, binding: Binding) -> TrainingPlan:
    """Return the plan with one domain's part as a local agent bound it: its copies and tensor-parallel degrees."""
    plan, old = assignment.plan, assignment.pipeline
    degrees = iter(binding.degrees)
    stages = tuple(
        replace(stage, tensor_parallel=next(degrees)) if stage.domain == assignment.domain else stage
        for stage in old.stages
    )
    pipelines = list(plan.pipelines)
    pipelines[assignment.index] = replace(old, stages=stages).with_copies(
        len(binding.devices), plan.samples(old), microbatch_size=plan.microbatch_size
    )
    return replace(plan, pipelines=tuple(pipelines))


def _binding(assignment: Assignment, numbers: tuple[int, ...]) -> Binding:
    copies, degrees = assignment.pipeline.replicas, assignment.degrees
    devices = np.full((copies, len(degrees), max(degrees)), NOBODY)
    devices[:, np.arange(max(degrees)) < np.array(degrees)[:, None]] = np.reshape(numbers, (copies, -1))
    return Binding(devices, equal_shares(assignment.microbatches, copies))
