"""`strata serve simulate`: arrivals, failures and joins played on a fleet, through the live scheduler."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.completing import FLEET, SERVING_JOB
from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import NATURAL, SECONDS, Finite, OutputFile, Quantity, choice, typed
from strata.errors import Infeasible, UsageError
from strata.names import closest
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.serving.live.config import SchedulerConfig
    from strata.serving.replay.fault_events import Kind
    from strata.workload.serving_job import ServingJob

Data = dict[str, Any]

_KINDS: Final[tuple[Kind, ...]] = ("kill", "leave", "join", "slow")
_SYNTHETIC: Final = ("burst", "swing", "period", "lengths", "system_prompts")
WARM_UP: Final = 0.1
"""Share of the time that is left out of the figures: queues start empty."""


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("job", type=SERVING_JOB)
@click.option(
    "--trace", type=click.Path(), help="Requests from a file: Azure's LLM inference trace, or BurstGPT (CSV)."
)
@click.option(
    "--speed",
    type=Finite(min=0, min_open=True),
    default=1.0,
    help="With --trace: how many times faster to play it.",
)
@click.option("--rate", type=Finite(min=0, min_open=True), help="Requests per second; the job's rate by default.")
@click.option(
    "--seconds", type=SECONDS, default="5min", help="How long requests keep arriving; with --trace: at most."
)
@click.option("--burst", type=Finite(min=0), default=1.0, help="Coefficient of variation of gaps; 1 is Poisson.")
@click.option("--swing", default="0%", help="How far the rate rises and falls around its mean.")
@click.option(
    "--period", type=SECONDS, default="24h", help="Period of that rise and fall, a sine that starts at the mean."
)
@click.option(
    "--lengths",
    type=choice("job", "conversation", "coding"),
    default="job",
    help="Lengths of prompts and outputs: the job's means, or those of Azure's services.",
)
@click.option(
    "--system-prompts",
    metavar="NxTOKENS",
    help="Each request begins with one of N shared prompts of TOKENS tokens, for example 8x1024.",
)
@click.option("--seed", default=0, type=NATURAL, help="Random seed.")
@click.option("--kill", multiple=True, metavar="NODE@TIME", help="A node dies.")
@click.option("--leave", multiple=True, metavar="NODE@TIME", help="A node leaves gracefully.")
@click.option(
    "--join", multiple=True, metavar="NODE@TIME", help="A node joins, or comes back; it is absent before."
)
@click.option("--slow", multiple=True, metavar="NODE@TIME*FACTOR", help="A node takes FACTOR times as long.")
@click.option(
    "--notice",
    type=Quantity("time", is_bare=True, never=math.inf),
    default="50ms",
    help="Time until a node's broken connections are noticed; `never`: only missing heartbeats show it.",
)
@click.option("--patience", type=SECONDS, help="Clients give up if there is no token within this time.")
@click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the scheduler, for example heartbeat_timeout=30.",
)
@click.option("--svg", type=OutputFile(), help="Write a picture of load and queue over time.")
@click.pass_context
@output_option
def simulate(
    context: click.Context, fleet: str, job: str, trace: str | None, speed: float, rate: float | None,
    seconds: float, burst: float, swing: str, period: float, lengths: str, system_prompts: str | None, seed: int,
    kill: tuple[str, ...], leave: tuple[str, ...], join: tuple[str, ...], slow: tuple[str, ...], notice: float,
    patience: float | None, config: tuple[str, ...], svg: Path | None, output: str
) -> int:  # fmt: skip
    """Play requests on the nodes of FLEET, which serve JOB: files, or names of bundled ones.

    The scheduler is the gateway's; only the nodes' work is a model's. The first tenth of the time is not counted.

    \b
    strata serve simulate aws10 serve-llama-3.1-70b --rate 28
    strata serve simulate aws10 serve-llama-3.1-405b --rate 4 --burst 3 --kill Oregon/0@2min
    strata serve simulate fleet.yaml job.yaml --trace AzureLLMInferenceTrace_conv.csv --speed 2

    Ctrl-C ends it with the report so far. Exits 3 where no plan serves the model.
    """
    from strata.cli.serve_arrivals import drawn, of_trace
    from strata.decision import worst
    from strata.fleet.schema import load_fleet
    from strata.serving.observe import nodes_of, unusable
    from strata.serving.planning.goal import Goal
    from strata.serving.planning.groups import best_groups
    from strata.serving.replay.fault_events import parse
    from strata.serving.replay.report import report
    from strata.serving.replay.setup import replay_job
    from strata.workload.serving_schema import load_serving_job

    serving_job = load_serving_job(job)
    there = load_fleet(fleet)
    nodes = nodes_of(there, groups=best_groups(there, serving_job, Goal.BOTH).sizes)
    for reason in unusable(there).values():
        click.echo(f"note: not used: {reason}", err=True)
    known = [node.node_id for node in nodes]
    wanted: dict[str, tuple[str, ...]] = {"kill": kill, "leave": leave, "join": join, "slow": slow}
    fault_events = [event for kind in _KINDS for text in wanted[kind] for event in parse(kind, text, known)]
    first = {event.node_id: event.kind for event in sorted(fault_events, key=lambda event: -event.at_s)}
    settings = _settings(serving_job, config)
    _check_options(context, trace)
    requests, end_s, source = (
        of_trace(trace, speed=speed, most_s=seconds if typed(context, "seconds") else math.inf)
        if trace
        else drawn(
            serving_job, rate=rate, end_s=seconds, burst=burst, swing=swing, period=period, lengths=lengths,
            system_prompts=system_prompts, seed=seed,
        )
    )  # fmt: skip
    replay, core = replay_job(
        nodes,
        serving_job,
        requests,
        config=settings,
        start_s=WARM_UP * end_s,
        end_s=end_s,
        fault_events=fault_events,
        absent=[name for name, kind in first.items() if kind == "join"],
        notice_s=notice,
        patience_s=math.inf if patience is None else patience,
    )
    with progress("requests", total=end_s) as advance:
        is_whole = replay.run(advance)
    status = core.status()
    replay.close()
    if not replay.has_planned:
        reasons = "; ".join(reason["text"] for reason in status["reasons"])
        text = f"{serving_job.name} cannot be served on {fleet}: {reasons or 'there are no nodes'}"
        raise Infeasible(text, hint=f"strata plan serve {fleet} {job} says what would help")
    trust = str(worst(*(serving_job.trust_of(node.accelerator, node.trust) for node in nodes)))
    data: Data = {
        "fleet": fleet, "job": serving_job.name, "arrivals": source, "seed": seed, "is_whole": is_whole,
        **report(replay, serving_job.demand, seed=seed), "trust": trust,
        "kpis": core.metrics.generate_report() | {"trust": trust},
    }  # fmt: skip
    if svg:
        from strata.files import write_text
        from strata.serving.replay.picture import picture

        write_text(svg, picture(replay.queue_samples, title=f"{serving_job.name} on {fleet}"))
    late = [f"--{event.kind} {event.node_id}" for event in fault_events if event.at_s > replay.clock.now]
    if late and is_whole:
        click.echo(f"note: all was over after {replay.clock.now:.0f} s, before {', '.join(late)}", err=True)
    if not is_whole:
        click.echo(
            f"interrupted after {replay.clock.now:.0f} s of {end_s:.0f} s; this is the report so far", err=True
        )
    emit(data, output, _show(data))
    return 0 if is_whole else 130


def _check_options(context: click.Context, trace: str | None) -> None:
    """Refuse options that would not be read."""
    unread = typed(context, *(("rate", *_SYNTHETIC) if trace else ("speed",)))
    if unread:
        names = ", ".join("--" + name.replace("_", "-") for name in unread)
        hint = "either --trace, or --rate and how requests come" if trace else "--trace FILE --speed 2"
        raise UsageError(f"{names} has no effect {'with' if trace else 'without'} --trace", hint=hint)


def _settings(job: ServingJob, pairs: tuple[str, ...]) -> SchedulerConfig:
    """Return the default settings with the job's strategies and what was given."""
    from dataclasses import fields

    from strata.serving.live.config import SchedulerConfig

    values: dict[str, Any] = {"allocation_strategy": job.strategy, "routing_strategy": job.routing}
    defaults = {field.name: field.default for field in fields(SchedulerConfig)}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if key not in defaults or not equals:
            close = closest(key, defaults)
            raise UsageError(
                f"--config {pair}: settings are {', '.join(defaults)}", hint=f"--config {close or 'KEY'}=VALUE"
            )
        if isinstance(defaults[key], str):
            if text not in (known := ("auto", "dp", "greedy" if key == "allocation_strategy" else "rr")):
                raise UsageError(
                    f"--config {pair}: {key} is one of {', '.join(known)}", hint=f"--config {key}=auto"
                )
            values[key] = text
            continue
        try:
            number = int(text) if isinstance(defaults[key], int) else float(text)
        except ValueError:
            number = -1
        if not 0 < number < math.inf:
            raise UsageError(f"--config {pair}: {text!r} is not a number above 0", hint=f"{key}={defaults[key]}")
        values[key] = number
    return SchedulerConfig(**values)


