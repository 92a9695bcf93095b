"""One job's plan: the outlook of its candidates, the policy's choice, and the Decision that says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Bools
from strata.control.candidates import Candidates
from strata.control.free import Room
from strata.control.measured import Measured
from strata.control.outlook import Outlook, outlook_of
from strata.control.policies import Choose, Learned
from strata.control.prospects import not_allowed
from strata.control.rollouts import Moving
from strata.control.state import Job, JobPhase, PartPhase, Snapshot
from strata.decision import Alternative, Decision, Reason, Trust, digest
from strata.names import first_of
from strata.training.plan import explain
from strata.training.plan.planner import problem_of
from strata.units import show_time
from strata.workload.plan import TrainingPlan

SHOWN: Final = 5
_MOST_HOLDERS: Final = 4

ALIKE: Final = 1e-3
"""Expected gains that differ by a smaller share are alike: then the plan is taken that leaves the fewest devices
free in its domains, so that jobs of many devices find room (best fit)."""


@dataclass(frozen=True, slots=True)
class JobDecision:
    """What was decided for a job at a time. step_time_s: expected now under the chosen plan, None without one."""

    job: str
    at_s: float
    decision: Decision[TrainingPlan]
    step_time_s: float | None

    @property
    def text(self) -> str:
        """The first reason, for people."""
        return str(self.decision.reasons[0])


def choice(
    candidates: Candidates,
    choose: Choose,
    state: Snapshot,
    job: Job,
    *,
    now_s: float,
    room: Room,
    current: TrainingPlan | None,
    interval_s: float,
    measured: Measured,
    left_s: float = 0.0,
    woken: tuple[Reason, ...] = (),
) -> JobDecision:
    """Return the policy's plan for a job: the one in use, another one, or none that is free.

    left_s: for how long the job's weights are still under way from `job.weights_plan`. woken: why this is asked
    before its interval is over.
    """
    candidates = candidates if current is None else candidates.with_plan(current)
    source = job.weights_plan if left_s > 0 else None
    candidates = candidates if source is None else candidates.with_plan(source)
    index = -1 if current is None else candidates.index[current]
    if not candidates.plans:
        reasons = Reason("no-plan-fits", job.spec.name), *problem_of(candidates.fleet, candidates.job).excluded
        return _decided(job, now_s, None, reasons, _left_out(candidates), state)
    legal = room.legal(candidates, job.spec)
    if index < 0 and not legal.any():
        return _decided(job, now_s, None, _waits(candidates, state, job), (), state)
    restart_s, history = job.restart_s, measured.seen_by(job.spec.name)
    is_anew = index < 0 or not legal[index]  # what it runs on is gone or drained
    outlook = outlook_of(
        candidates, history, current=-1 if is_anew else index, interval_s=interval_s, restart_s=restart_s,
        beside=lambda: measured.beside(job.spec.name, candidates, current),
        moving=None if source is None else Moving(candidates.index[source], left_s / interval_s),
    )  # fmt: skip
    pick = choose(outlook, legal) if legal.any() else -1
    if index < 0 <= pick:
        alike = legal & (np.abs(outlook.gain - outlook.gain[pick]) <= ALIKE * outlook.gain[pick])
        pick = int(np.where(alike, room.left(candidates), np.inf).argmin())
    notes = choose.notes(outlook) if isinstance(choose, Learned) else ()
    first = (_reason(candidates, outlook, pick, index),) if pick >= 0 else _waits(candidates, state, job)
    return _decided(
        job, now_s, None if pick < 0 else candidates.plans[pick], (*first, *woken, *notes),
        (*_others(candidates, outlook, legal, pick, lambda plan: _lacking(plan, state, job, room)),
         *_left_out(candidates)), state,
        step_time_s=None if pick < 0 else 1 / max(candidates.rates(history.rows[-1])[pick], 1e-12),
    )  # fmt: skip


def after_failure(state: Snapshot, job: Job, now_s: float) -> JobDecision:
    """Return the decision not to try a job again for a while, as it failed before it got any further, or ever."""
    last = next((a for a in state.attempts.values() if a.job == job.spec.name and a.number == job.attempts), None)
    messages = [] if last is None else [part.message for part in last.parts.values() if part.message]
    if last is not None and all(part.phase is PartPhase.ENDED for part in last.parts.values()):
        messages = [f"it ended at step {last.step} of {job.spec.steps}"]
    data = {
        "attempt": job.attempts, "failures": job.failures, "most": job.spec.most_failures,
        "message": messages[0] if messages else "no word",
    }  # fmt: skip
    if job.phase is JobPhase.FAILED:
        reason = Reason("given-up", job.spec.name, {**data, "steps": job.steps_done, "of": job.spec.steps})
    else:
        delay = show_time((job.retry_s or now_s) - now_s)
        reason = Reason("tried-again-later", job.spec.name, {**data, "delay": delay})
    return _decided(job, now_s, None, (reason,), (), state)


def _decided(
    job: Job, now_s: float, plan: TrainingPlan | None, reasons: tuple[Reason, ...],
    others: tuple[Alternative[TrainingPlan], ...], state: Snapshot, *, step_time_s: float | None = None,
) -> JobDecision:  # fmt: skip
    inputs = digest(job.spec.name, job.attempts, now_s, state.fleet.name)
    decision = Decision(plan, others, reasons, Trust.ANALYTIC, inputs, 0, 0.0)
    return JobDecision(job.spec.name, now_s, decision, step_time_s)


def _waits(candidates: Candidates, state: Snapshot, job: Job) -> tuple[Reason, ...]:
    """Return that a job waits, and which domains are closed to work; or that it allows no plan."""
    counts, spec = candidates.devices.sum(axis=1), job.spec
    allowed = counts[(counts >= (spec.min_devices or 0)) & (counts <= (spec.max_devices or np.inf))]
    if not len(allowed):
        return (not_allowed(spec, candidates),)
    closed = [_closed(name, state) for name in sorted(candidates.domains)]
    return (Reason("waits-for-devices", spec.name, {"devices": int(allowed.min())}), *filter(None, closed))


def _closed(domain: str, state: Snapshot) -> Reason | None:
    view = state.domains.get(domain)
    if view is None or view.silent_since_s is not None:
        return Reason("domain-unheard", "", {"domain": domain})
    return Reason("domain-drained", "", {"domain": domain}) if view.is_drained else None


def _lacking(plan: TrainingPlan, state: Snapshot, job: Job, room: Room) -> Iterator[Reason]:
    """Yield why a plan cannot run now."""
    for name, devices in plan.devices().items():
        free = max(0, room.free.get(name, 0))
        if closed := _closed(name, state):
            yield closed
        elif free < devices:
            data = {"devices": devices, "domain": name, "free": free, "by": _holders(name, state, job)}
            yield Reason("devices-held", "", data)
    least, most = job.spec.min_devices or 1, job.spec.max_devices
    if not least <= plan.num_devices <= (most or plan.num_devices):
        data = {"devices": plan.num_devices, "least": least, "most": most or "any number"}
        yield Reason("devices-not-allowed", "", data)


def _holders(domain: str, state: Snapshot, job: Job) -> str:
    """Return which other jobs have devices of a domain, in brackets; nothing where none has."""
    parts = ((attempt.job, attempt.parts.get(domain)) for attempt in state.live if attempt.job != job.spec.name)
    names = sorted({name for name, part in parts if part is not None and not part.phase.is_over})
    return f" (held by {first_of(names, _MOST_HOLDERS)})" if names else ""


def _reason(candidates: Candidates, outlook: Outlook, pick: int, index: int) -> Reason:
    name = candidates.names[pick]
    if pick == index:
        return Reason("training-kept", "", {"plan": name, "rate": float(outlook.now[pick])})
    if index < 0:
        return Reason("training-placed", "", {"plan": name, "rate": float(outlook.now[pick])})
    gain = float(outlook.gain[pick])
    if not np.isfinite(gain):  # it is no faster now: what may come decided
        earned = outlook.rollouts.earned(index, np.ones(len(outlook.now), dtype=bool)).mean(axis=1)
        gain = float(earned[pick] - earned[index])
    data = {
        "plan": name, "now": float(outlook.now[pick]), "rate": float(outlook.now[index]), "gain": gain,
        "before": candidates.names[index],
    }  # fmt: skip
    return Reason("training-switched", "", data)


def _others(
    candidates: Candidates,
    outlook: Outlook,
    legal: Bools,
    pick: int,
    lacking: Callable[[TrainingPlan], Iterator[Reason]],
) -> tuple[Alternative[TrainingPlan], ...]:
    """Return the plans that were not taken, the largest expected gain first."""
    order = [i for i in np.argsort(-np.where(legal, outlook.gain, -np.inf), kind="stable").tolist() if i != pick]
    return tuple(
        Alternative(
            candidates.names[i],
            {"share_of_nominal": float(outlook.now[i]), "switch_cost": float(outlook.cost[i])},
            () if legal[i] else tuple(lacking(candidates.plans[i])),
            candidates.plans[i],
        )
        for i in order[:SHOWN]
    )


def _left_out(candidates: Candidates) -> tuple[Alternative[TrainingPlan], ...]:
    """Return what no plan was made for, as the drivers of its domains cannot meet."""
    pairs = sorted(pair for pair in candidates.apart if pair[0] < pair[1])
    return tuple(Alternative(" + ".join(pair), {}, (candidates.apart[pair],)) for pair in pairs[:SHOWN])


def gives_way(state: Snapshot, job: Job, plan: TrainingPlan | None, for_job: Job, now_s: float) -> JobDecision:
    """Return the decision that a job goes on with fewer devices, or ends, for a job that waits."""
    data: dict[str, str | int] = {"waiting": for_job.spec.name}
    if plan is None:
        return _decided(job, now_s, None, (Reason("training-preempted", "", data),), (), state)
    data |= {"plan": explain.name(plan), "devices": plan.num_devices}
    return _decided(job, now_s, plan, (Reason("training-shrunk", "", data),), (), state)
