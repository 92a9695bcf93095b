"""The one loop: what is known in, what is to be done out. Daemon, replay in virtual time and tests run this.

`Scheduler.step` reads as six steps. It has no clock, no chance and no side effect. The caller writes the new
snapshot and its decisions to disk, then carries the actions out, which may be lost or repeated: the next step
asks again for what was not seen to happen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from strata.control import coordinator, links
from strata.control.accounts import settled, taken_in
from strata.control.candidates import Candidates
from strata.control.choosing import JobDecision, after_failure, choice, gives_way
from strata.control.coordinator import Inside
from strata.control.elastic import at_least, at_most, given_up, with_smaller
from strata.control.free import Room
from strata.control.measured import Measured
from strata.control.outlook import move_s
from strata.control.policies import Choose
from strata.control.queue import may_pass, ordered, preempted
from strata.control.state import (
    Action,
    Attempt,
    DomainView,
    Job,
    JobPhase,
    JobSpec,
    LinkSeen,
    Part,
    PartPhase,
    Probe,
    Snapshot,
    Start,
    Stop,
)
from strata.decision import Reason
from strata.fleet.fleet import Fleet
from strata.training.hi_ppo.guard import SAFE
from strata.training.replan.rules import Rule
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan

Planner = Callable[[Fleet, TrainingJob], Candidates]
"""The plans a job may run on a fleet; remembers what it made."""

LOST_AFTER_S: Final = 60.0
"""A domain that is silent for so long has lost what ran in it: the job goes on elsewhere, and what may still run
there is stopped when the domain is back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gives: the snapshot to keep, then the actions to carry out, and the decisions behind them."""

    snapshot: Snapshot
    actions: tuple[Action, ...]
    decisions: tuple[JobDecision, ...]


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The policy and what it needs. interval_s: from one decision on a running job to the next.

    choose: between plans across domains. inside: between bindings of devices in one domain. has_backfill: whether
    a job may pass one that waits where that is not delayed; else only where it can use none of its domains.
    """

    choose: Choose
    planner: Planner
    interval_s: float = 300.0
    lost_after_s: float = LOST_AFTER_S
    inside: Rule = SAFE
    has_backfill: bool = True

    def step(self, snapshot: Snapshot, now_s: float) -> Outcome:
        """Return what is to be done now. The same snapshot and time give the same outcome."""
        # 1. Take in observations.
        state, strays = taken_in(snapshot, now_s, lost_after_s=self.lost_after_s)
        measured = [item for item in snapshot.inbox if isinstance(item, LinkSeen)]
        if measured:
            state = replace(state, links=links.take_in(state.fleet, state.links, measured))
        # 2. End and fail attempts.
        state = settled(state, now_s)
        decisions = [
            after_failure(state, job, now_s)
            for name, job in state.jobs.items()
            if name in snapshot.jobs and _has_failed(snapshot.jobs[name], job)
        ]
        seen = Measured(state, self.plans)
        # 3. Order the queue.
        queue = ordered(state, now_s)
        # 4. Let each running job's coordinator answer.
        state = self._coordinate(state, snapshot.domains, now_s, decisions, seen)
        # 5. Place who waits.
        state = self._place(state, queue, now_s, decisions, seen)
        # 6. Emit actions.
        return Outcome(state, (*strays, *_actions(state)), tuple(decisions))

    def plans(self, fleet: Fleet, spec: JobSpec) -> Candidates:
        """Return the plans of a job."""
        return plans_of(self.planner, fleet, spec)

    def probes(self, fleet: Fleet) -> tuple[Probe, ...]:
        """Return the probes of one interval: every link, those that no plan uses included."""
        return tuple(Probe(*pair) for pair in fleet.links)

    def _coordinate(
        self, state: Snapshot, before: Mapping[str, DomainView], now_s: float, decisions: list[JobDecision],
        seen: Measured,
    ) -> Snapshot:  # fmt: skip
        """Let every running job's coordinator answer: another plan, another binding inside a domain, or neither.

        What leaves its plan or its devices stops, and what it runs next is kept for it.
        """
        jobs, attempts = dict(state.jobs), dict(state.attempts)
        room = Room.of(state)
        for attempt in state.live:
            job = jobs[attempt.job]
            if attempt.is_stopping or not job.spec.can_resume:
                continue
            local = self._inside(state, job, attempt, before, now_s)
            is_due = job.decided_s is None or now_s - job.decided_s >= self.interval_s
            woken = (*coordinator.drastic(state, job, attempt), *local.woken)
            plan: TrainingPlan | None = attempt.plan
            why = ""
            if is_due or (woken and now_s != job.decided_s):
                own = room.with_back(attempt.plan)
                if job.spec.is_elastic and self._is_awaited(state):
                    # What is free is for who waits.
                    own = Room({name: min(n, own.free.get(name, 0)) for name, n in attempt.plan.devices().items()})
                if attempt.moved_s is None:
                    moved_s = self._moved_s(state, job, attempt.plan, now_s, seen)
                    attempts[attempt.id] = attempt = replace(attempt, moved_s=moved_s)
                decision = self._choice(
                    state, job, now_s, room=own, current=attempt.plan, seen=seen, woken=woken,
                    left_s=attempt.left_s(now_s),
                )  # fmt: skip
                jobs[attempt.job] = job = replace(job, decided_s=now_s)
                decisions.append(decision)
                plan = decision.decision.choice
                # Where it cannot stay, what happened is why it leaves; what it goes to is in the decision.
                why = str(woken[0]) if woken and not own.holds(attempt.plan) else decision.text
            devices: Mapping[str, tuple[int, ...]] = {}
            if local.decision is not None and (plan is None or plan == attempt.plan):
                decisions.append(local.decision)
                plan, devices, why = local.decision.decision.choice, local.devices, local.decision.text
            if plan is None and not room.holds(attempt.plan):
                attempts[attempt.id] = replace(attempt, is_stopping=True, reason=why)
            if plan is not None and (plan != attempt.plan or devices):
                attempts[attempt.id] = replace(attempt, is_stopping=True, reason=why)
                jobs[attempt.job] = replace(job, next_plan=plan, next_devices=devices)
                seen = seen.with_plan(attempt.job, plan)
                room = Room.of(replace(state, jobs=jobs, attempts=attempts))
        return replace(state, jobs=jobs, attempts=attempts)

    def _inside(
        self, state: Snapshot, job: Job, attempt: Attempt, before: Mapping[str, DomainView], now_s: float
    ) -> Inside:
        """Ask the local agents where the devices of an attempt are not those of the step before."""
        domains = coordinator.changed(attempt, before, state.domains)
        if not domains:
            return Inside()
        candidates = self.planner(state.fleet, job.spec.training)
        return coordinator.inside(
            state, job, attempt, domains=domains, candidates=candidates, choose=self.inside,
            interval_s=self.interval_s, now_s=now_s,
        )  # fmt: skip

    def _place(
        self, state: Snapshot, queue: list[Job], now_s: float, decisions: list[JobDecision], seen: Measured
    ) -> Snapshot:
        """Start who can be, in order; behind a job that must wait only who does not delay it."""
        jobs, attempts, room = dict(state.jobs), dict(state.attempts), Room.of(state)
        waiting: list[Job] = []
        for job in queue:
            plan = job.next_plan if job.next_plan is not None and room.holds(job.next_plan) else None
            if plan is None and (job.decided_s is None or self._has_room(state, job, room)):
                decision = self._choice(state, job, now_s, room=room, current=None, seen=seen)
                plan = decision.decision.choice
                if plan is not None or job.decided_s is None:
                    decisions.append(decision)
            jobs[job.spec.name] = job = replace(job, decided_s=now_s)
            if plan is None:
                less = given_up(state, job, attempts, room=room, plans=self.plans)
                for giver, smaller in less.items():
                    name = attempts[giver].job
                    jobs[name] = replace(jobs[name], next_plan=smaller, next_devices={})
                    decisions.append(gives_way(state, jobs[name], smaller, job, now_s))
                    attempts[giver] = replace(attempts[giver], is_stopping=True, reason=decisions[-1].text)
                for victim in () if less else preempted(state, job, attempts, self.plans(state.fleet, job.spec)):
                    decisions.append(gives_way(state, jobs[attempts[victim].job], None, job, now_s))
                    attempts[victim] = replace(attempts[victim], is_stopping=True, reason=decisions[-1].text)
                waiting.append(job)
                continue
            if waiting and not self._may_pass(state, waiting, job, plan, now_s):
                waiting.append(job)
                continue
            attempt = replace(_attempt(job, plan, now_s), moved_s=self._moved_s(state, job, plan, now_s, seen))
            attempts[attempt.id], room = attempt, room.without(plan)
            seen = seen.with_plan(attempt.job, plan)
            jobs[job.spec.name] = replace(
                job, phase=JobPhase.RUNNING, attempts=attempt.number, next_plan=None, next_devices={}, retry_s=None
            )
        return replace(state, jobs=jobs, attempts=attempts)

    def _is_awaited(self, state: Snapshot) -> bool:
        """Whether a job waits for devices that could run if it had them all."""
        whole = Room({view.name: view.num_devices for view in state.domains.values()})
        waiting = [job for job in state.jobs.values() if job.phase is JobPhase.QUEUED and job.next_plan is None]
        return any(not job.is_cancelled and self._has_room(state, job, whole) for job in waiting)

    def _has_room(self, state: Snapshot, job: Job, room: Room) -> bool:
        candidates = self.plans(state.fleet, job.spec)
        return bool(candidates.plans) and bool(room.legal(candidates, job.spec).any())

    def _may_pass(self, state: Snapshot, waiting: list[Job], job: Job, plan: TrainingPlan, now_s: float) -> bool:
        if self.has_backfill:
            return may_pass(state, waiting[0], job, plan, now_s=now_s, plans=self.plans)
        return not any(plan.devices().keys() & self.plans(state.fleet, other.spec).domains for other in waiting)

    def _choice(
        self, state: Snapshot, job: Job, now_s: float, *, room: Room, current: TrainingPlan | None, seen: Measured,
        woken: tuple[Reason, ...] = (), left_s: float = 0.0,
    ) -> JobDecision:  # fmt: skip
        return choice(
            self.plans(state.fleet, job.spec), self.choose, state, job, now_s=now_s, room=room, current=current,
            interval_s=self.interval_s, measured=seen, woken=woken, left_s=left_s,
        )  # fmt: skip

    def _moved_s(
        self, state: Snapshot, job: Job, plan: TrainingPlan, now_s: float, seen: Measured
    ) -> float | None:
        """Return when weights that leave now will lie by a plan; None where they have no path."""
        source, there = job.weights_plan, {domain.name for domain in state.fleet.domains}
        if source is None or not job.spec.can_resume or not there.issuperset(source.domains):
            return now_s
        took_s = move_s(
            self.plans(state.fleet, job.spec), seen.seen_by(job.spec.name), source=source, to=plan,
            restart_s=job.restart_s,
        )  # fmt: skip
        return now_s + took_s if math.isfinite(took_s) else None


