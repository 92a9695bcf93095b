"""Requests a second that a pipeline gets through: more with larger batches, until a goal or KV memory ends it.

With b sequences a step, each reads one prompt for all its tokens, so a step carries b / output prompts as well: a
stage takes decode(b) + b / output * prompt, a token all stages and hops. No more sequences are in flight than the
KV memory of the tightest stage holds. Prompts wait at the slowest stage as in `service.py` (95 of 100 in time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from strata.serving.layout import Layout, StageServer
from strata.serving.planning.service import TAIL
from strata.workload.serving_job import Demand

GROWTH: Final = 1.25
"""Batches are tried in steps of a quarter."""


class RequestRate(NamedTuple):
    """Requests/s at most, and those that keep the goals."""

    requests_per_s: float
    goodput_per_s: float


def ttft_s(layout: Layout, servers: Sequence[StageServer], demand: Demand) -> float:
    """Return a prompt's way along an idle pipeline, and that of its first token back."""
    names = [server.node_id for server in servers]
    reading_s = sum(server.prefill.at(demand.prompt_tokens) for server in servers)
    there_s = sum(layout.hop(a, b).at(demand.prompt_tokens) for a, b in pairwise(names))
    return reading_s + there_s + layout.hop(names[-1], names[0]).at(1)


def capacity(layout: Layout, servers: Sequence[StageServer], demand: Demand) -> RequestRate:
    """Return what a pipeline of servers, in their order, gets through at the best batch."""
    prompts_s = [server.prefill.at(demand.prompt_tokens) for server in servers]
    ring, slots = layout.ring([server.node_id for server in servers]), min(server.slots for server in servers)
    most = within = 0.0
    batch = 1
    while batch <= slots:
        stages_s = [
            server.decode.at(batch) + batch / demand.output_tokens * prompt_s
            for server, prompt_s in zip(servers, prompts_s, strict=True)
        ]
        token_s = sum(stages_s) + ring.at(batch)
        rate = min(batch / max(stages_s), slots / token_s) / demand.output_tokens
        most = max(most, rate)
        if token_s <= demand.tpot_goal_s:
            within = max(within, rate)
        batch = slots if batch < slots < batch * GROWTH else max(batch + 1, int(batch * GROWTH))
    return RequestRate(most, within * _kept(ttft_s(layout, servers, demand), max(prompts_s), demand.ttft_goal_s))


def _kept(idle_s: float, slowest_s: float, goal_s: float) -> float:
    """Return which share of its rate a pipeline may serve for 95 of 100 first tokens to be in time."""
    if goal_s == math.inf:
        return 1.0
    mean_wait_s = max(0.0, goal_s - idle_s) / TAIL
    return mean_wait_s / (mean_wait_s + slowest_s)
