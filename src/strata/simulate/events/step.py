"""One training step of a job: its pipelines, the gradient sums, the update.

The sum between pipelines starts as early as the analytic model hides it: the shortest backward before the last
gradient is ready. With DiLoCo's H local steps the sum happens once in H; every step simulated here has one, and
`JobRun.report` spreads what it adds over H.
"""

from __future__ import annotations

import numpy as np
import simpy

from strata.simulate.collective import AllReduce
from strata.simulate.events.gradients import Wires, exchange, wires
from strata.simulate.events.pipeline import PipelineRun, Sender, SharedState, Steps, Traits, answers
from strata.simulate.events.work import Job
from strata.simulate.pipeline_times import PipelineTimes
from strata.simulate.timeline import SpanKind


class Step:
    """A step that starts now. `exposed_s`: what the sum between pipelines adds once the backwards are done [s]."""

    def __init__(self, world: SharedState, job: Job, *, jitter: float, rng: np.random.Generator) -> None:
        self.world, self.job, self.exposed_s = world, job, 0.0
        self.sender = Sender(job.name, job.priority)
        plan, model = job.plan, job.model
        self.times = [model.times(plan, pipeline) for pipeline in plan.pipelines]
        self.runs: list[list[PipelineRun]] = []
        for number, (pipeline, times) in enumerate(zip(plan.pipelines, self.times, strict=True)):
            prefix = f"{job.name}/" if len(plan.pipelines) == 1 else f"{job.name}/pipeline {number} "
            copies = [
                PipelineRun(
                    world, self.sender, plan=plan, pipeline=pipeline, times=times, prefix=prefix, traits=traits
                )
                for traits in self._copies(number, jitter, rng)
            ]
            self.runs.append(copies)
        self.across: AllReduce | None = model.all_reduce(plan)
        self.wires: Wires = wires(plan, model.summed_before(plan)) if self.across else {}

    def _copies(self, number: int, jitter: float, rng: np.random.Generator) -> list[Traits]:
        """Return the copies of a pipeline: one for all where they move in step, else each with its own times."""
        pipeline = self.job.plan.pipelines[number]
        slower = [self.job.stragglers.get((number, stage), 1.0) for stage in range(len(pipeline.stages))]
        factors = np.broadcast_to(
            np.array(slower)[:, None, None], (len(pipeline.stages), pipeline.microbatches, 2)
        )
        if not jitter:
            return [Traits(pipeline.replicas, factors)]
        sigma = np.sqrt(np.log1p(jitter**2))  # of the logarithm; the mean stays 1
        noise = sigma * rng.standard_normal((pipeline.replicas, *factors.shape)) - sigma**2 / 2
        name = "" if pipeline.replicas == 1 else " copy {}"
        return [Traits(1, factors * np.exp(noise[k]), name.format(k)) for k in range(pipeline.replicas)]

    def run(self, cause: int) -> Steps:
        """Run the step after the span `cause`, a process; returns the number of its last span."""
        env, record = self.world.env, self.world.record
        everywhere = [copy for copies in self.runs for copy in copies]
        hidden_s = min(min(times.backward_s) for times in self.times) if self.across else 0.0
        ready: list[simpy.Process] = []
        done: list[simpy.Process] = []
        for times, copies in zip(self.times, self.runs, strict=True):
            ready += [env.process(_nearly(env, copy, times.sync_s - hidden_s)) for copy in copies]
            done.append(env.process(self._pipeline(copies, times, cause)))
        summed = env.process(self._sum(ready)) if self.across else None
        yield env.all_of(done)
        done_s, last = env.now, max(answers(done), key=record.end_s)
        if summed is not None:
            last_sum = yield summed
            self.exposed_s = env.now - done_s
            if self.exposed_s > 1e-9 * done_s:  # a rounding error does not count
                self._draw(everywhere, SpanKind.COLLECTIVE, done_s, last_sum, "sum of pipelines")
                last = last_sum
        start_s = env.now
        yield env.timeout(max(times.closing_s for times in self.times))
        return self._draw(everywhere, SpanKind.UPDATE, start_s, last, "")

    def _pipeline(self, copies: list[PipelineRun], times: PipelineTimes, cause: int) -> Steps:
        """Run the copies of a pipeline, then sum their gradients and a tied table's; returns the last span."""
        env, record = self.world.env, self.world.record
        firsts = [copy.start(cause) for copy in copies]
        yield env.all_of(firsts)
        last = max(answers(firsts), key=record.end_s)
        for sum_s, label in ((times.copies_s, "sum of copies"), (times.tables_s, "sum of tied tables")):
            if sum_s:
                start_s = env.now
                yield env.timeout(sum_s)
                last = self._draw(copies, SpanKind.COLLECTIVE, start_s, last, label)
        return last

    def _sum(self, ready: list[simpy.Process]) -> Steps:
        """Sum the gradients of all pipelines once the last of them is ready; returns the last span."""
        assert self.across is not None, "a sum is of several pipelines"
        yield self.world.env.all_of(ready)
        _, cause = max(answers(ready))
        last = yield self.world.env.process(exchange(self.world, self.sender, self.across, self.wires, cause))
        return last

    def lanes(self) -> list[str]:
        """Return the lanes of all stages."""
        return [lane for copies in self.runs for copy in copies for lane in copy.lanes]

    def _draw(self, copies: list[PipelineRun], kind: SpanKind, start_s: float, cause: int, label: str) -> int:
        """Record what all stages do from `start_s` until now; returns the span of the first of them."""
        if self.sender.is_stopped:
            return cause
        span_s, record = (start_s, self.world.env.now), self.world.record
        lanes = [lane for copy in copies for lane in copy.lanes]
        return min(record.add(lane, kind, span_s, cause=cause, label=label) for lane in lanes)


def _nearly(env: simpy.Environment, copy: PipelineRun, after_s: float) -> Steps:
    """Wait until `after_s` past the end of a copy's last backward (before it, if negative); returns the cause."""
    seconds, cause = yield copy.last_backward
    yield env.timeout(max(0.0, seconds + after_s))
    return env.now, cause
