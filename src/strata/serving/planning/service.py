"""What prompts cost beside decoding, what requests may wait, and what a pipeline serves within both.

A sequence reads one prompt for all its tokens, so a decode step of the batch carries `prompts_per_step` prompts.
With b sequences a step, stage i takes f_i + e_i b for both, and a token that of every stage and the hops. So a
pipeline with n sequences in flight serves min(b / max_i (f_i + e_i b), n / (hops + sum_i (f_i + e_i b))) tokens/s:
the bounds of a closed network of queues (Lazowska et al., Quantitative System Performance, 1984, §5.2). The first
grows with b and the second falls, so the best b is the batch, or where they meet.

The time to the first token is the prompt's way along the pipeline,
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

    fixed_s[i][k]: what a decode step on node i takes, for the first k layers, whatever the number of sequences.

    Nodes are in the order of the pool's. A goal that is not set is infinite, as is what is wanted where nobody
    knows; serving more than that is worth nothing.
    """

    prompt_s: tuple[tuple[float, ...], ...]
    hop_s: Floats
    fixed_s: tuple[tuple[float, ...], ...]
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
        prompt_s, fixed_s = (tuple(times_s[i] for i in kept) for times_s in (self.prompt_s, self.fixed_s))
        return replace(self, prompt_s=prompt_s, fixed_s=fixed_s, hop_s=self.hop_s[np.ix_(kept, kept)])

    def rate(
        self, members: Sequence[int], counts: Sequence[int], *, batch: int, steps_s: Sequence[float],
        cycle_s: float, slots: float, is_strict: bool = False,
    ) -> float:  # fmt: skip
        """Return the tokens/s a pipeline serves within its goals; steeply less where an idle one misses one.

        As many sequences a step are taken as is best, `batch` at most.
        steps_s: decode steps of the batch on its stages; cycle_s: its hops; slots: sequences in flight at most.
        is_strict: nothing where it misses one.
        """
        prompts_s = _parts(self.prompt_s, members, counts)
        full_s = [
            step_s + self.prompts_per_step * prompt_s for step_s, prompt_s in zip(steps_s, prompts_s, strict=True)
        ]
        fewer, missed = self._in_time(members, counts, batch, full_s, sum(prompts_s), cycle_s)
        if fewer < batch:
            fixed_s = _parts(self.fixed_s, members, counts)
            full_s = [
                fix_s + (all_s - fix_s) * fewer / batch for fix_s, all_s in zip(fixed_s, full_s, strict=True)
            ]
        if is_strict and missed < 1:
            return 0.0
        rate = missed * self._most(members, counts, fewer, full_s, cycle_s, slots)
        if self.ttft_goal_s == math.inf:
            return rate
        ttft_s = sum(prompts_s) + self._hops_s(members)
        mean_wait_s = (self.ttft_goal_s - ttft_s) / TAIL
        if mean_wait_s > 0:
            return rate * mean_wait_s / (mean_wait_s + max(prompts_s))
        return 0.0 if is_strict else rate * MISSED * (self.ttft_goal_s / ttft_s) ** STEEP

    def _in_time(
        self, members: Sequence[int], counts: Sequence[int], batch: int, full_s: Sequence[float],
        prompts_s: float, cycle_s: float,
    ) -> tuple[float, float]:  # fmt: skip
        """Return how many sequences a step keep the goal of a token, and what a pipeline is worth where none do.

        A token takes all stages, the prompts of other sequences among it, and the hops.
        """
        own_s = self.prompts_per_step / batch * prompts_s
        if (token_s := sum(full_s) + cycle_s - own_s) <= self.tpot_goal_s:
            return batch, 1.0
        each_s = (sum(full_s) - sum(_parts(self.fixed_s, members, counts))) / batch
        least_s = token_s - (batch - 1) * each_s
        if least_s > self.tpot_goal_s:
            return 1.0, MISSED * (self.tpot_goal_s / least_s) ** STEEP
        return batch - (token_s - self.tpot_goal_s) / each_s, 1.0

    def _most(
        self, members: Sequence[int], counts: Sequence[int], batch: float, full_s: Sequence[float], cycle_s: float,
        slots: float,
    ) -> float:  # fmt: skip
        """Return the tokens/s without goals; full_s: of each stage, a step of the batch with its prompts."""
        slowest_s, token_s = max(full_s), sum(full_s) + cycle_s
        if slowest_s <= 0:
            return slots / token_s if token_s > 0 else math.inf
        if token_s == math.inf:  # no link joins two of them
            return 0.0
        if slots * slowest_s >= batch * token_s:
            return batch / slowest_s
        fixed_s = _parts(self.fixed_s, members, counts)
        each_s = [(stage_s - fix_s) / batch for stage_s, fix_s in zip(full_s, fixed_s, strict=True)]
        fixed_token_s, each_token_s = sum(fixed_s) + cycle_s, sum(each_s)
        best = 1.0
        for fix_s, more_s in zip(fixed_s, each_s, strict=True):
            # Where b / (fix + more b) = slots / (fixed_token + each_token b).
            half = (slots * more_s - fixed_token_s) / 2
            root = math.sqrt(half * half + each_token_s * slots * fix_s)
            best = max(best, (half + root) / each_token_s if each_token_s > 0 else slots * fix_s / fixed_token_s)
        best = min(best, batch)
        most = max(fix_s + more_s * best for fix_s, more_s in zip(fixed_s, each_s, strict=True))
        return min(best / most, slots / (fixed_token_s + each_token_s * best))

    def _hops_s(self, members: Sequence[int]) -> float:
        """Return what passing a prompt's activations along a pipeline takes."""
        return float(sum(self.hop_s[a, b] for a, b in pairwise(members)))


def _parts(times_s: Sequence[Sequence[float]], members: Sequence[int], counts: Sequence[int]) -> list[float]:
    """Return what each member takes for its layers, of times for the first k layers on each node."""
    parts_s, first = list[float](), 0
    for i, count in zip(members, counts, strict=True):
        parts_s.append(times_s[i][first + count] - times_s[i][first])
        first += count
    return parts_s
