"""What prompts cost beside decoding, what requests may wait, and what a pipeline serves within both.

A sequence reads one prompt for all its tokens, so a decode step of the batch carries `prompts_per_step` prompts;
they take their share of the slowest stage. The time to the first token is the prompt's way along the pipeline,
hops with all its activations, and the wait for prompts before it. That wait is of an M/G/1 queue, exponential in
its tail, so its 95th percentile is about three times its mean, rho / (1 - rho) times the slowest stage's time of a
prompt (Kleinrock, Queueing Systems I, §5.6; exponential sizes): a share rho of the pipeline's rate keeps the goal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from strata.arrays import Floats

TAIL: Final = math.log(20)
"""95th percentile of an exponential wait over its mean."""
SPARE: Final = 1.5
"""Tokens/s beyond so many times what is foreseen are worth nothing."""
MISSED: Final = 1e-3
STEEP: Final = 4
"""What a pipeline that misses a goal is worth, and how fast less; not nothing, for the search to find its way."""


@dataclass(frozen=True, slots=True)
class ServiceGoals:
    """One prompt's times: `prompt_s[i][k]` on node i for the first k layers, `hop_s[i, j]` on a hop; and goals.

    Nodes are in the order of the pool's. A goal that is not set is infinite, as is what is wanted where nobody
    knows; serving more than that is worth nothing.
    """

    prompt_s: tuple[tuple[float, ...], ...]
    hop_s: Floats
    prompts_per_step: float
    ttft_goal_s: float = math.inf
    tpot_goal_s: float = math.inf
    wanted_tokens_per_s: float = math.inf

    @property
    def has_goals(self) -> bool:
        """Whether requests have any goal."""
        return min(self.ttft_goal_s, self.tpot_goal_s) < math.inf

    def only(self, kept: Sequence[int]) -> ServiceGoals:
        """Return the same for some of the nodes, in the order given."""
        return replace(self, prompt_s=tuple(self.prompt_s[i] for i in kept), hop_s=self.hop_s[np.ix_(kept, kept)])

    def prompt(self, members: Sequence[int], counts: Sequence[int]) -> tuple[float, float]:
        """Return the time of one prompt along an idle pipeline, and the slowest stage's part of it [s]."""
        first, total, slowest = 0, 0.0, 0.0
        for i, count in zip(members, counts, strict=True):
            stage_s = self.prompt_s[i][first + count] - self.prompt_s[i][first]
            total, slowest, first = total + stage_s, max(slowest, stage_s), first + count
        return total + sum(self.hop_s[a, b] for a, b in pairwise(members)), slowest

    def share(self, members: Sequence[int], counts: Sequence[int], *, step_s: float, decode_s: float) -> float:
        """Return which share of its decode rate a pipeline may serve; steep, not zero, where it misses a goal.

        step_s: of its slowest stage; decode_s: of a token all the way round.
        """
        ttft_s, slowest_s = self.prompt(members, counts)
        share = step_s / (step_s + self.prompts_per_step * slowest_s) if step_s > 0 else 1.0
        if decode_s > self.tpot_goal_s:
            share *= MISSED * (self.tpot_goal_s / decode_s) ** STEEP
        if self.ttft_goal_s == math.inf:
            return share
        mean_wait_s = (self.ttft_goal_s - ttft_s) / TAIL
        if mean_wait_s > 0:
            return share * mean_wait_s / (mean_wait_s + slowest_s)
        return share * MISSED * (self.ttft_goal_s / ttft_s) ** STEEP

    def keeps_goals(self, members: Sequence[int], counts: Sequence[int], decode_s: float) -> bool:
        """Return whether an idle pipeline keeps both goals at all."""
        return self.prompt(members, counts)[0] < self.ttft_goal_s and decode_s <= self.tpot_goal_s
