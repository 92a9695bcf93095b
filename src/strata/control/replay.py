"""The loop in virtual time: jobs on a fleet whose links follow a trace, under a policy and the rules beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import numpy as np

from strata.arrays import Bools, Floats
from strata.control.candidates import SLOWEST, Candidates
from strata.control.choosing import JobDecision
from strata.control.core import Scheduler, plans_of
from strata.control.free import Room
from strata.control.outlook import Outlook
from strata.control.plans import planner
from strata.control.policies import Choose, PolicyName, choose_by, inside_by
from strata.control.prospects import not_allowed, refusals
from strata.control.simulated import SimulatedSites
from strata.control.state import Job, JobPhase, JobSpec, Observation, Snapshot, Start, Stop, Submitted
from strata.errors import Infeasible, UsageError
from strata.fleet.dynamics.replay import Replay
from strata.fleet.fleet import Fleet
from strata.progress import Progress, silent
from strata.training.plan import explain

ENDLESS: Final = 10**12
"""Steps of a job that trains for as long as its trace lasts."""

MOST_ROUNDS: Final = 8
"""Steps of the loop at one moment: a stop is seen, the next attempt starts, who waits starts."""


@dataclass(frozen=True, eq=False, slots=True)
class Replayed:
    """What one run gave. trained: optimizer steps by job. changes: decisions after which another plan ran.

    marked: what was trained by the time that was marked, or to the end.
    """

    jobs: dict[str, Job]
    trained: dict[str, float]
    switches: int
    decisions: int
    changes: tuple[JobDecision, ...]
    end_s: float
    ends_s: dict[str, float]
    marked: dict[str, float]


def run(
    fleet: Fleet, specs: Sequence[JobSpec], scheduler: Scheduler, *, trace: Replay | None, end_s: float,
    mark_s: float = math.inf, speeds: Replay | None = None, is_seen: bool = True,
    advance: Callable[[float], None] = lambda _past_s: None,
) -> Replayed:  # fmt: skip
    """Run jobs until `end_s`, or until all have ended; a decision every `scheduler.interval_s`.

    trace, speeds: of links and of domains. is_seen: whether either is measured for the scheduler. mark_s: a time
    at which what was trained is noted. advance: is told how much virtual time has passed.
    """
    sites = SimulatedSites(fleet, trace, speeds, is_seen=is_seen)
    marked: dict[str, float] | None = None
    start_s, snapshot = sites.now_s, Snapshot(fleet)
    waiting = sorted(specs, key=lambda spec: spec.submitted_s)
    switches = decisions = tick = 0
    changes: list[JobDecision] = []
    ends_s: dict[str, float] = {}
    jobs: dict[str, Job] = {}
    while sites.now_s < end_s - 1e-6:
        inbox: list[Observation] = []
        if sites.now_s >= start_s + tick * scheduler.interval_s - 1e-6:
            inbox += sites.measured()
            tick += 1
        while waiting and waiting[0].submitted_s <= sites.now_s + 1e-6:
            inbox.append(Submitted(waiting.pop(0)))
        for _ in range(MOST_ROUNDS):
            outcome = scheduler.step(replace(snapshot, inbox=(*inbox, *sites.observe())), sites.now_s)
            before, snapshot, inbox = snapshot, outcome.snapshot, []
            jobs |= snapshot.jobs
            decisions += len(outcome.decisions)
            running = {item.job: item.plan for item in before.live}
            for item in outcome.decisions:
                if item.decision.choice is not None and item.decision.choice != running.get(item.job):
                    changes.append(item)
                    switches += item.job in running
            for action in outcome.actions:
                if isinstance(action, Start):
                    sites.start(action, scheduler.planner(fleet, action.spec.training))
                elif isinstance(action, Stop):
                    sites.stop(action.attempt, action.domain)
            if not outcome.actions:
                break
        for name, job in jobs.items():
            if job.phase.is_final:
                ends_s.setdefault(name, sites.now_s)
        if not waiting and len(ends_s) == len(jobs):
            break
        next_s = min(end_s, start_s + tick * scheduler.interval_s, max(sites.next_end_s(), sites.now_s + 1e-3))
        if waiting:
            next_s = min(next_s, max(waiting[0].submitted_s, sites.now_s))
        if marked is None and sites.now_s < mark_s <= next_s:
            sites.advance(mark_s)
            marked = dict(sites.trained)
        sites.advance(next_s)
        advance(sites.now_s - start_s)
    return Replayed(
        jobs, sites.trained, switches, decisions, tuple(changes), sites.now_s - start_s, ends_s,
        dict(sites.trained) if marked is None else marked,
    )  # fmt: skip


def replay_job(
    fleet: Fleet, spec: JobSpec, *, trace: Replay, policy: PolicyName, interval_s: float,
    progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Return what a policy and the rules beside it keep of one job along a trace, in the form `strata replay`
    prints: as if it could resume, for as long as the trace lasts, on as many devices as it allows.

    kept: tokens trained over tokens at nominal links on the plan that is best there. Raises Infeasible where no
    plan fits.
    """
    plans, name = planner(), spec.name
    duration_s = trace_s(trace, interval_s)
    start_s = float(trace.times_s[0])
    spec = replace(spec, steps=ENDLESS, can_resume=True, submitted_s=start_s)
    with progress("planning"):
        candidates = plans_of(plans, fleet, spec)
    if not candidates.plans:
        raise Infeasible(f"no plan of {name} fits the fleet {fleet.name}", hint="strata plan train says why")
    legal = Room({domain.name: domain.num_devices for domain in fleet.domains}).legal(candidates, spec)
    if not legal.any():
        raise Infeasible(str(not_allowed(spec, candidates)), hint="change min_devices or max_devices")
    candidates.prepare([tuple(row) for row in trace.factors.tolist()])
    nominal = float(candidates.nominal[legal].max()) * duration_s

    def result(rule: str) -> Replayed:
        with progress(f"replaying {rule}", total=duration_s) as advance:
            if rule == CLAIRVOYANT:
                choose = clairvoyant(candidates, trace, interval_s=interval_s, legal=legal, advance=advance)
            else:
                choose = choose_by(PolicyName(rule))
            scheduler = Scheduler(choose, plans, interval_s)
            return run(fleet, [spec], scheduler, trace=trace, end_s=start_s + duration_s, advance=advance)

    def kept(rule: str) -> float:
        return results[rule].trained.get(name, 0.0) / nominal

    rules = ("never", "hysteresis", "exact", CLAIRVOYANT)
    results = {rule: result(rule) for rule in dict.fromkeys((policy.value, *rules))}
    own = results[policy.value]
    return {
        "policy": policy.value,
        "kept": kept(policy.value),
        "switches": own.switches,
        "decisions": own.decisions,
        "timeline": _timeline(own.changes),
        "rules": {rule: {"kept": kept(rule), "switches": results[rule].switches} for rule in rules},
    }


