"""Who goes first: priority, then fair share, then arrival; who may pass, and who must give way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from strata.control.candidates import Candidates
from strata.control.free import Room
from strata.control.state import Attempt, Job, JobPhase, JobSpec, Snapshot
from strata.fleet.fleet import Fleet
from strata.workload.plan import TrainingPlan


def ordered(state: Snapshot, now_s: float) -> list[Job]:
    """Return the queued jobs: larger priority, then whose owner holds less for its weight, then who came first.

    Before them who only changes its plan: its devices are still kept for it. Who failed is left out for a while.
    """
    held = shares(state)
    queued = [
        job
        for job in state.jobs.values()
        if job.phase is JobPhase.QUEUED and not job.is_cancelled and (job.retry_s is None or now_s >= job.retry_s)
    ]
    return sorted(
        queued,
        key=lambda job: (
            job.next_plan is None,
            -job.spec.priority,
            held.get(job.spec.owner, 0.0),
            job.spec.submitted_s,
            job.spec.name,
        ),
    )


def shares(state: Snapshot) -> Mapping[str, float]:
    """Return the devices that each owner holds, over the weights of its jobs."""
    held: dict[str, float] = defaultdict(float)
    for attempt in state.live:
        spec = state.jobs[attempt.job].spec
        held[spec.owner] += attempt.plan.num_devices / spec.weight
    return held


def may_pass(
    state: Snapshot,
    head: Job,
    job: Job,
    plan: TrainingPlan,
    *,
    now_s: float,
    plans: Callable[[Fleet, JobSpec], Candidates],
) -> bool:
    """Whether a job may start although `head`, which goes before it, waits (EASY backfill, by predicted time).

    It may where it ends before head can start, or leaves head the devices it will start on.
    """
    room, ends = Room.of(state), []
    for attempt in state.live:
        candidates = plans(state.fleet, state.jobs[attempt.job].spec)
        left_s = _left_s(candidates, attempt.plan, state.jobs[attempt.job].spec.steps - attempt.step)
        ends.append((now_s + left_s, attempt.id))
    candidates = plans(state.fleet, head.spec)
    start_s, later = now_s, room
    for end_s, id_ in sorted(ends):
        if later.legal(candidates, head.spec).any():
            break
        start_s, later = end_s, later.with_back(state.attempts[id_].plan)
    if not later.legal(candidates, head.spec).any():
        return True  # nothing that ends now helps it
    own = plans(state.fleet, job.spec)
    if now_s + _left_s(own, plan, job.spec.steps - job.steps_done) <= start_s:
        return True
    return bool(later.without(plan).legal(candidates, head.spec).any())


def _left_s(candidates: Candidates, plan: TrainingPlan, steps: int) -> float:
    """Return how long so many steps take at nominal links."""
    index = candidates.index.get(plan, 0)
    return steps / max(float(candidates.nominal[index]), 1e-12)


def preempted(state: Snapshot, job: Job, attempts: Mapping[str, Attempt], candidates: Candidates) -> list[str]:
    """Return the attempts that give way to a job: of lower priority, of jobs that allow it, the least ones.

    Empty where even all of them would not make room, and while others are still on their way out.
    """
    weaker = [item for item in attempts.values() if _gives_way(state.jobs[item.job], job) and not item.is_over]
    if not weaker or any(attempt.is_stopping and not attempt.is_over for attempt in attempts.values()):
        return []
    room, chosen = Room.of(state), list[str]()
    for attempt in sorted(weaker, key=lambda item: (state.jobs[item.job].spec.priority, -item.started_s)):
        if attempt.id not in state.attempts:
            return []  # it starts in this very step
        room = room.with_back(attempt.plan)
        chosen.append(attempt.id)
        if room.legal(candidates, job.spec).any():
            return chosen
    return []


def _gives_way(held: Job, job: Job) -> bool:
    return held.spec.is_preemptible and held.spec.priority < job.spec.priority
