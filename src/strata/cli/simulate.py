"""`strata simulate`: how long the step of a plan takes, by the backend one chooses, alone or beside other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import NATURAL, PATH, POSITIVE, TIME_OR_0, OutputFile, choice, typed
from strata.errors import UsageError
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.api.backends import Simulated
    from strata.api.loaded import LoadedPlan
    from strata.simulate.events.work import Conditions
    from strata.simulate.timeline import Timeline

Data = dict[str, Any]

_EVENTS_ONLY: Final = ("steps", "jitter", "fail", "vary", "checkpoint_steps", "restart")


@click.command()
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...", type=PATH)
@click.option(
    "--backend", type=choice("analytic", "events", "astra"), default="events", help="What computes the time."
)
@click.option("--compat", type=choice("astra"), help="With --backend analytic: what ASTRA-sim would say.")
@click.option("--compare", is_flag=True, help="Also ask every backend, as planned; tables and logs go to --out.")
@click.option("--seed", default=0, type=NATURAL, help="Random seed.")
@click.option("--steps", default=1, type=POSITIVE, help="Steps of each job.")
@click.option("--jitter", default="0%", help="Spread of each forward's and backward's time.")
@click.option("--fail", multiple=True, metavar="WHAT@WHEN", help="device:DOMAIN@90s, or link:A-B@10s+5s.")
@click.option(
    "--vary", multiple=True, metavar="DYNAMICS",
    help="How links change from step to step: trace.csv, uniform:30%, ou:20%/10min, regimes:90%/5min, precursor, "
    "diurnal:40% or outage:6h/10min; several multiply."
)  # fmt: skip
@click.option("--checkpoint-steps", default=1, type=POSITIVE, help="A checkpoint after so many steps.")
@click.option("--restart", type=TIME_OR_0, default="2min", help="From a device's failure until all runs again.")
@click.option("--links", type=choice("min", "mean", "max"), help="For ASTRA-sim: what stands for unlike links.")
@click.option("--timeline", type=OutputFile(), help="Write the timeline for Perfetto (JSON).")
@click.option("--svg", type=OutputFile(), help="Write the timeline as a picture.")
@click.option("--out", type=PATH, default=Path("out/simulate"), help="Folder of --compare.")
@click.pass_context
@output_option
def simulate(
    context: click.Context, plans: tuple[Path, ...], backend: str, compat: str | None, compare: bool, seed: int,
    steps: int, jitter: str, fail: tuple[str, ...], vary: tuple[str, ...], checkpoint_steps: int, restart: float,
    links: str | None, timeline: Path | None, svg: Path | None, out: Path, output: str
) -> int:  # fmt: skip
    """Simulate one step (or --steps) of each PLAN, which is what `strata plan train --save` wrote.

    Several plans run side by side on one fleet and share its links. Without contention, jitter and failures the
    events backend gives what the analytic one does. Links change after every step's time, as --vary says or
    else the `dynamics` of the fleet file. A trace has a column time_s and one of factors for each link A>B.

    \b
    strata simulate plan.json --svg step.svg
    strata simulate a.json b.json --jitter 5% --seed 1
    strata simulate plan.json --steps 20 --fail device:West@90s --checkpoint-steps 10
    strata simulate plan.json --steps 100 --vary outage:1h/2min --vary diurnal:40%
    strata simulate plan.json --backend astra --compare

    Exits 3 where a plan does not fit memory, or does not work through its job's batch.
    """
    from strata.api.backends import by_all, by_analytic, by_astra, by_compat, by_events
    from strata.api.loaded import crowded, load, unfit

    _check_options(context, backend, compat)
    with progress("reading"):
        jobs = load(plans)
    with progress("simulating"):
        if backend == "events":
            conditions = _conditions(
                jobs, jitter=jitter, fail=fail, vary=vary, checkpoint_steps=checkpoint_steps, restart=restart
            )
            answer = by_events(jobs, conditions, seed=seed, steps=steps)
            notes = _unseen(jobs, conditions, answer, steps=steps, fail=fail, vary=vary)
            answer = replace(answer, notes=tuple(notes))
        elif backend == "astra":
            answer = by_astra(jobs, links)
        elif compat:
            answer = by_compat(jobs, links)
        else:
            answer = by_analytic(jobs, has_timeline=bool(timeline or svg))
    _write(answer.timeline, timeline, svg, title=", ".join(job.name for job in jobs))
    data: Data = {"jobs": [{"name": job.name, **r.to_dict()} for job, r in zip(jobs, answer.reports, strict=True)]}
    if compare:
        data["backends"] = by_all(jobs, links, out)
    faults = unfit(jobs)
    for note in (*faults, *crowded(jobs), *answer.notes):
        click.echo(f"note: {note}", err=True)
    shown = data if len(jobs) > 1 or compare else answer.reports[0].to_dict()
    emit(shown, output, _show(jobs, answer, data))
    return 3 if faults else 0


def _check_options(context: click.Context, backend: str, compat: str | None) -> None:
    """Refuse options that the backend would not read."""
    if compat and backend != "analytic":
        raise UsageError(f"--compat {compat} is a way to compute", hint=f"--backend analytic --compat {compat}")
    given = typed(context, *_EVENTS_ONLY)
    if given and backend != "events":
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"the {backend} backend knows no {names}", hint="--backend events")
    if (compat or backend == "astra") and (context.params["timeline"] or context.params["svg"]):
        raise UsageError("ASTRA-sim leaves no timeline", hint="--backend events")


def _conditions(
    jobs: list[LoadedPlan],
    *,
    jitter: str,
    fail: tuple[str, ...],
    vary: tuple[str, ...],
    checkpoint_steps: int,
    restart: float,
) -> Conditions:
    from strata.fleet.dynamics.parse import parse_process
    from strata.fleet.dynamics.process import Product
    from strata.fleet.schema import load_dynamics
    from strata.simulate.events.work import Conditions, LinkVariation, parse_failure

    model = jobs[0].model
    interval_s, link_variation = model.reports([jobs[0].plan])[0].step_time_s, None
    if vary:
        links = [f"{source}>{dest}" for source, dest in model.fleet.links]
        link_variation = LinkVariation(interval_s, Product(tuple(parse_process(v, links=links) for v in vary)))
    elif dynamics := load_dynamics(jobs[0].fleet):
        link_variation = LinkVariation(interval_s, *dynamics)
    failures = tuple(parse_failure(text, model.fleet) for text in fail)
    return Conditions(_jitter(jitter), link_variation, failures, checkpoint_steps, restart)


def _unseen(
    jobs: list[LoadedPlan],
    conditions: Conditions,
    answer: Simulated,
    *,
    steps: int,
    fail: tuple[str, ...],
    vary: tuple[str, ...],
) -> Iterator[str]:
    """Say what the figures do not show: that links vary unasked, and which failures no plan could feel."""
    from strata.simulate.events.work import DeviceFailure
    from strata.units import show_time

    if conditions.link_variation and not vary:
        yield f"links vary as {jobs[0].fleet} says (`dynamics`), so a step takes more or less than planned"
    used = {name for job in jobs for name in job.plan.domains}
    ends_s = steps * max(report.step_time_s for report in answer.reports)
    for text, failure in zip(fail, conditions.failures, strict=True):
        touched = {failure.domain} if isinstance(failure, DeviceFailure) else {failure.source, failure.dest}
        if not touched <= used:
            yield f"{text} changed nothing: no plan uses it"
        elif failure.at_s >= ends_s:
            yield f"{text} changed nothing: the last step ended at {show_time(ends_s)}"


def _jitter(text: str) -> float:
    from strata import units

    value = units.parse_share(text)
    # Without a percent sign only a share below 1 is clear: `5` may mean 5 % or 500 %.
    if not 0 <= value <= 10 or (value >= 1 and not text.endswith("%")):
        raise UsageError(f"--jitter {text} is not a share", hint="--jitter 5%")
    return value


def _write(timeline: Timeline | None, trace: Path | None, svg: Path | None, *, title: str) -> None:
    if timeline is None:
        return
    from strata.simulate.chrome import write_trace
    from strata.simulate.svg import write_svg

    if trace:
        write_trace(timeline, trace)
    if svg:
        write_svg(timeline, svg, title=title)


def _show(jobs: list[LoadedPlan], answer: Simulated, data: Data) -> Shown:
    from strata.units import show_bytes, show_count, show_time, show_usd

    body = []
    for job, report in zip(jobs, answer.reports, strict=True):
        planned_s = job.model.reports([job.plan])[0].step_time_s
        cost = report.cost_usd_per_mtoken
        body.append([
            job.name, show_time(report.step_time_s), f"{report.step_time_s / planned_s:.3f}",
            show_count(report.tokens_per_s), f"{report.utilization:.1%}", show_bytes(report.wan_bytes_per_step),
            "-" if cost is None else show_usd(cost), str(report.trust)
        ])  # fmt: skip
    headers = ("job", "step", "vs planned", "tokens/s", "busy", "WAN a step", "$/Mtoken", "trust")
    yield rows(headers, body, right=range(1, 7))
    if "backends" in data:
        yield ""
        yield rows(("backend", "step", "vs analytic", ""), [
            [
                row["backend"],
                "-" if row["step_time_s"] is None else show_time(row["step_time_s"]),
                "-" if row["ratio"] is None else f"{row['ratio']:.3f}",
                row["message"]
            ]
            for row in data["backends"]
        ], right=(1, 2))  # fmt: skip
