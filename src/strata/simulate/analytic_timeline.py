"""The analytic backend's timeline: when each forward, backward and message happens, by `pipeline.py`'s recurrence.

One operation after another instead of many plans at once, because here every operation is kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

from strata.errors import UsageError
from strata.simulate.analytic import PipelineTimes, StepModel
from strata.simulate.collective import eta
from strata.simulate.timeline import Span, SpanKind, Timeline
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan


def plan_timeline(model: StepModel, plan: TrainingPlan, *, job: str) -> Timeline:
    """Return one step of a plan: its pipelines, what of the gradient sums is exposed, and the update.

    It ends at the step time of `model.reports`, but for the penalty of `local_steps` > 1, which is in tokens.
    Copies of a pipeline do the same at the same time, so one is drawn. Raises UsageError for an interleaved
    schedule, whose time the analytic backend knows in closed form only.
    """
    if plan.schedule is Schedule.INTERLEAVED:
        raise UsageError("the analytic backend cannot draw an interleaved schedule", hint="--backend events")
    pipelines = []
    for number, pipeline in enumerate(plan.pipelines):
        prefix = f"{job}/" if len(plan.pipelines) == 1 else f"{job}/pipeline {number} "
        times = model.times(plan, pipeline)
        drawn = pipeline_timeline(times, pipeline, prefix=prefix)
        pipelines.append((drawn, drawn.end_s + model.replica_sync_s(plan, pipeline, times), times.update_s))
    done_s, update_s = max(end for _, end, _ in pipelines), max(update for _, _, update in pipelines)
    across_s = model.reports([plan])[0].step_time_s - (done_s + update_s) * eta(plan.local_steps)
    # The sum between pipelines, then the update: what all wait for. A rounding error does not count.
    summed_s = done_s + (across_s if across_s > 1e-9 * done_s else 0.0)
    slowest = next(drawn for drawn, end_s, _ in pipelines if end_s == done_s)
    lanes: list[str] = []
    spans: list[Span] = []
    for drawn, end_s, _ in pipelines:
        by_lane = drawn.by_lane()
        lanes += drawn.lanes
        for lane, lane_spans in by_lane.items():
            spans += lane_spans if drawn is slowest else (replace(span, is_critical=False) for span in lane_spans)
            if any(span.kind is SpanKind.FORWARD for span in lane_spans):
                is_critical = drawn is slowest and lane == drawn.lanes[0]
                last = (
                    (SpanKind.COLLECTIVE, drawn.end_s, end_s, "sum of copies"),
                    (SpanKind.COLLECTIVE, done_s, summed_s, "sum of pipelines"),
                    (SpanKind.UPDATE, summed_s, summed_s + update_s, ""),
                )
                spans += (
                    Span(lane, kind, start, end, label, is_critical=is_critical)
                    for kind, start, end, label in last
                    if end > start
                )
    return Timeline(tuple(lanes), tuple(spans))


def pipeline_timeline(times: PipelineTimes, pipeline: Pipeline, *, prefix: str) -> Timeline:
    """Return the forwards, backwards and wide-area messages of one pipeline, whose end is `recurrence_s`.

    prefix: "JOB/" or "JOB/pipeline 2 ". A transfer is drawn while it holds its link; the latency after it, and
    messages inside a domain, are only waited for.
    """
    run = _Run(times, pipeline, prefix)
    return run.timeline()


@dataclass(slots=True)
class _Lane:
    """A stage, or one direction of a cut: when it is free, and the span that keeps it busy until then."""

    name: str
    free_s: float = 0.0
    last: int = -1


class _Run:
    """Works off each stage's order; a span remembers the span it waited for, which gives the critical path."""

    def __init__(self, times: PipelineTimes, pipeline: Pipeline, prefix: str) -> None:
        self.times, self.pipeline = times, pipeline
        names = [stage.domain for stage in pipeline.stages]
        self.stages = [_Lane(f"{prefix}stage {i} ({name})") for i, name in enumerate(names)]
        pairs = [*pairwise(names)]
        crossings = Counter(pairs + [(dest, source) for source, dest in pairs])
        self.there, self.back = [], []
        for i, (source, dest) in enumerate(pairs):
            # A pipeline that crosses the same link twice gets a lane for each crossing.
            where = f" (stage {i})" if crossings[source, dest] > 1 else ""
            self.there.append(_Lane(f"{prefix}link {source}>{dest}{where}"))
            self.back.append(_Lane(f"{prefix}link {dest}>{source}{where}"))
        self.spans: list[Span] = []
        self.waited_for: list[int] = []
        self.arrived: dict[tuple[SpanKind, int, int], tuple[float, int]] = {}

    def timeline(self) -> Timeline:
        todo = [self._order(stage.warmup) for stage in self.pipeline.stages]
        done = [0] * len(todo)
        moved = True
        while moved:
            moved = False
            for i, order in enumerate(todo):
                while done[i] < len(order) and self._can_start(i, *order[done[i]]):
                    self._work(i, *order[done[i]])
                    done[i] += 1
                    moved = True
        assert done == [len(order) for order in todo], "a warm-up that deadlocks"
        self._mark_critical()
        return self._drawn()

    def _order(self, warmup: int) -> list[tuple[SpanKind, int]]:
        """Return what a stage does in turn: `warmup` forwards, then one forward and one backward, to the end."""
        count = self.pipeline.microbatches
        warmup = min(warmup, count)
        order = [(SpanKind.FORWARD, m) for m in range(warmup)]
        for m in range(count):
            if warmup + m < count:
                order.append((SpanKind.FORWARD, warmup + m))
            order.append((SpanKind.BACKWARD, m))
        return order

    def _can_start(self, i: int, kind: SpanKind, m: int) -> bool:
        is_end = i == (0 if kind is SpanKind.FORWARD else len(self.stages) - 1)
        return is_end or (kind, i, m) in self.arrived

    def _work(self, i: int, kind: SpanKind, m: int) -> None:
        is_forward = kind is SpanKind.FORWARD
        arrival = self.arrived.get((kind, i, m), (0.0, -1))
        busy_s = (self.times.forward_s if is_forward else self.times.backward_s)[i]
        end_s, span = self._append(self.stages[i], kind, m, arrival, busy_s)
        to = i + 1 if is_forward else i - 1
        if 0 <= to < len(self.stages):
            cut = min(i, to)
            hop = (self.times.there if is_forward else self.times.back)[cut]
            link = (self.there if is_forward else self.back)[cut]
            sent_s, message = self._append(link, SpanKind.TRANSFER, m, (end_s, span), hop.serial_s, kind)
            self.arrived[kind, to, m] = (sent_s + hop.latency_s, message)

    def _append(
        self,
        lane: _Lane,
        kind: SpanKind,
        m: int,
        ready: tuple[float, int],
        busy_s: float,
        of: SpanKind | None = None,
    ) -> tuple[float, int]:
        """Do one thing as soon as the lane is free and what it needs is `ready`; return its end and its number."""
        ready_s, cause = ready
        start_s = max(lane.free_s, ready_s)
        label = "" if of is None else f"{'F' if of is SpanKind.FORWARD else 'B'}{m}"
        self.waited_for.append(cause if ready_s > lane.free_s else lane.last)
        self.spans.append(Span(lane.name, kind, start_s, start_s + busy_s, label, m))
        lane.free_s, lane.last = start_s + busy_s, len(self.spans) - 1
        return lane.free_s, lane.last

    def _mark_critical(self) -> None:
        number = self.stages[0].last  # the first stage starts first and ends last
        while number >= 0:
            self.spans[number] = replace(self.spans[number], is_critical=True)
            number = self.waited_for[number]

    def _drawn(self) -> Timeline:
        lanes = []
        for i, stage in enumerate(self.stages):
            lanes.append(stage.name)
            if i < len(self.there):
                cut = ((self.there[i], self.times.there[i]), (self.back[i], self.times.back[i]))
                lanes += [link.name for link, hop in cut if hop.wan_bytes]
        place = {lane: i for i, lane in enumerate(lanes)}
        spans = [span for span in self.spans if span.lane in place and span.end_s > span.start_s]
        return Timeline(tuple(lanes), tuple(sorted(spans, key=lambda span: (place[span.lane], span.start_s))))
