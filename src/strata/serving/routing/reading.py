"""How much of the prompts sent to each pipeline is still to be read, and how often it has been reading lately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.serving.planning.allocation import Pipeline

CHUNK_TOKENS: Final = 512
"""Tokens of a prompt that ride along with one decode step (chunked prefill; Sarathi-Serve's middle setting)."""
MEMORY_S: Final = 20.0
"""Over how long the share of time spent reading is averaged: about as long as a request runs (assumed)."""


PROMPTS: Final = 50
"""Over how many prompts their lengths are averaged (assumed)."""


class Reading:
    """By pipeline [P]: `work_s` of prefill on its slowest node, were it doing nothing else; `share` of time that
    it reads, an exponential average. Prompts are read one after the other, so that one which is shorter than a
    chunk takes a whole step: `chunk_tokens` is the mean over steps.

    Between first tokens `work_s` is reckoned; each first token says what has been read, so errors do not add up.
    """

    def __init__(self) -> None:
        self.work_s, self.share = np.zeros(0), np.zeros(0)
        self._unread: dict[str, tuple[Pipeline, float]] = {}
        self._unread_s: dict[Pipeline, float] = {}
        self._pipelines: tuple[Pipeline, ...] = ()
        self._at_s = -math.inf
        self._mean_tokens, self._mean_steps = float(CHUNK_TOKENS), 1.0

    @property
    def chunk_tokens(self) -> float:
        """Tokens read in one step, in the mean of late."""
        return self._mean_tokens / self._mean_steps

    def arrange(self, pipelines: Sequence[Pipeline]) -> None:
        """Keep what is known of pipelines that stay, at their new places."""
        known = dict(
            zip(self._pipelines, zip(self.work_s.tolist(), self.share.tolist(), strict=True), strict=True)
        )
        kept = np.array([known.get(pipeline, (0.0, 0.0)) for pipeline in pipelines]).reshape(-1, 2)
        self.work_s, self.share = kept[:, 0].copy(), kept[:, 1].copy()
        self._pipelines = tuple(pipelines)
        self._place = {pipeline: p for p, pipeline in enumerate(pipelines)}

    def add(self, request_id: str, p: int, tokens: float, work_s: float) -> None:
        """Note a prompt of so many tokens, and its work on the pipeline's slowest node."""
        pipeline = self._pipelines[p]
        self.work_s[p] += work_s
        self._unread[request_id] = pipeline, work_s
        self._unread_s[pipeline] = self._unread_s.get(pipeline, 0.0) + work_s
        self._mean_tokens += (tokens - self._mean_tokens) / PROMPTS
        self._mean_steps += (max(1.0, tokens / CHUNK_TOKENS) - self._mean_steps) / PROMPTS

    def first_token(self, request_id: str, onward_s: float) -> None:
        """Note that a prompt has been read, `onward_s` ago at most: the next ones are behind it, not before."""
        p = self._forget(request_id)
        if p is not None:
            unread_s = self._unread_s.get(self._pipelines[p], 0.0)
            self.work_s[p] = min(max(self.work_s.item(p), unread_s - onward_s), unread_s)

    def leave(self, request_id: str) -> None:
        """Note that a request is gone; if its prompt was not read yet, it will not be."""
        work_s = self._unread.get(request_id, ((), 0.0))[1]
        p = self._forget(request_id)
        if p is not None:
            self.work_s[p] = max(0.0, self.work_s.item(p) - work_s)

    def pipeline_of(self, request_id: str) -> int | None:
        """Return where a prompt is to be read; None where it has been, or its pipeline is gone."""
        unread = self._unread.get(request_id)
        return None if unread is None else self._place.get(unread[0])

    def _forget(self, request_id: str) -> int | None:
        p, unread = self.pipeline_of(request_id), self._unread.pop(request_id, None)
        if unread is not None:
            pipeline, work_s = unread
            left_s = self._unread_s[pipeline] - work_s
            self._unread_s[pipeline] = left_s
            if left_s < 1e-9:
                del self._unread_s[pipeline]
        return p

    def advance(self, now_s: float, speed: Floats) -> None:
        """Let time pass; `speed` is the share of their time that pipelines have for reading [P]."""
        passed_s = now_s - self._at_s
        if passed_s <= 0:
            return
        self._at_s = now_s
        busy_s = np.minimum(self.work_s / speed, passed_s)
        self.work_s = np.maximum(self.work_s - busy_s * speed, 0.0)
        self.share += (busy_s / passed_s - self.share) * (1.0 - math.exp(-passed_s / MEMORY_S))
