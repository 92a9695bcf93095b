"""Who says how long a step takes: one function a backend, all of the same form.

Each also says what communication cost is counted in. A backend has one unit: bytes are never held against cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from strata.errors import MissingPart, UsageError
from strata.fleet.fleet import Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.report import StepReport
from strata.simulate.traffic import links_used
from strata.training.environment.network import scaled
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step; `cost` is its communication in the backend's `cost_unit`."""

    report: StepReport
    cost: float


@dataclass(frozen=True, slots=True)
class Backend:
    """A name, the unit of its communication cost, and the run of one plan on a fleet in one state."""

    name: str
    cost_unit: str
    run: Callable[[Fleet, TrainingJob, TrainingPlan], Outcome]


def backend(name: str) -> Backend:
    """Return a backend. Raises UsageError for a name that is none, MissingPart where it cannot run here."""
    if name not in _BACKENDS:
        raise UsageError(f"{name!r} is no backend", hint=" or ".join(_BACKENDS))
    return _BACKENDS[name]()


def _analytic() -> Backend:
    return Backend("analytic", "wan_bytes", _run_analytic)


def _run_analytic(fleet: Fleet, job: TrainingJob, plan: TrainingPlan) -> Outcome:
    # A placement may cross one link several times, which the planner's own plans never do: messages of one
    # microbatch then share it, and each gets its part of the bandwidth.
    uses = Counter(link for pipeline in plan.pipelines for link in links_used(fleet, pipeline))
    shared = fleet.with_links(scaled(link, bandwidth=1 / count) for link, count in uses.items() if count > 1)
    report = StepModel(shared, job).reports([plan])[0]
    return Outcome(report, report.wan_bytes_per_step)


def _absent(name: str) -> Callable[[], Backend]:
    def missing() -> Backend:
        raise MissingPart(f"the {name} backend is not part of this version", hint="backend='analytic'")

    return missing


_BACKENDS: Final[dict[str, Callable[[], Backend]]] = {
    "analytic": _analytic,
    "events": _absent("events"),
    "astra": _absent("astra"),
}
