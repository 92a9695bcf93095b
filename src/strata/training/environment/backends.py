"""Who says how long a step takes: one function a backend, all of the same form.

Each also says what communication cost is counted in. A backend has one unit: bytes are never held against cycles.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from strata.errors import MissingPart, UsageError
from strata.fleet.fleet import Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import AstraBackend, Binaries, find
from strata.simulate.astra.lower import Aggregation
from strata.simulate.astra.referee import TIME_LIMIT_S, simulate_astra
from strata.simulate.events.run import simulate
from strata.simulate.events.work import Job
from strata.simulate.traffic import links_used
from strata.training.environment.network import scaled
from strata.workload.job import TrainingJob
from strata.workload.plan import Pipeline, TrainingPlan


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step; `cost` is its communication in the backend's `cost_unit`."""

    step_time_s: float
    utilization: float
    wan_bytes: float
    cost: float


Run = Callable[[Fleet, TrainingJob, TrainingPlan], Outcome]


@dataclass(frozen=True, slots=True)
class Backend:
    """A name, the unit of its communication cost, and the run of a plan of one pipeline on one network state."""

    name: str
    cost_unit: str
    run: Run


def backend(name: str, *, time_limit_s: float = TIME_LIMIT_S) -> Backend:
    """Return a backend; a run of an ASTRA-sim binary that takes longer than `time_limit_s` is stopped, an error.

    Raises UsageError for a name that is none, MissingPart where it cannot run here.
    """
    if name in _OURS:
        return Backend(name, "wan_bytes", _OURS[name])
    if name not in NAMES:
        raise UsageError(f"unknown backend {name!r}", hint=" or ".join(NAMES))
    kind, binaries = AstraBackend(name), find(os.environ)
    binaries.of(kind)  # says at once that it is not here
    return Backend(name, "comm_cycles", partial(_run_astra, kind, binaries, time_limit_s))


def _run_analytic(fleet: Fleet, job: TrainingJob, plan: TrainingPlan) -> Outcome:
    report = StepModel(_shared(fleet, plan.pipelines[0]), job).reports([plan])[0]
    wan_bytes = report.wan_bytes_per_step
    return Outcome(report.step_time_s, report.utilization, wan_bytes, cost=wan_bytes)


def _shared(fleet: Fleet, pipeline: Pipeline) -> Fleet:
    """Return the links as each message sees them.

    A placement may cross one link several times, which the planner's own plans never do: the messages of one
    microbatch then share it, as if they always met. That is an upper bound, exact for a full link and many
    microbatches; with some 20 visits on the seed's network a step looks up to twice as long as to `events`.
    """
    uses = Counter(links_used(fleet, pipeline))
    return fleet.with_links(scaled(link, bandwidth=1 / count) for link, count in uses.items() if count > 1)


def _run_astra(
    kind: AstraBackend, binaries: Binaries, time_limit_s: float, fleet: Fleet, job: TrainingJob, plan: TrainingPlan
) -> Outcome:
    """Run the plan on ASTRA-sim.

    Its analytical backends know one link for all domains, here as bad as the worst one used: the seed's `min`
    aggregation (§3.1). ns-3 has a link for each pair of domains, as bad as the worse of its two directions, and
    messages that meet on it share it.
    Communication is what ranks do not compute, in cycles of 1 ns: waiting and bubbles included.
    """
    report = StepModel(_shared(fleet, plan.pipelines[0]), job).reports([plan])[0]
    visits, stages = fleet, plan
    if kind is not AstraBackend.NS3:
        visits, stages = _visits(_shared(fleet, plan.pipelines[0]), plan)
    answer = simulate_astra(
        StepModel(visits, job), stages, binaries=binaries, environment=os.environ, backend=kind,
        aggregation=Aggregation.MIN, time_limit_s=time_limit_s,
    )  # fmt: skip
    idle_s = [idle for idle in answer.exposed_s if idle is not None]
    if len(idle_s) < len(answer.exposed_s):
        raise MissingPart("this ASTRA-sim does not say how long a rank communicates", hint="a current build")
    useful = report.utilization * report.step_time_s / answer.step_s
    return Outcome(answer.step_s, useful, report.wan_bytes_per_step, cost=1e9 * sum(idle_s))


def _visits(fleet: Fleet, plan: TrainingPlan) -> tuple[Fleet, TrainingPlan]:
    """Return the same plan with a domain of its own for each stage.

    ASTRA-sim's ranks lie in a grid, in which a pipeline cannot come back to a domain; so a visit is a site.
    """
    (pipeline,) = plan.pipelines
    stages = tuple(replace(stage, domain=f"{stage.domain}#{i}") for i, stage in enumerate(pipeline.stages))
    named = list(zip(pipeline.stages, stages, strict=True))
    domains = tuple(replace(fleet.domain(old.domain), name=new.domain) for old, new in named)
    links = [
        replace(fleet.links[source.domain, dest.domain], source=a.domain, dest=b.domain)
        for visit, next_visit in pairwise(named)
        for (source, a), (dest, b) in ((visit, next_visit), (next_visit, visit))
    ]
    apart = Fleet(fleet.name, domains, {}).with_links(links)
    return apart, replace(plan, pipelines=(replace(pipeline, stages=stages),))


def _run_events(fleet: Fleet, job: TrainingJob, plan: TrainingPlan) -> Outcome:
    """Simulate the plan; messages that meet on a link share it only while they do."""
    # Without jitter and failures nothing is drawn.
    (report,) = simulate([Job(job.name, StepModel(fleet, job), plan)], rng=np.random.default_rng(0)).reports
    wan_bytes = report.wan_bytes_per_step
    return Outcome(report.step_time_s, report.utilization, wan_bytes, cost=wan_bytes)


_OURS: Final = {"analytic": _run_analytic, "events": _run_events}
NAMES: Final = (*_OURS, *(kind.value for kind in AstraBackend))
