"""Traces drawn from a seed: which jobs arrive when and where, and how the links change meanwhile.

No public trace has jobs across data centres: homes, models and links are synthetic. Sizes and run times are those
of a public trace; of those there are only Kalos has jobs of many nodes, so only there placement matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.evaluation.queueing.grid import STEP_S, Grid
from strata.evaluation.queueing.job import QueuedJob
from strata.workload import arrivals

Sizes = Callable[[np.random.Generator, int], tuple[Ints, Floats]]
"""Draws nodes [J] and run times at nominal speed [J, seconds] of J jobs."""

MAST_SKEW: Final = 2.63
"""MAST (OSDI'24): the worst region was asked for 2.63 times the devices it had."""

LEAST_RUN_S: Final = 600.0
MOST_RUN_S: Final = 86400.0

LARGEST: Final = 0.5
"""Most of a domain that one job asks for. At 1, home queues stand still whenever such a job waits for an empty
home, and every other scheduler looks better than it is."""

WARM_UP: Final = 0.2
WITH_DEADLINE: Final = 0.2
SLACK: Final = (1.5, 4.0)
TOLD_SIGMA: Final = 0.5
STEP_RANGE_S: Final = (5.0, 20.0)
GRADIENT_BYTES_PER_NODE: Final = 2e9
"""All assumed: share of the trace that fills the domains; share of jobs with a deadline and their time from
arrival in run times; spread of what users say (log-normal); time of a step; bf16 gradients of 1e9 parameters a
node (8 x 80 GB hold 40e9 parameters with their optimiser; jobs buy devices for speed)."""


@dataclass(frozen=True, slots=True)
class QueueTrace:
    """Jobs in order of arrival, the regime of each link every STEP_S seconds, and the window that counts."""

    jobs: tuple[QueuedJob, ...]
    regimes: tuple[tuple[int, ...], ...]
    start_s: float
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
    grid: Grid,
    *,
    load: float,
    jobs: int,
    skew: float,
    sizes: Sizes,
    rng: np.random.Generator,
    links_of: np.random.Generator,
    largest: float = LARGEST,
) -> QueueTrace:
    """Return a trace whose jobs ask for `load` times what all domains give from its start to its end.

    Arrivals are Poisson given their number. The same `rng` gives the same jobs at every load, only closer
    together; `links_of` moves the links. No job is larger than `largest` of the smallest domain, so that every
    scheduler can run every job.
    """
    nodes, run_s = sizes(rng, jobs)
    nodes = np.clip(nodes, 1, max(1, int(largest * min(grid.nodes))))
    end_s = float(nodes @ run_s) / (load * sum(grid.nodes))
    arrival_s = np.sort(rng.random(jobs)) * end_s
    home = rng.choice(len(grid.nodes), size=jobs, p=popularity(len(grid.nodes), skew=skew))
    stated = nodes * run_s * rng.lognormal(0.0, TOLD_SIGMA, jobs)
    slack = np.where(rng.random(jobs) < WITH_DEADLINE, rng.uniform(*SLACK, jobs), math.inf)
    step_s = rng.uniform(*STEP_RANGE_S, jobs)
    drawn = tuple(
        QueuedJob(i, *row)
        for i, row in enumerate(
            zip(
                arrival_s.tolist(),
                home.tolist(),
                nodes.tolist(),
                (nodes * run_s).tolist(),
                stated.tolist(),
                (arrival_s + slack * run_s).tolist(),
                (nodes * GRADIENT_BYTES_PER_NODE).tolist(),
                step_s.tolist(),
                strict=True,
            )
        )
    )
    regimes = _regimes(grid, end_s, links_of)
    return QueueTrace(drawn, regimes, WARM_UP * end_s, end_s)


def _regimes(grid: Grid, end_s: float, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Return the regime of each link at 0, STEP_S, ... until the end."""
    state = grid.dynamics.reset(rng, (len(grid.pairs),))
    below = np.cumsum(grid.dynamics.transition(STEP_S), axis=-1)[:, :-1]
    states = [tuple(state.tolist())]
    for uniform in rng.random((int(end_s / STEP_S) + 1, len(grid.pairs))):
        state = (uniform[:, None] >= below[state]).sum(axis=1)
        states.append(tuple(state.tolist()))
    return tuple(states)


def sizes_of(trace: arrivals.JobTrace) -> Sizes:
    """Return nodes and run times of a public trace, of jobs that run between LEAST_RUN_S and MOST_RUN_S.

    Shorter ones are not training; longer ones, cut off, would make up a trace of a few days on their own.
    """

    def drawn(rng: np.random.Generator, jobs: int) -> tuple[Ints, Floats]:
        run_s, nodes = arrivals.sample(trace, rng, jobs, least_s=LEAST_RUN_S)
        return nodes.astype(np.int64), np.minimum(run_s, MOST_RUN_S)

    return drawn
