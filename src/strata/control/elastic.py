"""The plans between a job's least and most devices, and who gives devices up to whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from strata.control.candidates import Candidates
from strata.control.free import Room
from strata.control.queue import shares
from strata.control.state import Attempt, Job, JobSpec, Snapshot
from strata.fleet.fleet import Domain, Fleet
from strata.workload.plan import TrainingPlan

Plans = Callable[[Fleet, JobSpec], Candidates]


@lru_cache(maxsize=64)
def with_smaller(candidates: Candidates) -> Candidates:
    """Return the plans and the same with a half, a quarter … of their copies, as far as they fit memory."""
    smaller = dict.fromkeys(less for plan in candidates.plans for less in _smaller(plan))
    fitting = [plan for plan in smaller if plan not in candidates.index and candidates.model.fits(plan)]
    return candidates.of_plans([*candidates.plans, *fitting]) if fitting else candidates


@lru_cache(maxsize=64)
def at_least(candidates: Candidates, least: int) -> Candidates:
    """Return the plans, and where all are on fewer devices the fastest on as many as are asked for."""
    if not candidates.plans or candidates.devices.sum(axis=1).max() >= least:
        return candidates
    wide = Candidates.of(candidates.fleet, candidates.job, apart=candidates.apart, least=least).plans
    return candidates.of_plans([*candidates.plans, *wide]) if wide else candidates


@lru_cache(maxsize=64)
def at_most(candidates: Candidates, most: int) -> Candidates:
    """Return the plans, and where all are on more devices those of each domain alone on as many as are allowed."""
    if not candidates.plans or (candidates.devices.sum(axis=1) <= most).any():
        return candidates
    fleet = candidates.fleet
    parts = (replace(fleet, domains=(_part(domain, most),), links={}) for domain in fleet.domains)
    alone = [plan for part in parts for plan in Candidates.of(part, candidates.job).plans]
    return candidates.of_plans([*candidates.plans, *alone]) if alone else candidates


def _part(domain: Domain, most: int) -> Domain:
    """Return a domain with no more devices: whole nodes of it, or a part of one."""
    count = min(domain.num_devices, most)
    node = min(domain.devices_per_node, count)
    return replace(domain, num_devices=count - count % node, devices_per_node=node)


def _smaller(plan: TrainingPlan) -> Iterator[TrainingPlan]:
    if plan.shard_group is not None:
        return  # neighbouring copies hold parts of one thing
    while all(pipeline.replicas > 1 for pipeline in plan.pipelines):
        size = plan.microbatch_size
        halves = [
            pipeline.with_copies(pipeline.replicas // 2, plan.samples(pipeline), microbatch_size=size)
            for pipeline in plan.pipelines
        ]
        plan = replace(plan, pipelines=tuple(halves))
        yield plan


def given_up(
    state: Snapshot, job: Job, attempts: Mapping[str, Attempt], *, room: Room, plans: Plans
) -> dict[str, TrainingPlan]:
    """Return what elastic attempts run from now on, so that a job that waits has room; by attempt.

    They give way to a larger priority, and to an owner who holds less for its weight even afterwards. As few as
    can be, each down to its least. Empty where all of them would not make room, and while others are on their
    way out.
    """
    candidates = plans(state.fleet, job.spec)
    if not candidates.plans or any(item.is_stopping and not item.is_over for item in attempts.values()):
        return {}
    need = int(candidates.devices.sum(axis=1).min()) if job.spec.min_devices is None else job.spec.min_devices
    held = shares(state)
    chosen: dict[str, TrainingPlan] = {}
    givers = [item for item in state.live if _owes(state.jobs[item.job], job, held=held, need=need)]
    for attempt in sorted(givers, key=lambda item: (state.jobs[item.job].spec.priority, -item.plan.num_devices)):
        spec = state.jobs[attempt.job].spec
        options = _within(plans(state.fleet, spec), attempt.plan, least=spec.min_devices or 1)
        if not options:
            continue
        freed = room.with_back(attempt.plan)
        enough = [plan for plan in options if freed.without(plan).legal(candidates, job.spec).any()]
        chosen[attempt.id] = enough[0] if enough else options[-1]
        room = freed.without(chosen[attempt.id])
        if enough:
            return chosen
    return {}


def _owes(held_by: Job, job: Job, *, held: Mapping[str, float], need: int) -> bool:
    giver, taker = held_by.spec, job.spec
    if not giver.is_elastic or held_by.is_cancelled or giver.priority > taker.priority:
        return False
    if giver.priority < taker.priority:
        return True
    after = held.get(giver.owner, 0.0) - need / giver.weight
    return giver.owner != taker.owner and held.get(taker.owner, 0.0) + need / taker.weight <= after


def _within(candidates: Candidates, plan: TrainingPlan, *, least: int) -> Sequence[TrainingPlan]:
    """Return the plans on fewer of the devices that a plan has, the largest first, of like ones the fastest."""
    has = plan.devices()
    rates = candidates.nominal
    fewer = [
        (index, other)
        for index, other in enumerate(candidates.plans)
        if least <= other.num_devices < plan.num_devices
        and rates[index] > 0
        and all(count <= has.get(name, 0) for name, count in other.devices().items())
    ]
    return [other for _, other in sorted(fewer, key=lambda item: (-item[1].num_devices, -rates[item[0]]))]