def _show(data: Data) -> Shown:
    from strata.cli.plan_table import show_reasons
    from strata.units import show_time

    counts, goals = data["requests"], data["goals"]
    yield (
        f"{counts['offered']} requests in {show_time(data['window_s'][1] - data['window_s'][0])}: "
        + ", ".join(f"{counts[name]} {name}" for name in counts if name != "offered" and counts[name])
    )
    yield from show_reasons(data["reasons"])
    for token, number in data["rejected_by_reason"].items():
        yield f"  rejected, {token}: {number}, the first: {data['rejected_first'][token]}"
    yield (
        f"offered {data['offered_per_s']:.2f}/s, served {_around(data['served_per_s'])}/s, "
        f"goodput {_around(data['goodput_per_s'])}/s, {data['tokens_per_s']:.0f} tokens/s"
    )
    if goals["ttft_s"] or goals["tpot_s"]:
        shown = [f"{key[:4].upper()} {show_time(goals[key])}" for key in ("ttft_s", "tpot_s") if goals[key]]
        yield f"goals ({', '.join(shown)}) met by {goals['met_share']:.1%}"
    names = {"ttft_s": "first token", "tpot_s": "token after it", "latency_s": "end to end", "wait_s": "in queue"}
    body = []
    for key, name in names.items():
        cells = [show_time(data[key][q]["estimate"]) if data[key] else "-" for q in ("p50", "p95", "p99")]
        body.append([name, *cells, _interval(data[key]["p99"]) if data[key] else "-"])
    yield ""
    yield rows(("time", "p50", "p95", "p99", "95 % interval of p99"), body, right=range(1, 5))
    yield ""
    balance, share = data["balance"], data["network"]["share_of_decode"]
    loads = [node["load"] for node in data["nodes"]]
    if balance["jain"] is not None:
        yield (
            f"slots in use {min(loads):.0%} to {max(loads):.0%} of nodes, balance {balance['jain']:.3f} (Jain), "
            f"hops {share or 0:.0%} of decoding"
        )
    cluster = data["cluster"]
    yield (
        f"plans: {cluster['plans']} · loads while serving: {cluster['loads_while_serving']} · "
        f"nodes out: {cluster['evicted']} · trust: {data['trust']}"
    )


def _around(figure: Data) -> str:
    return f"{figure['estimate']:.2f} ({figure['low']:.2f} to {figure['high']:.2f})"


def _interval(figure: Data) -> str:
    from strata.units import show_time

    return "-" if figure["low"] is None else f"{show_time(figure['low'])} to {show_time(figure['high'])}"
