"""Placement policies on one trace of gangs that come and go: what each leaves broken, slow or stranded."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index, released
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement
from strata.evaluation.placement.baselines import BASELINES, choose_like, free_whole
from strata.fleet.acu import acu

Policy = Callable[[Index, Claim, Sequence[RuntimeProfile]], Placement | None]


class Gang(NamedTuple):
    """A gang of a trace: when it comes, how long it stays once placed [s], and what it asks."""

    arrival_s: float
    duration_s: float
    claim: Claim


class Quality(NamedTuple):
    """Means over time, except `bandwidth`, over gangs of several devices.

    fragmentation: free devices on begun nodes, as a share of the free ones. bandwidth: of the gang's slowest pair,
    as a share of what it would have in the empty cluster. stranded_acu: ACU (FP16) free while a gang waits.
    wait_s: from arrival to placement.
    """

    fragmentation: float
    bandwidth: float
    stranded_acu: float
    wait_s: float
    placed: int


def ours(index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]) -> Placement | None:
    """Place as the router does."""
    return evaluate(index, claim, profiles).choice.placement


def policies() -> dict[str, Policy]:
    """Return the router and the baselines, by name."""
    by_name: dict[str, Policy] = {"strata": ours}
    return by_name | {baseline: partial(choose_like, baseline) for baseline in BASELINES}


def replay(empty: Index, gangs: Sequence[Gang], profiles: Sequence[RuntimeProfile], *, policy: Policy) -> Quality:
    """Run a trace in virtual time: gangs wait in order, and whoever fits is placed before those that do not."""
    index, waiting, running = empty, list[Gang](), list[tuple[float, int, Placement]]()
    coming = sorted(gangs, key=lambda gang: gang.arrival_s)
    worth = _worth(empty)
    best: dict[tuple[int, int], float] = {}
    sums, shares, waits, now, last = np.zeros(2), list[float](), list[float](), 0.0, 0.0
    position = placed = 0
    while position < len(coming) or (running and waiting):
        arrives = coming[position].arrival_s if position < len(coming) else np.inf
        ends = running[0][0] if running else np.inf
        now = min(arrives, ends)
        free, usable = free_whole(index)
        broken = free[free < usable].sum() / max(1, free.sum())
        sums += (now - last) * np.array([broken, (free * worth).sum() if waiting else 0.0])
        last = now
        if arrives <= ends:
            waiting.append(coming[position])
            position += 1
        else:
            index = index.with_nodes(released(index, heapq.heappop(running)[2]))
        still = []
        for gang in waiting:
            placement = policy(index, gang.claim, profiles)
            if placement is None:
                still.append(gang)
                continue
            index = index.placed(placement)
            placed += 1
            heapq.heappush(running, (now + gang.duration_s, placed, placement))
            waits.append(now - gang.arrival_s)
            if np.isfinite(placement.bandwidth):
                shares.append(placement.bandwidth / _most(empty, gang.claim, placement, profiles, best))
        waiting = still
    fragmentation, stranded = sums / max(now, 1e-9)
    return Quality(
        float(fragmentation),
        float(np.mean(shares)) if shares else 1.0,
        float(stranded),
        float(np.mean(waits)) if waits else 0.0,
        placed,
    )


def _worth(index: Index) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the ACU (FP16) of one device of each row, 0 where it is not known [R]."""
    cards = {model: 0.0 if card is None else acu(card).fp16 or 0.0 for model, card in index.cards.items()}
    return np.array([cards[row.model] for row in index.rows], dtype=np.float64)


def _most(
    empty: Index,
    claim: Claim,
    placement: Placement,
    profiles: Sequence[RuntimeProfile],
    known: dict[tuple[int, int], float],
) -> float:
    """Return the bandwidth a gang of such a size has in the empty cluster [bytes/s]."""
    key = (placement.devices_per_pod, len(placement.pods))
    if key not in known:
        alone = ours(empty, claim, profiles)
        known[key] = placement.bandwidth if alone is None else alone.bandwidth
    return known[key]
