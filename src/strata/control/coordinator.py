"""What a running job's coordinator does about an event: it asks the agent between domains, one inside, or none.

The agent between domains (`choosing`) is asked at every interval and at once where a domain is gone or a link in
use came to another level. One inside a domain (`hi_ppo.local_agent`) answers for devices that are lost, slow or
taken by others, and where it cannot hold its part or loses too much, the agent between domains is asked after all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from strata.control.bindings import parts_of, rebound, seen_by
from strata.control.candidates import Candidates, plan_links
from strata.control.choosing import JobDecision
from strata.control.state import Attempt, DomainView, Job, Snapshot
from strata.decision import Alternative, Decision, Reason, Trust, digest
from strata.training.hi_ppo.assignment import AssignmentCosts
from strata.training.hi_ppo.global_agent import RESTART_S
from strata.training.hi_ppo.local_agent import LocalCase, decide, needs_global
from strata.training.replan.rules import Rule
from strata.units import show_bandwidth
from strata.workload.plan import TrainingPlan

LINK_CHANGE: Final = 0.3
"""Change of the level of a link in use that is drastic: more than the seeds' noise (seed 001 section 3.1)."""

MOST_FALL: Final = 0.2
"""Share of its throughput a domain may lose after its local agent did what it could."""

DEVICE_CHANGE: Final = 0.05
"""Of a device's speed, what its local agent is asked for."""

UNTOUCHED: Final = 0.999
"""Share of the planned throughput above which nothing happened to a part."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What the local agents of an attempt answer.

    decision: None where none has an answer. devices: of domains bound anew. woken: why the agent between domains
    must be asked; where it keeps the plan, the decision holds.
    """

    decision: JobDecision | None = None
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    woken: tuple[Reason, ...] = ()


def drastic(state: Snapshot, job: Job, attempt: Attempt) -> Iterator[Reason]:
    """Yield why the agent between domains is asked before its interval is over."""
    for name in attempt.plan.domains:
        view = state.domains.get(name)
        if view is None or view.is_drained:
            yield Reason("domain-vanished", "", {"domain": name})
        elif job.decided_s is not None and view.recent and view.recent[-1][0] > job.decided_s:
            speeds = [speed for at_s, speed in view.recent if at_s <= job.decided_s] or [1.0]
            if view.speed < (1 - LINK_CHANGE) * speeds[-1]:
                data = {"kept": view.speed, "before": speeds[-1], "share": LINK_CHANGE}
                yield Reason("throughput-fell", name, data)
    for pair in plan_links(attempt.plan) if len(attempt.parts) > 1 else ():
        estimate, link = state.links.get(pair), state.fleet.links.get(pair)
        if estimate is None or link is None or job.decided_s is None or estimate.since_s <= job.decided_s:
            continue
        before = [factor for at_s, factor in estimate.recent if at_s <= job.decided_s]
        then = before[-1] if before else 1.0
        if abs(estimate.factor - then) > LINK_CHANGE * then:
            now, was = (show_bandwidth(link.bandwidth_bytes_per_s * factor) for factor in (estimate.factor, then))
            yield Reason("links-changed", "", {"source": pair[0], "dest": pair[1], "now": now, "then": was})


def changed(attempt: Attempt, before: Mapping[str, DomainView], now: Mapping[str, DomainView]) -> list[str]:
    """Return the domains of an attempt whose devices are not those of the step before."""
    there = [name for name in attempt.plan.domains if name in before and name in now]
    return [name for name in there if _differ(before[name], now[name])]


def _differ(before: DomainView, now: DomainView) -> bool:
    if not before.devices or len(before.devices) != len(now.devices):
        return bool(now.devices) or before.num_devices != now.num_devices
    pairs = zip(before.devices, now.devices, strict=True)
    return any(abs(then - device) > DEVICE_CHANGE or (then > 0) != (device > 0) for then, device in pairs)


def inside(
    state: Snapshot, job: Job, attempt: Attempt, *,
    domains: list[str], candidates: Candidates, choose: Rule, interval_s: float, now_s: float,
) -> Inside:  # fmt: skip
    """Ask the local agents of some domains of an attempt; the one with the most to gain changes its part."""
    for name in domains:
        need, have = attempt.plan.devices()[name], state.fleet.domain(name).num_devices
        if need > have:  # the fleet file was edited: no binding of what is left is its plan
            return Inside(
                woken=(Reason("devices-held", "", {"domain": name, "devices": need, "free": have, "by": ""}),)
            )
    parts, restart_s = parts_of(attempt.plan), RESTART_S if job.restart_s is None else job.restart_s
    hit = [parts[name] for name in domains if name in parts]
    if not hit:
        return Inside()
    cases = []
    for part in hit:
        site, current = seen_by(state, attempt, part.domain, interval_s=interval_s)
        cases.append(
            LocalCase(AssignmentCosts(candidates.model, part), site, current, restart_s, has_shares=False)
        )
    answers = decide(cases, choose)
    whys = [needs_global(answer, since=1.0, most_fall=MOST_FALL) for answer in answers]
    woken = tuple(
        Reason(why.token, part.domain, why.data) for part, why in zip(hit, whys, strict=True) if why is not None
    )
    if any(answer.binding is None for answer in answers):
        return Inside(woken=woken)
    # Domains change their parts one after another: the next one when this attempt has ended.
    first = int(np.argmax([np.nan_to_num(answer.keeping_loses, nan=0.0, posinf=1e9) for answer in answers]))
    answer, part, case = answers[first], hit[first], cases[first]
    assert answer.binding is not None
    is_kept = case.current is not None and answer.binding.same_as(case.current)
    if is_kept and answer.throughput > UNTOUCHED:
        return Inside(woken=woken)
    plan = attempt.plan if is_kept else rebound(part, answer.binding)
    if not is_kept and (plan.num_devices < (job.spec.min_devices or 1) or not _runs(candidates, plan)):
        return Inside(woken=woken)
    rest = [item for item in answer.considered if item.name != answer.name]
    others = tuple(Alternative(item.name, item.cost, item.reasons, attempt.plan) for item in rest)
    reasons = (*answer.reasons, *(reason for item in answer.considered for reason in item.reasons))
    inputs = digest(job.spec.name, job.attempts, now_s, state.fleet.name)
    made = Decision(plan, others, reasons, Trust.ANALYTIC, inputs, 0, 0.0)
    devices = {} if is_kept else {part.domain: tuple(answer.binding.used.tolist())}
    return Inside(JobDecision(job.spec.name, now_s, made, attempt.step_time_s), devices, woken)


def _runs(candidates: Candidates, plan: TrainingPlan) -> bool:
    known = candidates.with_plan(plan)
    return bool(known.nominal[known.index[plan]] > 0) and known.model.fits(plan)
