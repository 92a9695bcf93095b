"""Domains in virtual time: attempts that train at the cost model's pace over links that follow a trace.

What a switch costs is paid here: an attempt after the first stands still for a restart and while weights are moved
over the links as they then are. A stop lets the step in flight end and keeps a checkpoint, both within the
restart's time, so no step is lost. Weights have moved once all of that time is over: who is stopped before begins
the next move where the one before began, and what was paid is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strata.arrays import Floats
from strata.control.candidates import Candidates
from strata.control.sharing import Shares
from strata.control.state import DomainSeen, LinkSeen, PartPhase, PartSeen, Start
from strata.fleet.dynamics.replay import Replay
from strata.fleet.fleet import Fleet
from strata.training.hi_ppo.global_agent import RESTART_S
from strata.workload.plan import TrainingPlan


@dataclass(slots=True)
class _Run:
    """An attempt here. before: the number of the plan by which its weights lay when it began, -1 for none.
    pause_s: left of its restart and of their move, inf while they cannot be moved at all.
    """

    job: str
    steps: int
    candidates: Candidates
    plan: TrainingPlan
    phases: dict[str, PartPhase]
    done: float
    pause_s: float
    before: int


class SimulatedSites:
    """All domains of a fleet. `trained`: steps done by job, parts of a step included. `last_plan`: the plan by
    which each job's weights lie.

    trace: factors of links. speeds: of domains, in the fleet's order. is_seen: whether either is measured.
    """

    def __init__(
        self, fleet: Fleet, trace: Replay | None = None, speeds: Replay | None = None, *, is_seen: bool = True
    ) -> None:
        self.fleet, self.trace, self.speeds, self.is_seen = fleet, trace, speeds, is_seen
        self.now_s = 0.0 if trace is None else float(trace.times_s[0])
        self.pairs = tuple(fleet.links)
        self.runs: dict[str, _Run] = {}
        self.trained: dict[str, float] = {}
        self.last_plan: dict[str, TrainingPlan] = {}

    def factors(self, at_s: float) -> Floats:
        """Return the factors of all links at a time."""
        return _row(self.trace, at_s, len(self.pairs))

    def measured(self) -> tuple[LinkSeen, ...]:
        """Return one probe of every link now; none where nothing changes."""
        if not self.is_seen or (self.trace is None and self.speeds is None):
            return ()
        links = zip(self.fleet.links.items(), self.factors(self.now_s).tolist(), strict=True)
        return tuple(
            LinkSeen(*pair, self.now_s, link.bandwidth_bytes_per_s * factor) for (pair, link), factor in links
        )

    def observe(self) -> tuple[DomainSeen, ...]:
        """Return what the drivers of all domains see."""
        seen = {domain.name: list[PartSeen]() for domain in self.fleet.domains}
        for id_, run in self.runs.items():
            step = min(run.steps, math.floor(run.done + 1e-6))
            for name, phase in run.phases.items():
                checkpoint = step if phase is PartPhase.ENDED else None
                seen[name].append(PartSeen(id_, phase, step, checkpoint))
        self.runs = {id_: run for id_, run in self.runs.items() if PartPhase.RUNNING in run.phases.values()}
        speeds = _row(self.speeds if self.is_seen else None, self.now_s, len(self.fleet.domains)).tolist()
        return tuple(
            DomainSeen(domain.name, self.now_s, domain.num_devices, tuple(seen[domain.name]), speed)
            for domain, speed in zip(self.fleet.domains, speeds, strict=True)
        )

    def start(self, start: Start, candidates: Candidates) -> None:
        """Run a part; the attempt trains once its last part is here."""
        attempt = start.attempt
        if attempt.id in self.runs:
            self.runs[attempt.id].phases[start.domain] = PartPhase.RUNNING
            return
        before = self.last_plan.get(attempt.job)
        candidates = candidates.with_plan(attempt.plan)
        if before is not None:
            candidates = candidates.with_plan(before)
        index = -1 if before is None else candidates.index[before]
        done = max(self.trained.get(attempt.job, 0.0), float(attempt.from_step))
        run = _Run(
            attempt.job, start.spec.steps, candidates, attempt.plan, {start.domain: PartPhase.RUNNING}, done, 0.0,
            index,
        )  # fmt: skip
        run.pause_s = self._pause_s(run)
        self.runs[attempt.id] = run
        self._arrive(run)

    def stop(self, attempt: str, domain: str) -> None:
        """End a part with a checkpoint."""
        if attempt in self.runs:
            run = self.runs[attempt]
            run.phases[domain] = PartPhase.ENDED

    def next_end_s(self) -> float:
        """Return when the first attempt ends if links stay as they are; inf where none does."""
        ends = [math.inf]
        for run, rate in self._rates(self.factors(self.now_s)):
            if rate > 0:
                ends.append(self.now_s + run.pause_s + max(0.0, run.steps - run.done) / rate)
        return min(ends)

    def next_change_s(self) -> float:
        """Return when the links change next."""
        later = [trace.times_s[trace.times_s > self.now_s + 1e-6] for trace in (self.trace, self.speeds) if trace]
        return min((float(times[0]) for times in later if len(times)), default=math.inf)

    def advance(self, to_s: float) -> None:
        """Let time pass, from one change of the links to the next."""
        while self.now_s < to_s:
            until_s = min(to_s, self.next_change_s())
            passed_s = until_s - self.now_s
            for run, rate in self._rates(self.factors(self.now_s)):
                if math.isinf(run.pause_s):
                    run.pause_s = self._pause_s(run)
                trains_s = max(0.0, passed_s - run.pause_s)
                run.pause_s = max(0.0, run.pause_s - passed_s)
                self._arrive(run)
                run.done = min(float(run.steps), run.done + trains_s * rate)
                self.trained[run.job] = run.done
                if run.done >= run.steps - 1e-6:
                    run.phases = dict.fromkeys(run.phases, PartPhase.ENDED)
            self.now_s = until_s

    def _pause_s(self, run: _Run) -> float:
        if run.before < 0:
            return 0.0
        row, to = tuple(self.factors(self.now_s).tolist()), run.candidates.index[run.plan]
        return RESTART_S if to == run.before else float(run.candidates.moves_s(row)[run.before, to])

    def _arrive(self, run: _Run) -> None:
        if run.pause_s == 0:
            self.last_plan[run.job] = run.plan

    def _rates(self, factors: Floats) -> list[tuple[_Run, float]]:
        """Return the steps a second of what trains: jobs on one link have max-min fair shares of it."""
        active = [run for run in self.runs.values() if set(run.phases.values()) == {PartPhase.RUNNING}]
        active = [run for run in active if set(run.phases) == set(run.plan.domains)]
        now = tuple(factors.tolist())
        shares = Shares(len(now), {run.job: run.candidates.loads(run.plan, now) for run in active})
        speeds: tuple[float, ...] = ()
        if self.speeds is not None:
            speeds = tuple(_row(self.speeds, self.now_s, len(self.fleet.domains)).tolist())
        rates = []
        for run in active:
            own = tuple((factors * shares.of(run.job)).tolist())
            rates.append((run, float(run.candidates.rates(own + speeds)[run.candidates.index[run.plan]])))
        return rates


def _row(trace: Replay | None, at_s: float, columns: int) -> Floats:
    if trace is None:
        return np.ones(columns)
    row = int(np.searchsorted(trace.times_s, at_s + 1e-6, side="right")) - 1
    return np.asarray(trace.factors[max(row, 0)])
