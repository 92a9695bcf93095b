"""`strata learn`: train Hi-PPO, see how good a policy is, and export one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.completing import FLEET
from strata.cli.output import console, emit, output_option, progress
from strata.cli.parameters import NATURAL, POSITIVE, Finite, OutputFile, Whole, choice
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.learning.checkpoint import TrainingRun
    from strata.learning.learner import Progress


@click.group()
def learn() -> None:
    """Train, evaluate and export Hi-PPO, the learned scheduler."""


@learn.command(short_help="Train a policy: imitation of exact solutions, then PPO.")
@click.option(
    "--config", type=click.Path(), help="A YAML file of kind HiPpoTraining instead of the bundled recipe."
)
@click.option("--workers", type=Whole(1, 1024), default=1, help="More than 1: on Ray.")
@click.option("--seed", type=NATURAL, help="Random seed instead of the file's.")
@click.option("--out", type=click.Path(file_okay=False), default="hi-ppo", help="Folder for the checkpoint.")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint in --out.")
@click.option("--minutes", type=Finite(min=0, min_open=True), help="Stop after this time.")
@click.option("--updates", type=POSITIVE, help="Stop after this many updates instead of the file's.")
@click.option(
    "--device",
    type=choice("auto", "cpu", "cuda"),
    default="auto",
    help="Where to learn; auto: CUDA where there is a device.",
)
@click.option(
    "--world", type=choice("astra"), help="Learn in strata/AstraSim-v0 alone, and write CSV files to --out."
)
@click.option(
    "--backend", "backends", multiple=True, type=choice("analytic", "events", "aware", "unaware", "ns3"),
    help="Of --world astra: learn in the first, evaluate in all; repeatable. Without: unaware, then aware.",
)  # fmt: skip
@click.option("--fleet", type=FLEET, help="Of --world astra: a fleet file or a bundled fleet; without: seed.")
@click.option("--model", help="Of --world astra: a model's name or config.json; without: llama-3.1-70b.")
@output_option
def train(
    config: str | None,
    workers: int,
    seed: int | None,
    out: str,
    resume: bool,
    minutes: float | None,
    updates: int | None,
    device: str,
    world: str | None,
    backends: tuple[str, ...],
    fleet: str | None,
    model: str | None,
    output: str,
) -> None:
    """Train a policy: warm start by imitation of exact solutions, then PPO.

    After every round of updates the policy is evaluated on tables that no training sees; --out/checkpoint.pt
    holds the best policy so far and what --resume needs, also after Ctrl-C. With one worker on a CPU the same seed
    gives the same weights. --workers plays on Ray, on this machine or the cluster of RAY_ADDRESS. --resume goes on
    from the last evaluation; of a --config then only `updates` and `patience` count.

    With --world astra nothing is imitated: PPO begins with the untrained policy, on one CPU worker. The better of
    the two is written to --out/policy.onnx, what rules earn in held-out episodes to --out/astra.csv, side by side
    for each backend, and every step to --out/astra_BACKEND.csv.

    \b
    strata learn train --minutes 10 --out out/learn
    strata learn train --world astra --backend unaware --backend aware --out out/astra
    """
    from dataclasses import replace

    from strata.errors import need

    need("torch", extra="train")
    only_astra = {"--backend": backends, "--fleet": fleet, "--model": model}
    no_astra = {
        "--config": config,
        "--workers": workers > 1,
        "--resume": resume,
        "--device cuda": device == "cuda",
    }
    for option, is_given in (no_astra if world else only_astra).items():
        if is_given:
            raise click.UsageError(f"{option} is {'not ' if world else 'only '}for --world astra")
    if world:
        from strata.cli.learn_astra import train_in_astra

        train_in_astra(
            backends, fleet=fleet, model=model, seed=seed, out=Path(out), minutes=minutes, updates=updates,
            output=output,
        )  # fmt: skip
        return
    if workers > 1:
        need("ray", extra="train")
    from strata.learning.checkpoint import read_checkpoint
    from strata.learning.learner import CHECKPOINT
    from strata.learning.learner import learn as run_learning
    from strata.learning.schema import RECIPE, load_learning

    if resume and seed is not None:
        raise click.UsageError("--resume continues with the seed the run began with: leave out --seed")
    file = Path(out) / CHECKPOINT
    settings = read_checkpoint(file).learning if resume and not config else load_learning(config or RECIPE)
    settings = replace(settings, seed=settings.seed if seed is None else seed, updates=updates or settings.updates)
    try:
        with _reporting() as report:
            run = run_learning(
                settings,
                Path(out),
                resume=resume,
                device=device_of(device),
                workers=workers,
                minutes=minutes,
                report=report,
            )
    except KeyboardInterrupt:
        kept = f"the best policy so far is in {file}" if file.exists() else "nothing was saved"
        click.echo(f"interrupted: {kept}", err=True)
        raise click.exceptions.Exit(130) from None
    best = run.best_point
    answer: dict[str, Any] = {
        "checkpoint": str(file), "ended": run.ended, "device": run.device_name, "workers": run.workers,
        "seed": run.learning.seed, "updates": run.update, "steps": run.steps, "elapsed_s": run.elapsed_s,
        "best": {
            "update": best.update, "mean_gap": best.mean_gap, "worst_gap": best.worst_gap, "closed": best.closed,
            "worlds": best.worlds,
        },
    }  # fmt: skip
    emit(answer, output, _show_run(run, str(file)))


def _show_run(run: TrainingRun, file: str) -> Shown:
    best = run.best_point
    yield (
        f"{run.update} updates, {run.steps:,} steps in {run.elapsed_s / 60:.1f} min on {run.device_name}; "
        f"ended by {run.ended}"
    )
    yield (
        f"best after {best.update} updates: gap to the exact solution {best.mean_gap:.2%} on average, "
        f"{best.worst_gap:.2%} at worst; {best.closed:.0%} of what it wins over the myopic rule"
    )
    if run.learning.worlds:
        yield f"in simulated worlds {best.worlds:+.2%} against the better fixed rule in each"
    yield f"next: strata learn export {file} --out policy.onnx"


@learn.command(short_help="Compare a policy with fixed rules and exact bounds.")
@click.argument("policy", type=click.Path(), required=False)
@click.option("--domains", default="4,8,16,32", help="Numbers of domains of the simulated fleets.")
@click.option("--tables", type=POSITIVE, default=32, help="Number of held-out tables.")
@click.option("--instances", type=POSITIVE, default=2, help="Number of fleets of each size.")
@click.option(
    "--worlds", type=choice("none", "few", "all"), default="few",
    help="Worlds of the headroom: none; those of some minutes; all, to 16 jobs and 32 domains.",
)  # fmt: skip
@output_option
def evaluate(policy: str | None, domains: str, tables: int, instances: int, worlds: str, output: str) -> None:
    """Compare POLICY (ONNX; default: the bundled one) with fixed rules and exact bounds.

    On held-out tables of 3 to 5 domains, where the exact solution (vi) is known, and on simulated fleets of the
    sizes in --domains, where it is not. Figures are rewards per step; training saw none of these. Then the
    headroom: worlds of one and of several jobs, what rules earn there, what a search reaches that foresees all,
    and what no rule earns more than.

    \b
    strata learn evaluate
    strata learn evaluate policy.onnx --domains 8 -o json
    strata learn evaluate --worlds all
    """
    import numpy as np

    from strata.evaluation.headroom import measure
    from strata.evaluation.replan_ladder import by_domains, on_tables
    from strata.training.hi_ppo.policy import load_policy

    sizes = _sizes(domains)
    chosen = load_policy(policy)
    for note in chosen.notes:
        click.echo(f"note: {note}", err=True)
    with progress("held-out tables", total=tables) as advance:
        ladder = on_tables(chosen.choose, tables, advance=advance)
    with progress("simulated fleets", total=len(sizes)) as advance:
        fleets = []
        for size in sizes:
            fleets.append(by_domains(chosen.choose, size, instances=instances, rng=np.random.default_rng(size)))
            advance(len(fleets))
    answer = {
        "policy": {"file": chosen.file, "seed": chosen.record.get("seed")},
        "tables": ladder,
        "domains": fleets,
    }
    shown = _show_ladder(ladder, fleets)
    if worlds != "none":
        with progress("headroom", total=1) as advance:
            headroom = measure(chosen, is_whole=worlds == "all", advance=advance)
        answer |= headroom
        shown = chain(shown, _show_headroom(headroom))
    emit(answer, output, shown)


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 2 <= int(part) <= 32 for part in parts):
        raise click.BadParameter(f"{text!r}: give sizes between 2 and 32, such as 4,8", param_hint="--domains")
    return [int(part) for part in parts]


OF = {"jobs": " jobs", "domains": " domains", "name": ""}


def _show_headroom(headroom: dict[str, Any]) -> Shown:
    worlds = headroom["worlds"]
    names = list(worlds[0]["rules"])
    body = [
        [world["name"], str(world["jobs"]), str(world["domains"]),
         *(f"{world['rules'][name]['mean']:.3f}" for name in names),
         f"{world['foreseen']:.3f}", f"{world['bound']:.3f}"]
        for world in worlds
    ]  # fmt: skip
    short = {"hysteresis": "hyst", "hysteresis_tuned": "hyst*", "mpc_tuned": "mpc*", "exact_every_time": "exact"}
    headers = ["world", "jobs", "domains", *(short.get(name, name) for name in names), "foreseen", "bound"]
    yield ""
    yield rows(headers, body, right=range(1, len(headers)), title="headroom: reward a job and step")
    yield f"hyst: margin {headroom['fixed_margin']:g}, the best over all worlds; *: the best setting in each world"
    yield "exact: the best plan of the moment, every time"
    yield "untrained: hysteresis of margin 0.5 on what hi_ppo sees; network: the policy's own picks"
    yield "hi_ppo: the better of both by the policy's record, held to rollouts; foreseen: a search that knows all"
    families = headroom["families"]
    body = [
        [" ".join(str(each[key]) + after for key, after in OF.items() if key in each), str(each["worlds"]),
         *(f"{each[who]:+.1%}" for who in ("untrained", "network", "hi_ppo")), each["best"]]
        for each in families
    ]  # fmt: skip
    headers = ["worlds of", "count", "untrained", "network", "hi_ppo", "best"]
    yield ""
    yield rows(
        headers, body, right=range(1, 5), title="above the better of never and hysteresis, by jobs, domains, kind"
    )
    for end, key in (("the bound", "share_of_headroom_closed"), ("foreseen", "share_of_foreseen_closed")):
        for who, closed in (("hi_ppo", headroom[key]), ("untrained", headroom["untrained"][key])):
            if closed["mean"] is None:
                yield f"{who}: no two worlds have headroom"
                continue
            low, high = (f"{closed[side]:.0%}" for side in ("low", "high"))
            yield (
                f"{who} closes {closed['mean']:.0%} ({low} to {high}) of what lies between the better of never "
                f"and hysteresis and {end}, mean over worlds where that is 2 % of it or more"
            )


def _show_ladder(ladder: dict[str, Any], fleets: list[dict[str, Any]]) -> Shown:
    body = [
        [name, f"{rung['reward']:.4f}", f"{rung['mean_gap']:.2%}", f"{rung['worst_gap']:.2%}"]
        for name, rung in ladder["rungs"].items()
    ]
    title = f"{ladder['tables']} held-out tables: reward a step, gap to vi"
    yield rows(("rule", "reward", "mean gap", "worst gap"), body, right=range(1, 4), title=title)
    if fleets:
        names = list(fleets[0]["rungs"])
        body = [[name, *(f"{fleet['rungs'][name]:.4f}" for fleet in fleets)] for name in names]
        headers = ["rule", *(f"{fleet['domains']} domains" for fleet in fleets)]
        yield ""
        yield rows(headers, body, right=range(1, len(headers)), title="simulated fleets: reward a step")


@learn.command(short_help="Write the best policy of a CHECKPOINT as ONNX.")
@click.argument("checkpoint", type=click.Path())
@click.option(
    "--out",
    type=OutputFile(),
    default="policy.onnx",
    help="File for the policy; its training record is written beside it.",
)
@click.option(
    "--commit",
    default="",
    show_default=False,
    help="Commit of the source code it was trained with, for the record.",
)
@click.option("--most-domains", type=NATURAL, default=0, help="Largest fleet it was evaluated on.")
@output_option
def export(checkpoint: str, out: Path, commit: str, most_domains: int, output: str) -> None:
    """Write the best policy of a CHECKPOINT as ONNX, and its training record beside it.

    `strata plan train --planner hi-ppo --policy` reads it, with onnxruntime alone.

    \b
    strata learn export out/learn/checkpoint.pt --out policy.onnx
    """
    from datetime import UTC, datetime

    from strata.errors import need
    from strata.files import write_json

    need("torch", extra="train")
    from strata.learning.checkpoint import read_checkpoint, training_record
    from strata.learning.export import export as export_network
    from strata.learning.gain import gains

    run = read_checkpoint(Path(checkpoint))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    added = gains(run)
    record = training_record(run, date=date, gains=added, commit=commit, most_domains=most_domains)
    beside = out.with_suffix(".json")
    export_network(run.network(), str(out))
    write_json(beside, record)
    answer = {
        "policy": str(out), "record": str(beside), "evaluation": record["evaluation"], **added
    }  # fmt: skip
    lines = [f"{out}, and the record of its training in {beside}"]
    for stage, gain in (("imitation", added["imitation_gain"]), ("PPO's updates", added["ppo_gain"])):
        if gain is not None:
            low, high = (f"{gain[end]:+.2%}" for end in ("low", "high"))
            lines.append(f"what {stage} added, held out: {gain['mean']:+.2%} ({low} to {high})")
    emit(answer, output, lines)


def device_of(device: str) -> str:
    """Return "cpu" or "cuda"; "auto" is CUDA where there is a device. Raises MissingPart where there is none."""
    import torch

    from strata.errors import MissingPart

    has_cuda = bool(torch.cuda.is_available())
    if device == "cuda" and not has_cuda:
        raise MissingPart("there is no CUDA device here, or torch was built without CUDA", hint="--device cpu")
    return "cuda" if has_cuda and device != "cpu" else "cpu"


@contextmanager
def _reporting() -> Iterator[Callable[[Progress], None]]:
    """Show a bar with the figures of the run on stderr; without a terminal, a line an evaluation."""
    if not sys.stderr.isatty():
        yield _line()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(task, description=_words(step), completed=step.done, total=step.of)


def _line() -> Callable[[Progress], None]:
    last: list[object] = [None]

    def report(progress: Progress) -> None:
        mark = (progress.stage, progress.closed)
        if mark != last[0]:
            last[0] = mark
            click.echo(f"{progress.done}/{progress.of} {_words(progress)}", err=True)

    return report


def _words(progress: Progress) -> str:
    if progress.closed is None:
        return progress.stage
    rate = f"{progress.steps_per_s:,.0f} steps/s"
    return f"{progress.stage}: return {progress.reward:.4f} a step, gap closed {progress.closed:.1%}, {rate}"
