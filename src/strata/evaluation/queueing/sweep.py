"""A sweep over offered load: the same traces under every rule of the one loop, as arrays for statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.control.core import Scheduler
from strata.control.replay import run
from strata.control.state import JobSpec
from strata.evaluation.queueing.plans import NODE_DEVICES, kind, planner
from strata.evaluation.queueing.trace import QueueTrace, draw
from strata.fleet.fleet import Fleet
from strata.stats import Interval, bootstrap

LOADS: Final = (0.7, 0.9, 1.2)
JOBS: Final = 250
FIGURES: Final = ("utilization", "mean_completion_s", "p95_completion_s", "mean_wait_share", "switches")
NEVER_S: Final = 1e9


@dataclass(frozen=True, eq=False)
class LoadSweep:
    """figures: name -> [S, L, N], S rules, L loads, N traces; trace n is the same for every rule."""

    rules: tuple[str, ...]
    loads: tuple[float, ...]
    figures: dict[str, Floats]

    def of(self, rule: str, figure: str = "utilization") -> Floats:
        """Return one figure of one rule [L, N]. Raises ValueError or KeyError for what there is not."""
        return np.asarray(self.figures[figure][self.rules.index(rule)])


@dataclass(frozen=True, slots=True)
class Gain:
    """How much more of a figure one rule gives than another: relative to the other's mean, and absolute."""

    relative: Interval
    absolute: Interval


def played(fleet: Fleet, trace: QueueTrace, scheduler: Scheduler) -> dict[str, float]:
    """Return the figures of a trace, run until its last job has ended.

    utilization: what was trained until the trace's end, in device-seconds at the speed of one domain, over all
    device-seconds until then. mean_wait_share: of the time from submit to end, what was not training.
    """
    alone, specs = planner(spans=False), []
    rates = {}
    for number, job in enumerate(trace.jobs):
        training = kind(job.nodes, job.home)
        rates[f"job{number}"] = rate = float(alone(fleet, training).nominal[0])
        steps = max(1, round(job.run_s * rate))
        specs.append(JobSpec(f"job{number}", training, steps, submitted_s=job.arrival_s))
    result = run(fleet, specs, scheduler, trace=None, end_s=NEVER_S, mark_s=trace.end_s)
    completion_s = np.array([result.ends_s[spec.name] - spec.submitted_s for spec in specs])
    run_s = np.array([spec.steps / rates[spec.name] for spec in specs])
    useful = sum(
        result.marked.get(spec.name, 0.0) / rates[spec.name] * job.nodes
        for spec, job in zip(specs, trace.jobs, strict=True)
    )
    nodes = sum(domain.num_devices for domain in fleet.domains) / NODE_DEVICES
    return {
        "utilization": float(useful / (nodes * trace.end_s)),
        "mean_completion_s": float(completion_s.mean()),
        "p95_completion_s": float(np.quantile(completion_s, 0.95)),
        "mean_wait_share": float(1 - (run_s / completion_s).mean()),
        "switches": float(result.switches),
    }


def sweep(
    rules: Mapping[str, Callable[[], Scheduler]], *,
    fleet: Fleet, skew: float, seeds: Sequence[int], loads: Sequence[float] = LOADS, jobs: int = JOBS,
    advance: Callable[[float], None] = lambda _share: None,
) -> LoadSweep:  # fmt: skip
    """Run every rule on the same traces, one a seed and load; a seed has the same jobs at every load."""
    schedulers = {name: make() for name, make in rules.items()}
    nodes = tuple(domain.num_devices // NODE_DEVICES for domain in fleet.domains)
    figures = {name: np.zeros((len(rules), len(loads), len(seeds))) for name in FIGURES}
    for at, load in enumerate(loads):
        for n, seed in enumerate(seeds):
            trace = draw(nodes, load=load, jobs=jobs, skew=skew, rng=np.random.default_rng((seed, 0)))
            for which, scheduler in enumerate(schedulers.values()):
                for name, value in played(fleet, trace, scheduler).items():
                    figures[name][which, at, n] = value
            advance((at * len(seeds) + n + 1) / (len(loads) * len(seeds)))
    return LoadSweep(tuple(rules), tuple(loads), figures)


def gain(new: Floats, old: Floats, *, rng: np.random.Generator) -> Gain:
    """Return the gain of `new` over `old` [..., N], means over all but the traces; traces are redrawn as pairs."""
    first, other = (values.reshape(-1, values.shape[-1]).mean(axis=0) for values in (new, old))

    def relative(rows: Floats) -> float:
        picked = rows.astype(np.int64)
        return float(first[picked].mean() / other[picked].mean() - 1)

    pairs = np.arange(len(first), dtype=np.float64)
    absolute = bootstrap(lambda rows: float((first - other)[rows.astype(np.int64)].mean()), pairs, rng=rng)
    return Gain(bootstrap(relative, pairs, rng=rng), absolute)
