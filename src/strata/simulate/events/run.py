"""Run jobs on a fleet together: their steps one after another, what befalls them, and the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import simpy

from strata.decision import Trust
from strata.simulate.collective import eta
from strata.simulate.events.network import Network
from strata.simulate.events.pipeline import SharedState, Steps, answers
from strata.simulate.events.step import Step
from strata.simulate.events.work import AS_PLANNED, Conditions, DeviceFailure, Job, LinkFailure, LinkVariation
from strata.simulate.report import StepReport
from strata.simulate.timeline import NOTHING, Record, SpanKind, Timeline


@dataclass(frozen=True, slots=True)
class SimulatedJobs:
    """What a simulation answers: a report a job, in their order, the timeline, and how many events it took."""

    reports: tuple[StepReport, ...]
    timeline: Timeline
    num_events: int


def simulate(
    jobs: Sequence[Job],
    *,
    rng: np.random.Generator,
    steps: int = 1,
    conditions: Conditions = AS_PLANNED,
    are_links_shared: bool = True,
) -> SimulatedJobs:
    """Run `steps` steps of each job, all from time 0 on; the names of the jobs must differ.

    A report's step time is the job's whole time over `steps`, failures included. Without conditions and
    contention it is what `StepModel.reports` says, exactly; without shared links there is no contention.
    """
    fleet = jobs[0].model.fleet
    env = _Counting()
    uplinks = {d.name: d.uplink_bytes_per_s for d in fleet.domains if d.uplink_bytes_per_s is not None}
    network = Network(env, fleet.links, uplinks=uplinks, are_shared=are_links_shared)
    world = SharedState(env, fleet, network, Record())
    link_rng, *job_rngs = rng.spawn(1 + len(jobs))
    runs = [JobRun(world, job, conditions, steps=steps, rng=own) for job, own in zip(jobs, job_rngs, strict=True)]
    if conditions.link_variation is not None:
        env.process(_vary_links(world, conditions.link_variation, link_rng))
    for failure in conditions.failures:
        if isinstance(failure, LinkFailure):
            env.process(_cut(world, failure))
        else:
            env.process(_fail(world, failure, runs))
    env.run(until=env.all_of([env.process(run.run()) for run in runs]))
    return SimulatedJobs(tuple(run.report() for run in runs), world.record.timeline(), env.num_events)


class _Counting(simpy.Environment):
    """Counts events, which is what a simulator's speed is told in."""

    num_events = 0

    def step(self) -> None:
        self.num_events += 1
        super().step()


class JobRun:
    """Runs the steps of one job, and again from the last checkpoint when a device fails."""

    def __init__(
        self, world: SharedState, job: Job, conditions: Conditions, *, steps: int, rng: np.random.Generator
    ) -> None:
        self.world, self.job, self.conditions, self.steps, self.rng = world, job, conditions, steps, rng
        self.failed = world.env.event()
        self.started, self.exposed_s, self.end_s, self.last = 0, 0.0, 0.0, NOTHING

    def run(self) -> Steps:
        """Run the job, a process."""
        env, done = self.world.env, 0
        while done < self.steps:
            step = Step(self.world, self.job, jitter=self.conditions.jitter, rng=self.rng)
            self.started += 1
            finished = env.process(step.run(self.last))
            yield env.any_of([finished, self.failed])
            if finished.triggered:
                done += 1
                [self.last] = answers([finished])
                self.exposed_s += step.exposed_s
            else:
                # Its processes wait on, some for flows that never end; stopped, they send and record nothing.
                step.sender.is_stopped = True
                self.world.network.drop(step.sender)
                yield env.process(self._restart(step.lanes()))
                # What was trained since the last checkpoint is trained again.
                done -= done % self.conditions.checkpoint_steps
        self.end_s = env.now

    def fail(self) -> None:
        """Let a device of the job fail now."""
        if not self.failed.triggered:
            self.failed.succeed()

    def _restart(self, lanes: Sequence[str]) -> Steps:
        """Wait until the job is back; a failure meanwhile starts the wait again."""
        env, start_s = self.world.env, self.world.env.now
        while self.failed.triggered:
            self.failed = env.event()
            yield env.any_of([env.timeout(self.conditions.restart_s), self.failed])
        add, span_s = self.world.record.add, (start_s, env.now)
        self.last = min(add(lane, SpanKind.FAILURE, span_s, cause=self.last, label="restart") for lane in lanes)

    def report(self) -> StepReport:
        """Return the analytic report with what the simulation changes: time, and what follows from it.

        With H local steps the extra tokens and the sum once in H are those of the analytic model: eta(H) x the
        step without its sum, and 1/H of what the sum adds. Steps run again send their bytes again.
        """
        plan, planned = self.job.plan, self.job.model.reports([self.job.plan])[0]
        local_s = (self.end_s - self.exposed_s) / self.steps
        step_s = local_s * eta(plan.local_steps) + self.exposed_s / self.steps / plan.local_steps
        report = planned.lasting(step_s, times_sent=self.started / self.steps)
        conditions = self.conditions
        if conditions.jitter or conditions.link_variation or conditions.failures:
            return replace(report, trust=Trust.ASSUMED)
        return report


def _fail(world: SharedState, failure: DeviceFailure, runs: Sequence[JobRun]) -> Steps:
    yield world.env.timeout(failure.at_s)
    for run in runs:
        if failure.domain in run.job.plan.domains:
            run.fail()


def _cut(world: SharedState, failure: LinkFailure) -> Steps:
    ends = (failure.source, failure.dest)
    pairs = [pair for pair in (ends, ends[::-1]) if pair in world.fleet.links]
    for is_cut, after_s in ((True, failure.at_s), (False, failure.duration_s)):
        yield world.env.timeout(after_s)
        for pair in pairs:
            world.network.cut(pair, is_cut=is_cut)


def _vary_links(world: SharedState, link_variation: LinkVariation, rng: np.random.Generator) -> Steps:
    pairs = list(world.fleet.links)
    processes = (link_variation.bandwidth, link_variation.latency)
    states = [process and process.reset(rng, (len(pairs),)) for process in processes]
    while True:
        bandwidth, latency = (
            np.ones(len(pairs)) if process is None else process.factor(state)
            for process, state in zip(processes, states, strict=True)
        )
        for pair, wide, far in zip(pairs, bandwidth.tolist(), latency.tolist(), strict=True):
            world.network.vary(pair, bandwidth_factor=wide, latency_factor=far)
        yield world.env.timeout(link_variation.interval_s)
        states = [
            process and process.step(state, link_variation.interval_s, rng)
            for process, state in zip(processes, states, strict=True)
        ]
