"""The pipeline where a request costs least: its own time, and what it takes from those that run there."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats
from strata.decision import Reason
from strata.serving.layout import Layout, Route
from strata.serving.request import RequestSignal
from strata.serving.routing.pipelines import PipelineRouter, Times
from strata.serving.routing.prefix import BLOCK_TOKENS, PrefixIndex
from strata.serving.routing.reading import Reading
from strata.units import show_time

AFFINITY_GAP: Final = 0.25
"""A pipeline that is busier than the idlest one by more than this share of its slots gets no credit for what it
has cached: one popular prompt must not fill one pipeline (assumed)."""

GOAL_MARGIN: Final = 0.9
"""Share of its goal that the first token foreseen on a busy pipeline may take: forecasts miss by a few per cent,
and at the limit half of those that were let in would be just too late (assumed)."""

STEP_MARGIN: Final = 0.8
"""The same for each token after it, which depends on the prompts that others bring meanwhile (assumed)."""


ONE_MORE: Final = np.array([[0.0], [1.0]])


class LeastWorkRouting(PipelineRouter):
    """The least of own time and of what the n requests that run there lose, in seconds:

    cost(p) = wait + fill(tokens not cached) + T * step(n + 1)
              + n * (T * (step(n + 1) - step(n)) + what reading the prompt adds to their steps).

    T are the decode steps left at most. Prompts sent to a pipeline are read one after the other, in what decoding
    leaves of a step and at least a chunk a step, which then takes longer: `step` is the mean of steps with and
    without, by the share of time that pipelines have been reading: few steps fit into that time. Only pipelines
    with room that meet the request's goals now are taken; ties go round. One pass over arrays, so all P are
    looked at.
    """

    def __init__(self) -> None:
        self.prefixes = PrefixIndex()
        self.reading = Reading()
        self._turn = 0
        self._latest: tuple[tuple[str, float], tuple[Times, Floats, Bools]] | None = None
        super().__init__()

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; prompts still to be read, and prefixes, stay known of pipelines that stay."""
        super().arrange(layout)
        self._latest = None
        self.prefixes.arrange(self.pipelines)
        self.reading.arrange(self.pipelines)

    def choose(self, request: RequestSignal, now_s: float) -> tuple[int, Route] | None:
        """Return the cheapest pipeline with room that meets the goals; None where there is none now."""
        is_open = self.has_capacity(request)
        if not is_open.any():
            return None
        times, cost = self._foresee(request, now_s)
        self._latest = (request.request_id, now_s), (times, cost, is_open)
        if request.ttft_goal_s < math.inf:
            is_open = is_open & (
                times.ttft_s <= np.where(self.running > 0, GOAL_MARGIN, 1.0) * request.ttft_goal_s
            )
        if request.tpot_goal_s < math.inf:
            is_open = is_open & (
                times.step_s <= np.where(self.running > 0, STEP_MARGIN, 1.0) * request.tpot_goal_s
            )
        cost = np.where(is_open, cost, np.inf)
        best = cost.min()
        if best == np.inf:
            return None
        ties = (cost <= best * (1 + 1e-9)).nonzero()[0]
        p = int(ties[self._turn % len(ties)])
        self._turn += 1
        cached = int(times.cached_tokens[p])
        unread = request.prefill_tokens - cached
        self.reading.add(request.request_id, p, unread, self.pace.item(p, 0) + self.pace.item(p, 1) * unread)
        if request.blocks:
            self.prefixes.touch(request.blocks, p, now_s)
        return p, Route(self.pipelines[p], cached, times.ttft_s.item(p), times.step_s.item(p))

    def first_token(self, request_id: str, now_s: float) -> None:
        """Note that a request's prompt has been read."""
        p = self.reading.pipeline_of(request_id)
        if p is not None:
            # What is after the slowest stage: at most all hops and stages of a prompt of mean length.
            tokens = self.reading.chunk_tokens
            onward_s = self.fill[p] - self.pace[p]
            self.reading.first_token(request_id, onward_s.item(0) + onward_s.item(1) * tokens)

    def release(self, request_id: str, now_s: float) -> None:
        """Give back what a request held; nothing where it holds nothing."""
        super().release(request_id, now_s)
        self.reading.leave(request_id)

    def weighed(self, request: RequestSignal, now_s: float) -> tuple[Times, Floats, Bools]:
        """Return what a request would see of each pipeline, what it would cost there, and where there is room [P].

        Of the request that was routed last, at that time, they are those of the choice.
        """
        if self._latest and self._latest[0] == (request.request_id, now_s):
            return self._latest[1]
        return *self._foresee(request, now_s), self.has_capacity(request)

    def refuses(self, request: RequestSignal, now_s: float) -> Reason | None:
        """Say why no pipeline could ever take a request or meet its goals, were it idle."""
        reason = super().refuses(request, now_s)
        if reason:
            return reason
        if not self.pipelines:
            if request.ttft_goal_s >= 0.0:
                return None
            times = {"waited": request.waited_s, "wanted": request.ttft_goal_s + request.waited_s}
            return Reason("not-served-in-time", data={key: show_time(value) for key, value in times.items()})
        ttft_s, holds = self._idle_ttft_s(request, now_s)
        step_s = self.step_s(np.ones(len(ttft_s)))
        soon = holds & (ttft_s <= request.ttft_goal_s)
        if not soon.any():
            goal, best_s = "the first token", ttft_s[holds].min()
            wanted_s = max(0.0, request.ttft_goal_s + request.waited_s)
            if best_s <= wanted_s:  # it would have been in time, had it not waited
                waited = {"waited": request.waited_s, "wanted": wanted_s, "best": float(best_s)}
                return Reason("waited-too-long", data={key: show_time(value) for key, value in waited.items()})
        elif step_s[soon].min() > request.tpot_goal_s:
            goal, wanted_s, best_s = "each token", request.tpot_goal_s, step_s[soon].min()
        else:
            return None
        data = {"goal": goal, "wanted": show_time(wanted_s), "best": show_time(float(best_s))}
        return Reason("goal-out-of-reach", data=data)

    def patience_s(self, request: RequestSignal, now_s: float) -> float:
        """Return how long a request that comes now may wait for a pipeline that is idle then [s]."""
        if request.ttft_goal_s == math.inf:
            return math.inf
        ttft_s, holds = self._idle_ttft_s(request, now_s)
        return request.ttft_goal_s - float(ttft_s.min(where=holds, initial=math.inf) if holds.any() else 0.0)

    def _idle_ttft_s(self, request: RequestSignal, now_s: float) -> tuple[Floats, Bools]:
        """Return the time to the first token on each pipeline, were it idle, and which could hold the request."""
        unread = request.prefill_tokens - self._cached(request, now_s)
        holds: Bools = self.most_kv >= request.kv_tokens
        return self.fill[:, 0] + self.fill[:, 1] * unread, holds

    def _foresee(self, request: RequestSignal, now_s: float) -> tuple[Times, Floats]:
        """Return what a request would see of each pipeline, and cost there."""
        running, chunk_s = self.running, self.pace[:, 0] + self.pace[:, 1] * self.reading.chunk_tokens
        # With those that run, and with one more [2, P].
        slowest_s, around_s = self.busy_s(running + ONE_MORE)
        quiet_s, reading_s = np.maximum(slowest_s, around_s), np.maximum(slowest_s + chunk_s, around_s)
        speed = np.maximum(1.0 - slowest_s[0] / np.maximum(reading_s[0], 1e-12), 1e-9)
        self.reading.advance(now_s, speed)
        # For the cost, that of all: who has read little of late is not therefore the best place for all that come.
        share = self.reading.share
        usual = np.add.reduce(share) / max(len(share), 1)  # `mean` takes four times as long
        before_s, usual_s = _mean_step(quiet_s, reading_s, usual)

        cached = self._cached(request, now_s)
        unread = request.prefill_tokens - cached
        work_s = self.pace[:, 0] + self.pace[:, 1] * unread
        read_s = work_s / speed
        ttft_s = self.reading.work_s / speed + self.fill[:, 0] + self.fill[:, 1] * unread + (read_s - work_s)

        steps = request.steps_left
        cost: Floats = ttft_s + steps * usual_s
        cost += running * (
            steps * (usual_s - before_s) + read_s * (1.0 - quiet_s[0] / np.maximum(reading_s[0], 1e-12))
        )
        if request.blocks:
            load = running / self.most_slots
            cost += (load > load.min() + AFFINITY_GAP) * self.fill[:, 1] * cached
        return Times(cached, ttft_s, _mean_step(quiet_s[1], reading_s[1], share)), cost

    def _cached(self, request: RequestSignal, now_s: float) -> Floats:
        if not request.blocks:
            return np.zeros(len(self.pipelines))
        # The last token is always read: its output is what the first new token is made of.
        return np.minimum(
            self.prefixes.cached_blocks(request.blocks, now_s) * BLOCK_TOKENS, request.prefill_tokens - 1.0
        )


def _mean_step(quiet_s: Floats, reading_s: Floats, share: Floats | float) -> Floats:
    """Return time over steps, where `share` of the time goes in steps of `reading_s`."""
    steps_per_s = (1.0 - share) / np.maximum(quiet_s, 1e-12) + share / np.maximum(reading_s, 1e-12)
    return np.asarray(1.0 / steps_per_s)