def _timeline(changes: Sequence[JobDecision]) -> list[dict[str, Any]]:
    plans = ["" if item.decision.choice is None else explain.name(item.decision.choice) for item in changes]
    return [
        {"at_s": item.at_s, "plan": plan, "step_time_s": item.step_time_s, "reason": item.text}
        for item, plan in zip(changes, plans, strict=True)
    ]


CLAIRVOYANT: Final = "clairvoyant"
MOST_DECISIONS: Final = 1_000_000


def trace_s(trace: Replay, interval_s: float) -> float:
    """Return how long a trace lasts: its last row as long as the one before, one row alone an interval.

    Raises UsageError where that is more decisions than anybody waits for: milliseconds, say, taken for seconds.
    """
    times = trace.times_s
    lasts_s = float(times[-1] - times[0] + (times[-1] - times[-2] if len(times) > 1 else interval_s))
    if lasts_s > MOST_DECISIONS * interval_s:
        what = f"the trace lasts {lasts_s:,.0f} s, {lasts_s / interval_s:,.0f} decisions: too many"
        raise UsageError(what, hint="time_s in seconds, or a longer --interval")
    return lasts_s


def clairvoyant(
    candidates: Candidates, trace: Replay, *, interval_s: float, legal: Bools | bool = True,
    advance: Callable[[float], None] = lambda _known_s: None,
) -> Choose:  # fmt: skip
    """Return the rule that knows the whole trace: the most that keep-or-switch can earn, by dynamic programming.

    It is asked once a decision, in order. A switch takes its seconds from the intervals that follow;
    until it is over there is no other one. legal: [P], the plans that the job allows. advance: is told of how
    many seconds, from the end, it is known.
    """
    sites = SimulatedSites(candidates.fleet, trace)
    start_s, end_s = float(trace.times_s[0]), float(trace.times_s[0]) + trace_s(trace, interval_s)
    count = max(1, math.ceil((end_s - start_s) / interval_s - 1e-9))
    ticks_s = np.minimum(start_s + interval_s * np.arange(count + 1), end_s)
    knots_s = np.append(trace.times_s, end_s)
    rates = np.stack([np.where(legal, candidates.rates(tuple(row)), 0.0) for row in trace.factors.tolist()])
    earned = np.concatenate([np.zeros((1, rates.shape[1])), np.cumsum(np.diff(knots_s)[:, None] * rates, axis=0)])
    plans = np.arange(len(candidates.plans))
    value = np.zeros((count + 1, len(plans)))
    taken = np.zeros((count, len(plans)), dtype=np.int64)
    again = np.zeros((count, len(plans)), dtype=np.int64)  # the next decision that is free

    def until(at_s: Floats) -> Floats:
        """Return what plans [Q] earn before times [..., Q]."""
        return np.stack([np.interp(at_s[..., plan], knots_s, earned[:, plan]) for plan in plans], axis=-1)

    for tick in reversed(range(count)):
        advance((count - tick) * interval_s)
        now = np.maximum(sites.factors(start_s + tick * interval_s), SLOWEST)
        moves_s = candidates.moves_s(tuple(now.tolist()))
        there_s = np.minimum(ticks_s[tick] + moves_s, end_s)
        free = np.clip(np.ceil((there_s - start_s) / interval_s - 1e-9).astype(np.int64), tick + 1, count)
        worth = until(np.maximum(ticks_s[free], there_s)) - until(there_s) + value[free, plans]
        worth = np.where(np.isfinite(moves_s), worth, -np.inf)
        taken[tick], value[tick] = worth.argmax(axis=1), worth.max(axis=1)
        again[tick] = free[plans, taken[tick]]
    best_first = int((until(np.full(len(plans), ticks_s[1])) + value[1]).argmax())
    ticks, busy_until = iter(range(count + 1)), 0

    def choose(outlook: Outlook, legal: Any) -> int:
        nonlocal busy_until
        tick = min(next(ticks), count - 1)
        if outlook.current < 0:
            return best_first
        if tick < busy_until:
            return outlook.current
        busy_until = int(again[tick, outlook.current])
        return int(taken[tick, outlook.current])

    return choose


