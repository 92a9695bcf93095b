"""How fast the router is: filter and prioritize for one pod, and whole gangs, while the cluster changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from strata.cluster.appraise import appraise
from strata.cluster.claim import Claim
from strata.cluster.index import Index, released
from strata.cluster.profile import RuntimeProfile
from strata.cluster.router import choose
from strata.cluster.snapshot import Placement


class Pace(NamedTuple):
    """CPU seconds of each filter and prioritize, and of each gang's placement with its update of the index."""

    extender_s: tuple[float, ...]
    gang_s: tuple[float, ...]
    placed: int


def pace(
    index: Index, claims: Sequence[Claim], profiles: Sequence[RuntimeProfile], *, clock: Callable[[], float]
) -> Pace:
    """Answer for every claim once: as an extender for its first pod, then place the gang whole.

    What fits is kept; gangs leave in their order once one does not fit, so the cluster stays nearly full.
    """
    extender: list[float] = []
    gangs: list[float] = []
    running: deque[Placement] = deque()
    placed = 0
    for claim in claims:
        started = clock()
        _answer(index, claim, profiles)
        extender.append(clock() - started)
        started = clock()
        placement = choose(index, claim, profiles).placement
        if placement is not None:
            index = index.placed(placement)
        gangs.append(clock() - started)
        if placement is not None:
            placed += 1
            running.append(placement)
        elif running:
            index = index.with_nodes(released(index, running.popleft()))
    return Pace(tuple(extender), tuple(gangs), placed)


def _answer(index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]) -> tuple[list[str], list[int]]:
    """Return the nodes that pass and their scores from 0 to 100, as an extender sends them."""
    token, score = appraise(index, claim, profiles)
    passing = np.flatnonzero(token == 0)
    return [index.nodes[number].name for number in passing.tolist()], (100 * score[passing]).astype(int).tolist()
