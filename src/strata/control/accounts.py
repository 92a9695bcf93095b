"""Observations into state, and what becomes of a job whose attempt is over: nothing lost, every step counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from strata.control.outlook import MOST_ROWS
from strata.control.state import (
    Attempt,
    Cancelled,
    DomainSeen,
    DomainSilent,
    DomainView,
    Drained,
    Job,
    JobPhase,
    Part,
    PartPhase,
    PartSeen,
    Snapshot,
    Stop,
    Submitted,
)

BACK_OFF_S: Final = 5.0
MOST_BACK_OFF_S: Final = 300.0
"""What a job waits that failed before it got any further: twice as long each time, and at most so long."""

SAME_SPEED: Final = 0.01
"""Speeds of a domain that differ by less are one."""


def taken_in(snapshot: Snapshot, now_s: float, *, lost_after_s: float) -> tuple[Snapshot, list[Stop]]:
    """Return the snapshot after its inbox, but for measured links, and what must be stopped as nobody's.

    A name that is submitted twice stays the first's: the store refuses the second before it comes here.
    """
    jobs, attempts, domains = dict(snapshot.jobs), dict(snapshot.attempts), dict(snapshot.domains)
    strays: list[Stop] = []
    for item in snapshot.inbox:
        match item:
            case Submitted(spec):
                jobs.setdefault(spec.name, Job(spec))
            case Cancelled(name) if name in jobs:
                jobs[name] = replace(jobs[name], is_cancelled=True)
            case Drained(name, is_drained) if name in domains:
                domains[name] = replace(domains[name], is_drained=is_drained)
            case DomainSilent(name) if name in domains:
                view, after_s = domains[name], item.lost_after_s
                domains[name] = replace(
                    view,
                    silent_since_s=item.at_s if view.silent_since_s is None else view.silent_since_s,
                    lost_after_s=lost_after_s if after_s is None else after_s,
                    silence=item.message,
                )
            case DomainSeen():
                domains[item.domain] = _viewed(item, domains.get(item.domain))
                strays += _see(item, attempts)
                for part in item.parts:
                    if part.attempt in attempts:
                        name = attempts[part.attempt].job
                        jobs[name] = _timed(jobs[name], part)
    for id_, attempt in attempts.items():
        lost = {
            name: replace(part, phase=PartPhase.LOST, message="its domain does not answer")
            for name, part in attempt.parts.items()
            if not part.phase.is_over and _is_lost(domains.get(name), now_s)
        }
        if lost:
            attempts[id_] = replace(attempt, parts={**attempt.parts, **lost})
    return replace(snapshot, jobs=jobs, attempts=attempts, domains=domains, inbox=()), strays


def _viewed(seen: DomainSeen, before: DomainView | None) -> DomainView:
    """Return a domain as it was just seen: whether it is drained and when its speed changed are kept."""
    num_devices, speed = seen.num_devices, seen.speed
    if seen.devices:
        there = [device for device in seen.devices if device > 0]
        num_devices, speed = len(there), median(there) if there else 0.0
    recent = () if before is None else before.recent
    if abs(speed - (recent[-1][1] if recent else 1.0)) > SAME_SPEED:
        recent = (*recent, (seen.at_s, speed))[-MOST_ROWS:]
    return DomainView(
        seen.domain, num_devices, seen.at_s, speed, seen.queue,
        is_drained=before is not None and before.is_drained, devices=seen.devices, recent=recent,
    )  # fmt: skip


def _is_lost(view: DomainView | None, now_s: float) -> bool:
    return (
        view is not None and view.silent_since_s is not None and now_s - view.silent_since_s >= view.lost_after_s
    )


def _see(seen: DomainSeen, attempts: dict[str, Attempt]) -> Iterator[Stop]:
    """Write what a domain tells of its attempts; yield a stop for each that runs and should not."""
    known = {part.attempt: part for part in seen.parts}
    for id_, attempt in attempts.items():
        before = attempt.parts.get(seen.domain)
        if before is None or before.phase.is_over:
            continue
        item = known.get(id_)
        if item is not None:
            attempts[id_] = _reported(attempt, seen, item)
        elif before.phase is PartPhase.RUNNING:
            gone = Part(PartPhase.FAILED, seen.at_s, message="it is no longer there")
            attempts[id_] = replace(attempt, parts={**attempt.parts, seen.domain: gone})
    for id_, item in known.items():
        part = attempts[id_].parts.get(seen.domain) if id_ in attempts else None
        if item.phase is PartPhase.RUNNING and (part is None or part.phase.is_over):
            yield Stop(seen.domain, id_, 0.0)


def _timed(job: Job, part: PartSeen) -> Job:
    """Return a job with what its starts and stops take; the slowest part of one is heard of last."""
    launch_s = job.launch_s if part.launch_s is None else part.launch_s
    stop_s = job.stop_s if part.stop_s is None else part.stop_s
    is_known = (launch_s, stop_s) == (job.launch_s, job.stop_s)
    return job if is_known else replace(job, launch_s=launch_s, stop_s=stop_s)


def _reported(attempt: Attempt, seen: DomainSeen, item: PartSeen) -> Attempt:
    part = Part(item.phase, seen.at_s, item.exit_code, item.message)
    if item.first_step is not None and 0 < item.first_step <= attempt.from_step:
        # The checkpoint we knew of could not be read: it went on from one before, and says so.
        attempt = replace(attempt, from_step=item.first_step - 1, step=item.first_step - 1)
    return replace(
        attempt,
        parts={**attempt.parts, seen.domain: part},
        step=max(attempt.step, item.step or 0),
        checkpoint_step=max(attempt.checkpoint_step, item.checkpoint_step or 0),
        step_time_s=item.step_time_s or attempt.step_time_s,
    )


def settled(snapshot: Snapshot, now_s: float) -> Snapshot:
    """Return the snapshot with attempts that are over accounted for, and those stopped that cannot go on.

    A job that was final before is left out, for it was kept then: a loop of many weeks holds what still matters.
    """
    jobs, attempts = dict(snapshot.jobs), dict(snapshot.attempts)
    for id_, attempt in snapshot.attempts.items():
        job = jobs[attempt.job]
        if attempt.is_over and job.phase is JobPhase.RUNNING and job.attempts == attempt.number:
            jobs[attempt.job] = _after(job, attempt, now_s)  # it stays for one step, to be kept as ended
        elif attempt.is_over:
            del attempts[id_]
        elif job.is_cancelled:
            attempts[id_] = replace(attempt, is_stopping=True, reason="cancelled")
        elif any(part.phase in (PartPhase.FAILED, PartPhase.LOST) for part in attempt.parts.values()):
            attempts[id_] = replace(attempt, is_stopping=True, reason="a part of it failed")
    running = {attempt.job for attempt in attempts.values() if not attempt.is_over}
    for name, job in jobs.items():
        if job.is_cancelled and not job.phase.is_final and name not in running:
            jobs[name] = replace(job, phase=JobPhase.CANCELLED)
    held = {attempt.job for attempt in attempts.values()}
    for name, job in snapshot.jobs.items():
        if job.phase.is_final and name not in held:
            del jobs[name]
    return replace(snapshot, jobs=jobs, attempts=attempts)


def _after(job: Job, attempt: Attempt, now_s: float) -> Job:
    """Return a job whose attempt is over: done, queued again from its newest checkpoint, or failed for good."""
    ended = all(part.phase is PartPhase.ENDED for part in attempt.parts.values())
    reports = attempt.step > attempt.from_step or not ended
    is_done = ended and (attempt.step >= job.spec.steps or not (attempt.is_stopping or reports))
    saved = job.spec.steps if is_done else attempt.checkpoint_step
    kept = max(job.steps_done, saved) if job.spec.can_resume or is_done else 0
    repeated = (attempt.step - attempt.from_step) - (kept - job.steps_done)
    has_failed = any(part.phase is PartPhase.FAILED for part in attempt.parts.values())
    is_fruitless = kept <= job.steps_done and (has_failed or (ended and not attempt.is_stopping))
    lie = job.weights_plan if attempt.left_s(now_s) > 0 else attempt.plan
    job = replace(job, steps_done=kept, repeated_steps=job.repeated_steps + max(0, repeated), weights_plan=lie)
    if is_done:
        return replace(job, phase=JobPhase.DONE, next_plan=None)
    failures = job.failures + (not ended or not attempt.is_stopping)
    phase = JobPhase.FAILED if failures > job.spec.most_failures else JobPhase.QUEUED
    wait_s = min(BACK_OFF_S * 2 ** (failures - 1), MOST_BACK_OFF_S)
    retry_s = now_s + wait_s if is_fruitless and phase is JobPhase.QUEUED else None
    return replace(job, phase=phase, failures=failures, retry_s=retry_s)