def replay_jobs(
    fleet: Fleet, specs: Sequence[JobSpec], *, trace: Replay, policy: PolicyName, interval_s: float,
    progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Return how several jobs fare together along a trace, all submitted at its start; it ends with the trace.

    Raises UsageError where two have one name.
    """
    names = [spec.name for spec in specs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two jobs are named {', '.join(twice)}", hint="give each a name of its own")
    start_s = float(trace.times_s[0])
    scheduler = Scheduler(choose_by(policy), planner(), interval_s, inside=inside_by(policy))
    specs = [replace(spec, submitted_s=start_s) for spec in specs]
    duration_s = trace_s(trace, interval_s)
    with progress("replaying", total=duration_s) as advance:
        result = run(fleet, specs, scheduler, trace=trace, end_s=start_s + duration_s, advance=advance)
    idle = [spec for spec in specs if not result.jobs[spec.name].attempts]
    whys = {spec.name: refusals(fleet, spec, scheduler.plans(fleet, spec), clock=perf_counter) for spec in idle}
    never = {name: [str(why) for why in reasons] for name, reasons in whys.items() if reasons}
    return {"policy": policy.value, **_summary(result), "refusals": never}


def _summary(result: Replayed) -> dict[str, Any]:
    """Return how jobs fared, for several jobs on one fleet."""
    done = {name: at_s for name, at_s in result.ends_s.items() if result.jobs[name].phase is JobPhase.DONE}
    times = [at_s - result.jobs[name].spec.submitted_s for name, at_s in done.items()]
    return {
        "jobs": {
            name: {
                "phase": job.phase.value, "steps_done": job.steps_done, "attempts": job.attempts,
                "ended_s": result.ends_s.get(name),
                "timeline": _timeline([item for item in result.changes if item.job == name]),
            }
            for name, job in result.jobs.items()
        },
        "mean_completion_s": float(np.mean(times)) if times else None,
        "p95_completion_s": float(np.percentile(times, 95)) if times else None,
        "switches": result.switches, "decisions": result.decisions, "end_s": result.end_s,
    }  # fmt: skip
