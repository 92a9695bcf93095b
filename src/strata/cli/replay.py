"""`strata replay`: the scheduler's loop in virtual time, over links that follow a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strata.cli.completing import FLEET
from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import PATH, TIME, choice
from strata.tables import Shown, rows


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--links", required=True, type=PATH, help="Trace: time_s, and a column A>B of factors a link.")
@click.option(
    "--policy", type=choice("hi-ppo", "exact", "hysteresis", "never"), default="hi-ppo", help="Who decides."
)
@click.option("--interval", type=TIME, default="300s", help="From one decision to the next.")
@output_option
def replay(fleet: str, jobs: tuple[str, ...], links: Path, policy: str, interval: float, output: str) -> int:
    """Run a JOB on FLEET in virtual time while its links follow a trace; the loop is that of the scheduler.

    A trace has a column time_s and one of factors for each directed link A>B; a link without a column stays as
    the fleet file has it, a factor of 0 is an outage. `kept` is tokens trained over tokens at nominal links,
    restarts and moved weights paid. The fixed rules run in the same loop; clairvoyant knows the trace. The job
    trains as long as the trace lasts, on as many devices as its `run:` allows where it has one.

    Several JOBs, each with its `run:` block, are all submitted at the start and share devices and links.

    \b
    strata replay fleet.yaml job.yaml --links trace.csv
    strata replay seed llama-3.1-8b --links trace.csv --policy exact --interval 60s -o json

    Exits 3 where no plan of the job fits the fleet.
    """
    from strata.control.jobfile import read_job
    from strata.control.policies import PolicyName
    from strata.control.replay import ENDLESS, replay_job, replay_jobs
    from strata.control.state import JobSpec
    from strata.files import read_document
    from strata.fleet.dynamics.replay import read_replay
    from strata.fleet.schema import load_fleet
    from strata.workload.schema import load_job

    sites = load_fleet(fleet)
    trace = read_replay(links, links=[f"{a}>{b}" for a, b in sites.links], may_end_down=True)
    if len(jobs) > 1:
        specs = [read_job(job)[0] for job in jobs]
        several = replay_jobs(
            sites, specs, trace=trace, policy=PolicyName(policy), interval_s=interval, progress=progress
        )
        emit(several, output, _show_jobs(several))
        return 0
    spec = JobSpec(Path(jobs[0]).stem, load_job(jobs[0]), ENDLESS)
    if Path(jobs[0]).is_file() and read_document(jobs[0]).data.get("run"):
        spec = read_job(jobs[0])[0]
    data = replay_job(sites, spec, trace=trace, policy=PolicyName(policy), interval_s=interval, progress=progress)
    emit(data, output, _show(data, can_resume=spec.can_resume))
    return 0


def _show(data: dict[str, Any], *, can_resume: bool) -> Shown:
    from strata.units import show_time

    own = {"kept": data["kept"], "switches": data["switches"]}
    table = [(data["policy"], own), *((f"  {name}", rule) for name, rule in data["rules"].items())]
    yield rows(
        ("policy", "kept of nominal", "switches"),
        [(name, f"{rule['kept']:.2%}", str(rule["switches"])) for name, rule in table],
        right=(1, 2),
    )
    yield ""
    yield rows(
        ("at", "step", "plan"),
        [(show_time(item["at_s"]), show_time(item["step_time_s"]), item["plan"]) for item in data["timeline"]],
        right=(0, 1),
    )
    if not can_resume:
        yield "Replayed as if it could resume: without `run: {resume: true}` strata up keeps a job where it is."


def _show_jobs(data: dict[str, Any]) -> Shown:
    from strata.units import show_time

    yield rows(
        ("job", "phase", "steps", "attempts", "ended"),
        [
            (name, job["phase"], str(job["steps_done"]), str(job["attempts"]),
             "-" if job["ended_s"] is None else show_time(job["ended_s"]))
            for name, job in data["jobs"].items()
        ],
        right=(2, 3, 4),
    )  # fmt: skip
    yield ""
    changes = [(item["at_s"], name, item) for name, job in data["jobs"].items() for item in job["timeline"]]
    yield rows(
        ("at", "job", "step", "plan"),
        [
            (show_time(at_s), name, show_time(item["step_time_s"]), item["plan"])
            for at_s, name, item in sorted(changes, key=lambda change: change[:2])
        ],
        right=(0, 2),
    )
    for name, whys in data["refusals"].items():
        yield f"{name} can never run here:"
        yield from (f"  {why}" for why in whys)
