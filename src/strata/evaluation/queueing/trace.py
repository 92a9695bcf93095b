"""Traces drawn from a seed: which jobs arrive when and where, how many nodes they ask for and for how long.

No public trace has jobs across data centres: homes and models are synthetic. Sizes and run times are those of a
public trace; of those there are only Kalos has jobs of many nodes, so only there placement matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.workload import arrivals

MAST_SKEW: Final = 2.63
"""MAST (OSDI'24): the worst region was asked for 2.63 times the devices it had."""

LEAST_RUN_S: Final = 600.0
MOST_RUN_S: Final = 86400.0
"""Shorter jobs are not training; longer ones, cut off, would make up a trace of a few days on their own."""

LARGEST: Final = 0.5
"""Most of a domain that one job asks for. At 1, home queues stand still whenever such a job waits for an empty
home, and every other scheduler looks better than it is."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One training job. home: the domain of the team that sends it. run_s: in one domain, nobody else there."""

    arrival_s: float
    home: int
    nodes: int
    run_s: float


@dataclass(frozen=True, slots=True)
class QueueTrace:
    """Jobs in order of arrival; the last one arrives before `end_s`."""

    jobs: tuple[QueuedJob, ...]
    end_s: float


def popularity(domains: int, *, skew: float) -> Floats:
    """Return the share of demand of each home domain [K]: geometric, the first `skew` times the mean.

    At skew 1 all are alike. Raises ValueError where the first would have more than all.
    """
    if not 1 <= skew < domains:
        raise ValueError(f"a skew of {skew} is not in [1, {domains}): {domains} domains share one demand")
    low, high = 0.0, 1.0
    for _ in range(60):
        ratio = (low + high) / 2
        first = domains / float(np.sum(ratio ** np.arange(domains)))
        low, high = (low, ratio) if first < skew else (ratio, high)
    share = low ** np.arange(domains)
    return np.asarray(share / share.sum())


def draw(
    nodes_of: tuple[int, ...], *, load: float, jobs: int, skew: float, rng: np.random.Generator,
    source: str = "kalos",
) -> QueueTrace:  # fmt: skip
    """Return a trace whose jobs ask for `load` times what domains of so many nodes give until its end.

    Arrivals are Poisson given their number. The same `rng` gives the same jobs at every load, only closer
    together.
    """
    run_s, sizes = arrivals.sample(arrivals.TRACES[source], rng, jobs, least_s=LEAST_RUN_S)
    run_s = np.minimum(run_s, MOST_RUN_S)
    nodes = np.clip(sizes.astype(np.int64), 1, max(1, int(LARGEST * min(nodes_of))))
    end_s = float(nodes @ run_s) / (load * sum(nodes_of))
    arrival_s = np.sort(rng.random(jobs)) * end_s
    home = rng.choice(len(nodes_of), size=jobs, p=popularity(len(nodes_of), skew=skew))
    rows = zip(arrival_s.tolist(), home.tolist(), nodes.tolist(), run_s.tolist(), strict=True)
    return QueueTrace(tuple(QueuedJob(*row) for row in rows), end_s)
