"""The pipeline where a request costs least: its own time, and what it takes from those that run there."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from strata.decision import Reason
from strata.serving.layout import Layout, Route
from strata.serving.request import RequestSignal
from strata.serving.routing.pipelines import Bools, Floats, PipelineRouter, Times, steps_left
from strata.serving.routing.prefix import BLOCK_TOKENS, PrefixIndex
from strata.units import show_time

AFFINITY_GAP: Final = 0.25
"""A pipeline that is busier than the idlest one by more than this share of its slots gets no credit for what it
has cached: one popular prompt must not fill one pipeline (assumed)."""


class LeastWorkRouting(PipelineRouter):
    """The least of own time and of what the n requests that run there lose, in seconds:

    cost(p) = wait + fill(tokens not cached) + T * step(n + 1)
              + n * (T * (step(n + 1) - step(n)) + reading the prompt).

    T are the decode steps left at most. The wait is until the prompts sent there before are read, one after the
    other at the pace of the slowest stage. Only pipelines with room that meet the request's goals now are taken;
    ties go round. One pass over arrays, so all P are looked at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = PrefixIndex()
        self._read_s = np.zeros(0)
        self._turn = 0

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; prompts still to be read, and prefixes, stay known of pipelines that stay."""
        before = dict(zip(self.pipelines, self._read_s.tolist(), strict=True))
        super().arrange(layout)
        self.prefixes.arrange(self.pipelines)
        self._read_s = np.array([before.get(one, -math.inf) for one in self.pipelines])

    def choose(self, request: RequestSignal, now_s: float) -> tuple[int, Route] | None:
        """Return the cheapest pipeline with room that meets the goals; None where there is none now."""
        is_open = self.has_room(request)
        if not is_open.any():
            return None
        times = self.times(request, now_s)
        if request.ttft_goal_s < math.inf or request.tpot_goal_s < math.inf:
            is_open &= _in_time(request, times)
        cost = np.where(is_open, self._cost(request, times), np.inf)
        best = cost.min()
        if best == np.inf:
            return None
        ties = (cost <= best * (1 + 1e-9)).nonzero()[0]
        p = int(ties[self._turn % len(ties)])
        self._turn += 1
        cached = int(times.cached_tokens[p])
        read_s = self.pace.item(p, 0) + self.pace.item(p, 1) * (request.prefill_tokens - cached)
        self._read_s[p] = max(self._read_s.item(p), now_s) + read_s
        if request.blocks:
            self.prefixes.touch(request.blocks, p, now_s)
        return p, Route(self.pipelines[p], cached, times.ttft_s.item(p), times.step_s.item(p))

    def times(self, request: RequestSignal, now_s: float) -> Times:
        """Return what a request would see of each pipeline, the wait for earlier prompts included."""
        cached = self._cached(request, now_s)
        wait_s = np.maximum(self._read_s - now_s, 0.0)
        ttft_s = wait_s + self.fill[:, 0] + self.fill[:, 1] * (request.prefill_tokens - cached)
        return Times(cached, ttft_s, self.step_s(self.running + 1.0))

    def cost(self, request: RequestSignal, now_s: float) -> Floats:
        """Return the cost of a request on each pipeline [P]."""
        return self._cost(request, self.times(request, now_s))

    def refuses(self, request: RequestSignal, now_s: float) -> Reason | None:
        """Say why no pipeline could ever take a request or meet its goals, were it idle."""
        reason = super().refuses(request, now_s)
        if reason or not self.pipelines:
            return reason
        unread = request.prefill_tokens - self._cached(request, now_s)
        idle = Times(unread, self.fill[:, 0] + self.fill[:, 1] * unread, self.step_s(np.ones(len(unread))))
        holds = self.most_kv >= request.kv_tokens
        if (holds & _in_time(request, idle)).any():
            return None
        ttft_s, tpot_s = float(idle.ttft_s[holds].min()), float(idle.step_s[holds].min())
        is_late = ttft_s > request.ttft_goal_s
        return Reason(
            "goal-out-of-reach",
            data={
                "goal": "the first token" if is_late else "each token",
                "wanted": show_time(request.ttft_goal_s if is_late else request.tpot_goal_s),
                "best": show_time(ttft_s if is_late else tpot_s),
            },
        )

    def _cost(self, request: RequestSignal, times: Times) -> Floats:
        steps, unread = steps_left(request), request.prefill_tokens - times.cached_tokens
        cost: Floats = times.ttft_s + steps * times.step_s
        slower_s = times.step_s - self.step_s(np.maximum(self.running, 1.0))
        cost += self.running * (steps * slower_s + self.pace[:, 0] + self.pace[:, 1] * unread)
        if request.blocks:
            load = self.running / self.most_slots
            cost += (load > load.min() + AFFINITY_GAP) * self.fill[:, 1] * times.cached_tokens
        return cost

    def _cached(self, request: RequestSignal, now_s: float) -> Floats:
        if not request.blocks:
            return np.zeros(len(self.pipelines))
        # The last token is always read: its output is what the first new token is made of.
        return np.minimum(
            self.prefixes.cached_blocks(request.blocks, now_s) * BLOCK_TOKENS, request.prefill_tokens - 1.0
        )


def _in_time(request: RequestSignal, times: Times) -> Bools:
    found: Bools = (times.ttft_s <= request.ttft_goal_s) & (times.step_s <= request.tpot_goal_s)
    return found
