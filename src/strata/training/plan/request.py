"""What was asked of the planner: the request applied to a job, and digests that tell whether inputs changed."""

from __future__ import annotations

from dataclasses import fields, replace
from hashlib import sha256
from operator import attrgetter

import numpy as np

from strata.decision import Trust, digest
from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.training.plan.planned import InputDigests, PlanRequest
from strata.workload.job import Objective, TrainingJob


def requested_job(job: TrainingJob, request: PlanRequest) -> TrainingJob:
    """Return the job with the request's objective and weights. Raises UsageError where weights mean nothing."""
    if request.minimize is not None:
        job = replace(job, objective=request.minimize)
    if request.weights is not None:
        if request.minimize is None and job.objective in (Objective.TIME, Objective.COST):
            job = replace(job, objective=Objective.REWARD)
        if job.objective in (Objective.TIME, Objective.COST):
            raise UsageError(
                f"--weights has no meaning for --minimize {job.objective}", hint="--minimize tchebycheff or reward"
            )
        job = replace(job, weights=request.weights)
    return job


def inputs_digest(fleet: Fleet, job: TrainingJob) -> tuple[str, InputDigests]:
    """Return a short hash of what was asked, and one each, so that it can be said which of the two changed."""
    hardware, work = _hardware(fleet), digest(_hashed_fields(job), repr(job.profile))
    return digest(hardware, work), InputDigests(fleet=hardware, job=work)


def _hardware(fleet: Fleet) -> str:
    """Return a short hash of a fleet. Links are hashed as columns: as text, a million of them take ten seconds."""
    links = list(fleet.links.values())
    figures = (attrgetter(name) for name in ("bandwidth_bytes_per_s", "latency_s", "price_usd_per_byte"))
    columns = [*fleet.pairs, *(np.fromiter(map(figure, links), float, len(links)) for figure in figures)]
    trusts = {trust: number for number, trust in enumerate(Trust)}
    columns.append(np.fromiter((trusts[link.trust] for link in links), int, len(links)))
    curves = [(number, repr(link.curve)) for number, link in enumerate(links) if link.curve is not None]
    return digest(
        fleet.name, repr(fleet.domains), curves, [sha256(column.tobytes()).hexdigest() for column in columns]
    )


def _hashed_fields(job: TrainingJob) -> dict[str, object]:
    """Return a job's values but for the profile, hashed by its text, and the model, which its layers stand for."""
    return {item.name: getattr(job, item.name) for item in fields(job) if item.compare} | {"profile": None}