def plans_of(plans: Planner, fleet: Fleet, spec: JobSpec) -> Candidates:
    """Return the plans of a job, with those on other numbers of devices that it allows where it says which."""
    candidates = plans(fleet, spec.training)
    if spec.min_devices is not None:
        return with_smaller(at_least(candidates, spec.min_devices))
    return candidates if spec.max_devices is None else at_most(candidates, spec.max_devices)


def _has_failed(before: Job, job: Job) -> bool:
    """Whether a job must wait from now on, as it failed, or is given up."""
    is_given_up = job.phase is JobPhase.FAILED and before.phase is not JobPhase.FAILED
    return is_given_up or (job.retry_s is not None and job.retry_s != before.retry_s)


def _attempt(job: Job, plan: TrainingPlan, now_s: float) -> Attempt:
    number = job.attempts + 1
    parts = {name: Part(seen_s=now_s) for name in plan.domains}
    return Attempt(
        f"{job.spec.name}-{number}", job.spec.name, number, plan, now_s, job.steps_done, parts,
        step=job.steps_done, checkpoint_step=job.steps_done,
        devices=job.next_devices if plan == job.next_plan else {},
    )  # fmt: skip


def _actions(state: Snapshot) -> list[Action]:
    """Return what is still to be done for every attempt, whether it was asked for before or not."""
    actions: list[Action] = []
    for attempt in state.live:
        spec = state.jobs[attempt.job].spec
        for name, part in attempt.parts.items():
            if attempt.is_stopping and not part.phase.is_over:
                actions.append(Stop(name, attempt.id, spec.grace_s))
            elif part.phase is PartPhase.WAITING and not attempt.is_stopping:
                actions.append(Start(name, attempt, spec))
    return actions
