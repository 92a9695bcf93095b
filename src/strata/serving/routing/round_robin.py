"""Round robin over the pipelines, each in turn as often as it is fast."""

from __future__ import annotations

import numpy as np

from strata.serving.layout import Layout, Route
from strata.serving.request import RequestSignal
from strata.serving.routing.pipelines import PipelineRouter


class RoundRobinPipelineRouting(PipelineRouter):
    """Smooth weighted round robin, as in nginx; the weights are the pipelines' rates.

    Every pipeline with room gains its weight; the one with most is taken and pays what all gained. Shares are
    proportional to rates, and turns of a fast pipeline lie between those of slow ones.
    """

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; turns start anew."""
        super().arrange(layout)
        self._credit = np.zeros(len(self.pipelines))

    def choose(self, request: RequestSignal, now_s: float) -> tuple[int, Route] | None:
        """Return the pipeline whose turn it is; None where none has room."""
        room = self.has_capacity(request)
        if not room.any():
            return None
        gain = self.rate * room
        self._credit += gain
        p = int(np.where(room, self._credit, -np.inf).argmax())
        self._credit[p] -= gain.sum()
        _, ttft_s, step_s = self.times(request, now_s)
        return p, Route(self.pipelines[p], 0, ttft_s.item(p), step_s.item(p))
