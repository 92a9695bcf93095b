"""`strata export`: write the files that launch a plan, or that simulate it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, rows
from strata.errors import BadFile, UsageError
from strata.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from strata.serving.planning.planfile import ServingPlan
    from strata.training.export.launch import LaunchFiles
    from strata.training.plan.planfile import SavedPlan


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(["torchrun", "megatron", "kueue", "chakra", "vllm", "sglang"]),
    required=True,
    help="What will launch it; chakra: traces for ASTRA-sim; vllm and sglang: serving plans.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/export"), show_default=True, help="Folder to fill."
)
@click.option(
    "--aggregate",
    type=click.Choice(["min", "mean", "max"]),
    help="chakra: what stands for unlike links (min: the least favourable).",
)
@output_option
def export(plan: Path, target: str, out: Path, aggregate: str | None, output: str) -> None:
    """Write launch files whose ranks run exactly what PLAN says; PLAN is what `strata plan` saved.

    \b
    strata export plan.json --to torchrun
    strata export plan.json --to kueue --out launch/
    strata export plan.json --to chakra --aggregate min
    strata export serving-plan.json --to vllm
    """
    if aggregate and target != "chakra":
        raise UsageError("--aggregate is for --to chakra", hint="leave it out: a launch has every link")
    kind, write = _TARGETS[target]
    saved = _read(plan, kind, target)
    data, show = write(saved, target, out, aggregate)
    for note in data["notes"]:
        click.echo(f"note: {note}", err=True)
    emit(data, output, show)


def _read(path: Path, kind: str, target: str) -> Any:
    """Read a plan of a kind. Raises UsageError where it is one of the other kind, BadFile where it is none."""
    from strata.files import read_document
    from strata.serving.planning.planfile import read_serving_plan
    from strata.training.plan.planfile import read_plan

    try:
        return read_serving_plan(path) if kind == "ServingPlan" else read_plan(path)
    except BadFile:
        data = read_document(path).data
        given = data.get("kind") if isinstance(data, dict) else None
        launched = {"ServingPlan": ("serving", "vllm"), "TrainingPlan": ("training", "torchrun")}
        if isinstance(given, str) and given in launched and given != kind:
            raise UsageError(
                f"{path}: a {launched[given][0]} plan, and --to {target} launches {launched[kind][0]} plans",
                hint=f"--to {launched[given][1]}",
            ) from None
        raise


def _launch(
    saved: SavedPlan, target: str, out: Path, _aggregate: str | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    launch = _render(saved, target)
    _write(out, launch.files, stale="launch-*.sh")
    data = {
        "plan": saved.name,
        "target": target,
        "folder": str(out),
        "num_ranks": len(launch.ranks.ranks),
        "num_nodes": len(launch.ranks.nodes()),
        "files": list(launch.files),
        "notes": list(launch.notes),
    }
    last = f"{len(launch.ranks.ranks)} ranks on {len(launch.ranks.nodes())} nodes"
    return data, lambda console: _show(console, launch.files, out, last)


def _serve(
    saved: ServingPlan, target: str, out: Path, _aggregate: str | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    from strata.serving.export import sglang, vllm

    engine = (vllm if target == "vllm" else sglang).render(saved)
    _write(out, engine.files, stale="pipeline-*.sh")
    num_nodes = sum(len(pipeline.stages) for pipeline in saved.pipelines)
    data = {
        "plan": saved.name,
        "target": target,
        "folder": str(out),
        "num_pipelines": len(saved.pipelines),
        "num_nodes": num_nodes,
        "files": list(engine.files),
        "notes": list(engine.notes),
    }
    last = (
        f"{len(saved.pipelines)} pipelines on {num_nodes} nodes\n"
        f"next: run each script on its node, then {out / 'gateway.sh'}, which puts\n"
        "      strata serve gateway --backend URL ... before all pipelines"
    )
    return data, lambda console: _show(console, engine.files, out, last)


def _render(saved: SavedPlan, target: str) -> LaunchFiles:
    from strata.training.export import kueue, megatron, torchrun
    from strata.training.export.ranks import Layout

    layout = Layout.of(saved)
    if target == "megatron":
        return megatron.render(layout, saved.job)
    return torchrun.render(layout) if target == "torchrun" else kueue.render(layout, saved.job.name)


def _chakra(
    saved: SavedPlan, _target: str, out: Path, aggregate: str | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    from strata.simulate.astra.files import write_traces
    from strata.simulate.astra.lower import Aggregation
    from strata.training.export import chakra

    chakra_files = chakra.render(saved, aggregation=Aggregation(aggregate) if aggregate else None)
    for name, text in chakra_files.files.items():
        write_text(out / name, text)
    write_traces(out, chakra_files.traces)
    sizes = {name: len(text.encode()) for name, text in chakra_files.files.items()}
    sizes |= {name: len(data) for name, data in chakra_files.traces.items()}
    data = {
        "plan": saved.name,
        "target": "chakra",
        "folder": str(out),
        "num_ranks": len(chakra_files.traces),
        "files": list(sizes),
        "notes": list(chakra_files.notes),
    }

    def show(console: Console) -> None:
        body = [(str(out / name), str(size)) for name, size in sizes.items()]
        console.print(rows(["file", "bytes"], body, right=[1]))
        console.print(f"{len(chakra_files.traces)} ranks, {sum(map(bool, chakra_files.labels))} of them at work")

    return data, show


_TARGETS: Final[Mapping[str, tuple[str, Callable[..., Any]]]] = {
    "torchrun": ("TrainingPlan", _launch),
    "megatron": ("TrainingPlan", _launch),
    "kueue": ("TrainingPlan", _launch),
    "chakra": ("TrainingPlan", _chakra),
    "vllm": ("ServingPlan", _serve),
    "sglang": ("ServingPlan", _serve),
}
"""What each target launches, and what writes its files: their data, and how to show it."""


def _write(out: Path, files: Mapping[str, str], *, stale: str) -> None:
    for name, text in files.items():
        write_text(out / name, text)
    others = sorted(path.name for path in out.glob(stale) if path.name not in files)
    if others:
        click.echo(f"note: {out} also has files of another export: {', '.join(others)}", err=True)


def _show(console: Console, files: Mapping[str, str], out: Path, last: str) -> None:
    body = [(str(out / name), str(len(text.encode()))) for name, text in files.items()]
    console.print(rows(["file", "bytes"], body, right=[1]))
    console.print(last, soft_wrap=False)
