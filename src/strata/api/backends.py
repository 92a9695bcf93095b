"""The backends of `strata simulate`, one after another behind one answer."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.api.loaded import LoadedPlan
from strata.errors import StrataError, UsageError

if TYPE_CHECKING:
    from strata.simulate.events.work import Conditions
    from strata.simulate.report import StepReport
    from strata.simulate.timeline import Timeline


@dataclass(frozen=True)
class Simulated:
    """What a backend answers: a report a plan; sentences for people."""

    reports: list[StepReport]
    timeline: Timeline | None = None
    notes: tuple[str, ...] = ()


def by_events(
    jobs: list[LoadedPlan], conditions: Conditions | None = None, *, seed: int = 0, steps: int = 1
) -> Simulated:
    """Run all jobs together."""
    import numpy as np

    from strata.simulate.events.run import simulate
    from strata.simulate.events.work import AS_PLANNED, Job

    running = [Job(job.name, job.model, job.plan) for job in jobs]
    outcome = simulate(running, rng=np.random.default_rng(seed), steps=steps, conditions=conditions or AS_PLANNED)
    return Simulated(list(outcome.reports), outcome.timeline)


def by_analytic(jobs: list[LoadedPlan], *, has_timeline: bool = False) -> Simulated:
    """Compute each job alone; the timeline is that of the events, which take as long where no link is shared."""
    import numpy as np

    from strata.simulate.events.run import simulate
    from strata.simulate.events.work import Job
    from strata.simulate.timeline import Timeline
    from strata.workload.job import Schedule

    reports = [job.model.details([job.plan])[0] for job in jobs]
    if not has_timeline:
        return Simulated(reports)
    if any(job.plan.schedule is Schedule.INTERLEAVED for job in jobs):
        # Its time is known in closed form only, which the events do not meet to the last digit.
        raise UsageError("the analytic backend cannot draw an interleaved schedule", hint="--backend events")
    timelines = [
        simulate(
            [Job(job.name, job.model, job.plan)], rng=np.random.default_rng(0), are_links_shared=False
        ).timeline
        for job in jobs
    ]
    lanes = tuple(lane for timeline in timelines for lane in timeline.lanes)
    return Simulated(reports, Timeline(lanes, tuple(span for timeline in timelines for span in timeline.spans)))


def by_compat(jobs: list[LoadedPlan], links: str | None) -> Simulated:
    """Compute what ASTRA-sim would say of each job, without its binary."""
    from strata.simulate.astra.lower import Aggregation
    from strata.simulate.compat.plan_step import astra_compatible_plan

    reports, notes = [], list[str]()
    for job in jobs:
        aggregation = Aggregation(links) if links else None
        step_s, lowered = astra_compatible_plan(job.model, job.plan, aggregation=aggregation)
        reports.append(job.model.reports([job.plan])[0].lasting(step_s))
        notes += lowered.notes
    return Simulated(reports, notes=tuple(notes))


def by_astra(jobs: list[LoadedPlan], links: str | None) -> Simulated:
    """Let the user's ASTRA-sim run the one job."""
    from strata.fleet.schema import load_dynamics
    from strata.simulate.astra.discover import find
    from strata.simulate.astra.lower import Aggregation
    from strata.simulate.astra.referee import simulate_astra

    job = _only(jobs)
    result = simulate_astra(
        job.model,
        job.plan,
        binaries=find(os.environ),
        environment=os.environ,
        aggregation=Aggregation(links) if links else None,
        links_vary=load_dynamics(job.fleet) is not None,
    )
    report = job.model.reports([job.plan])[0].lasting(result.step_s)
    return Simulated([report], notes=(f"by ASTRA-sim, {result.backend} backend", *result.notes))


def by_all(jobs: list[LoadedPlan], links: str | None, folder: Path) -> list[dict[str, Any]]:
    """Return a row a backend; writes them and ASTRA-sim's ranks as CSV, its files and logs beside."""
    from strata.files import write_text
    from strata.simulate.astra.discover import find
    from strata.simulate.astra.lower import Aggregation
    from strata.simulate.astra.referee import compare, ranks_csv

    job = _only(jobs)
    entries = [
        _row("analytic", lambda: by_analytic(jobs)),
        _row("events", lambda: by_events(jobs)),
        _row("astra-compatible", lambda: by_compat(jobs, links)),
    ]
    referee = compare(
        job.model,
        job.plan,
        binaries=find(os.environ),
        environment=os.environ,
        aggregation=Aggregation(links) if links else None,
        keep=folder,
    )
    for row in referee:
        step_s = row.result.step_s if row.result else None
        message = "; ".join(row.result.notes) if row.result else row.message
        entries.append({"backend": f"astra-{row.backend}", "step_time_s": step_s, "message": message})
    base_s = job.model.reports([job.plan])[0].step_time_s
    for entry in entries:
        entry["ratio"] = None if entry["step_time_s"] is None else entry["step_time_s"] / base_s
    table = io.StringIO()
    writer = csv.DictWriter(table, ["backend", "step_time_s", "ratio", "message"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    write_text(folder / "backends.csv", table.getvalue())
    write_text(folder / "ranks.csv", ranks_csv(row.result for row in referee if row.result))
    return entries


def _row(name: str, answer: Callable[[], Simulated]) -> dict[str, Any]:
    """Return one backend's step time, or why it has none."""
    try:
        return {"backend": name, "step_time_s": answer().reports[0].step_time_s, "message": ""}
    except StrataError as error:
        return {"backend": name, "step_time_s": None, "message": str(error)}


def _only(jobs: list[LoadedPlan]) -> LoadedPlan:
    if len(jobs) > 1:
        raise UsageError("ASTRA-sim runs one job at a time", hint="--backend events for several")
    return jobs[0]
