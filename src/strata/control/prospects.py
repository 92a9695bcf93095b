"""Whether a job could ever run on a fleet, every device free; if not, why, and what would help."""

from __future__ import annotations

from strata.clock import Clock
from strata.control.candidates import Candidates
from strata.control.free import Room
from strata.control.state import JobSpec
from strata.decision import Reason
from strata.fleet.fleet import Fleet
from strata.training.plan.planner import plan_training

HELP_S = 10.0
"""For finding out what would help."""


def refusals(fleet: Fleet, spec: JobSpec, candidates: Candidates, *, clock: Clock) -> tuple[Reason, ...]:
    """Return why no plan of a job can ever run, and what would help; empty where one can."""
    if not candidates.plans:
        report = plan_training(fleet, spec.training, clock=clock, time_limit_s=HELP_S, rank=1)
        why = [reason for (a, b), reason in candidates.apart.items() if a < b]
        return (Reason("no-plan-fits", spec.name), *why, *report.decision.reasons)
    whole = Room({domain.name: domain.num_devices for domain in fleet.domains})
    if whole.legal(candidates, spec).any():
        return ()
    return (not_allowed(spec, candidates),)


def not_allowed(spec: JobSpec, candidates: Candidates) -> Reason:
    """Return that a job has plans, and none on a number of devices that it allows."""
    counts = ", ".join(map(str, sorted(set(candidates.devices.sum(axis=1).tolist()))))
    data = {"counts": counts, "least": spec.min_devices or 1, "most": spec.max_devices or "any number"}
    return Reason("no-plan-allowed", spec.name, data)
