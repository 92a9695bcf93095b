"""A sweep over offered load: the same traces under every scheduler, as arrays for statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.evaluation.queueing.grid import Grid
from strata.evaluation.queueing.run import simulate, together
from strata.evaluation.queueing.snapshot import QueueScheduler
from strata.evaluation.queueing.trace import LARGEST, draw, sizes_of
from strata.fleet.dynamics.regimes import Regimes
from strata.stats import Interval, bootstrap
from strata.workload.arrivals import TRACES

LOADS: Final = (0.5, 0.7, 0.9, 1.05, 1.2)
JOBS: Final = 1000
FIGURES: Final = (
    "utilization",
    "held",
    "goodput",
    "mean_wait_s",
    "p95_wait_s",
    "deadline_misses",
    "spans",
    "moves",
)


@dataclass(frozen=True, eq=False)
class LoadSweep:
    """figures: name -> [S, L, N], S schedulers, L loads, N traces; trace n is the same for every scheduler."""

    schedulers: tuple[str, ...]
    loads: tuple[float, ...]
    figures: dict[str, Floats]
    events: int

    def of(self, scheduler: str, figure: str = "utilization") -> Floats:
        """Return one figure of one scheduler [L, N]. Raises ValueError or KeyError for what there is not."""
        return np.asarray(self.figures[figure][self.schedulers.index(scheduler)])


@dataclass(frozen=True, slots=True)
class SchedulerGain:
    """How much more of a figure one scheduler gives than another: relative to the other's mean, and absolute."""

    relative: Interval
    absolute: Interval


def regular_grid(*, local_steps: tuple[int, ...] = (1, 8, 32, 128), gbps: float = 10.0) -> Grid:
    """Return four domains of 32 nodes, each pair on 10 Gbit/s and 15 ms, with bad half hours: all assumed.

    A link is good for 6 hours, then half or 0.15 of its bandwidth for half an hour, on average.
    """
    episodes = Regimes((6 * 3600.0, 1800.0, 1800.0))
    return Grid.alike(4, 32, gbps=gbps, latency_s=0.015, dynamics=episodes, local_steps=local_steps)


def sweep(
    schedulers: Sequence[QueueScheduler],
    *,
    grid: Grid,
    skew: float,
    seeds: Sequence[int],
    loads: Sequence[float] = LOADS,
    jobs: int = JOBS,
    trace: str = "kalos",
    largest: float = LARGEST,
) -> LoadSweep:
    """Run every scheduler on the same traces, one a seed and load; a seed has the same jobs at every load.

    Of the schedulers only home queues look at homes: at another skew the others give the same figures.
    """
    sizes = sizes_of(TRACES[trace])
    figures = {name: np.zeros((len(schedulers), len(loads), len(seeds))) for name in FIGURES}
    events = 0
    for at, load in enumerate(loads):
        traces = [
            draw(grid, load=load, jobs=jobs, skew=skew, sizes=sizes, rng=np.random.default_rng((seed, 0)),
                 links_of=np.random.default_rng((seed, 1)), largest=largest)
            for seed in seeds
        ]  # fmt: skip
        for which, scheduler in enumerate(schedulers):
            outcomes = together([simulate(grid, arrivals, scheduler) for arrivals in traces], scheduler)
            events += sum(outcome.events for outcome in outcomes)
            for name, values in figures.items():
                values[which, at] = [getattr(outcome, name) for outcome in outcomes]
    return LoadSweep(tuple(scheduler.name for scheduler in schedulers), tuple(loads), figures, events)


def gain(new: Floats, old: Floats, *, rng: np.random.Generator) -> SchedulerGain:
    """Return the gain of `new` over `old` [..., N], means over all but the traces; traces are redrawn as pairs."""
    first, other = (values.reshape(-1, values.shape[-1]).mean(axis=0) for values in (new, old))

    def relative(rows: Floats) -> float:
        picked = rows.astype(np.int64)
        return float(first[picked].mean() / other[picked].mean() - 1)

    pairs = np.arange(len(first), dtype=np.float64)
    absolute = bootstrap(lambda rows: float((first - other)[rows.astype(np.int64)].mean()), pairs, rng=rng)
    return SchedulerGain(bootstrap(relative, pairs, rng=rng), absolute)
