"""The gradient sum between pipelines: the rounds of an all-reduce, each a flow on every wire it uses.

Members wait for each other after every round. A round of a ring or of direct exchange is over one longest latency
after its last byte left, as `collective` prices it; a star's messages arrive one by one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from strata.arrays import Floats
from strata.errors import UsageError
from strata.fleet.fleet import Link, Pair
from strata.simulate.collective import AllReduce
from strata.simulate.events.pipeline import Sender, SharedState, Steps, answers
from strata.simulate.gradient_shares import exchanged, shares
from strata.simulate.timeline import SpanKind
from strata.workload.plan import TrainingPlan

Wires = dict[tuple[int, int], dict[Pair, float]]
"""Per two members, the links between them with the share of their gradients that crosses each."""


def wires(plan: TrainingPlan, params_before: Floats) -> Wires:
    """Return the links between the pipelines of a plan: each layer is exchanged between those that hold it."""
    wires: Wires = defaultdict(lambda: defaultdict(float))
    held = [shares(plan, pipeline, params_before) for pipeline in plan.pipelines]
    for r, q, pair, share in exchanged(held):
        wires[r, q][pair] += share
    return wires


def rounds(across: AllReduce) -> list[tuple[int, Floats]]:
    """Return how often each round of an all-reduce happens, and its bytes [D, D] from member to member."""
    sent = across.bytes_sent
    members = len(sent)
    if across.algorithm == "ring":
        return [(2 * (members - 1), sent / (2 * (members - 1)))]
    if across.algorithm == "star":
        hub = int(np.argmax((sent > 0).sum(axis=0)))
        to_hub = np.zeros_like(sent)
        to_hub[:, hub] = sent[:, hub]
        return [(1, to_hub), (1, to_hub.T)]
    # Direct: sent[i, j] is the chunk that j sums plus the chunk that i has summed.
    if members == 2:
        chunk = sent[0, 1] * np.array([0.5, 0.5])
    else:
        after = np.roll(np.arange(members), -1), np.roll(np.arange(members), -2)
        here = np.arange(members)
        chunk = (sent[here, after[0]] + sent[here, after[1]] - sent[after[0], after[1]]) / 2
    gathered = np.repeat(chunk[:, None], members, axis=1)
    np.fill_diagonal(gathered, 0.0)
    return [(1, gathered.T), (1, gathered)]


def exchange(world: SharedState, sender: Sender, across: AllReduce, between: Wires, cause: int) -> Steps:
    """Run the sum, a process; returns the number of the span that ended last."""
    env, last, is_star = world.env, cause, across.algorithm == "star"
    for repeats, sizes in rounds(across):
        used = {members: shares for members, shares in between.items() if sizes[members] > 0}
        for _ in range(repeats):
            if sender.is_stopped:
                return last
            messages = [
                env.process(
                    _message(
                        world,
                        sender,
                        shares,
                        float(sizes[members]),
                        last,
                        least_s=float(sizes[members] / across.most_bytes_per_s[members]),
                        is_late=is_star,
                    )
                )
                for members, shares in used.items()
            ]
            yield env.all_of(messages)
            _, last = max(answers(messages))
            if not is_star:
                yield env.timeout(max(_latency_s(world, shares) for shares in used.values()))
    return last


def _message(
    world: SharedState, sender: Sender, shares: dict[Pair, float], size_bytes: float, cause: int, *,
    least_s: float, is_late: bool,
) -> Steps:  # fmt: skip
    """Send one member's part of a round over its links; returns when it arrived and the number of its span.

    least_s: what the uplinks of both members need for it.
    """
    parts = [
        world.env.process(_part(world, sender, pair, share * size_bytes, cause, least_s=least_s))
        for pair, share in shares.items()
    ]
    yield world.env.all_of(parts)
    if is_late:
        yield world.env.timeout(_latency_s(world, shares))
    return world.env.now, max(answers(parts))


def _part(
    world: SharedState, sender: Sender, pair: Pair, size_bytes: float, cause: int, *, least_s: float
) -> Steps:
    start_s = world.env.now
    work_s = size_bytes / _link(world, pair).bandwidth_bytes_per_s
    limit = work_s / least_s if least_s > work_s else math.inf
    yield world.network.send(
        pair, work_s, owner=sender, size_bytes=size_bytes, priority=sender.priority, limit=limit
    )
    lane, span_s = world.record.lane(f"{sender.name}/sum {pair[0]}>{pair[1]}"), (start_s, world.env.now)
    return world.record.add(lane, SpanKind.COLLECTIVE, span_s, cause=cause, label="sum of pipelines")


def _link(world: SharedState, pair: Pair) -> Link:
    link = world.fleet.links.get(pair)
    if link is None:
        raise UsageError(f"the gradient sum needs a link from {pair[0]} to {pair[1]}, and there is none")
    return link


def _latency_s(world: SharedState, pairs: Iterable[Pair]) -> float:
    """Return the longest latency of some links now."""
    return max(_link(world, pair).latency_s * world.network.latency_factor(pair) for pair in pairs)
