"""`strata export`: write the files that launch a plan, or that simulate it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from strata.cli.output import emit, output_option, rows
from strata.errors import UsageError
from strata.files import write_text
from strata.training.planfile import read_plan

if TYPE_CHECKING:
    from rich.console import Console

    from strata.training.export.launch import LaunchFiles
    from strata.training.planfile import SavedPlan


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(["torchrun", "megatron", "kueue", "chakra"]),
    required=True,
    help="What will launch it; chakra: traces for ASTRA-sim.",
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
    """Write launch files whose ranks run exactly what PLAN says; PLAN is what `strata plan train` saved.

    \b
    strata export plan.json --to torchrun
    strata export plan.json --to kueue --out launch/
    strata export plan.json --to chakra --aggregate min
    """
    saved = read_plan(plan)
    if target == "chakra":
        _export_chakra(saved, out, aggregate, output)
        return
    if aggregate:
        raise UsageError("--aggregate is for --to chakra", hint="leave it out: a launch has every link")
    launch = _render(saved, target)
    for name, text in launch.files.items():
        write_text(out / name, text)
    for note in launch.notes:
        click.echo(f"note: {note}", err=True)
    stale = sorted(path.name for path in out.glob("launch-*.sh") if path.name not in launch.files)
    if stale:
        click.echo(f"note: {out} also has files of another export: {', '.join(stale)}", err=True)
    data = {
        "plan": saved.name,
        "target": target,
        "folder": str(out),
        "num_ranks": len(launch.ranks.ranks),
        "num_nodes": len(launch.ranks.nodes()),
        "files": list(launch.files),
        "notes": list(launch.notes),
    }
    emit(data, output, lambda console: _show(console, launch, out))


def _render(saved: SavedPlan, target: str) -> LaunchFiles:
    from strata.training.export import kueue, megatron, torchrun
    from strata.training.export.ranks import Layout

    layout = Layout.of(saved)
    if target == "megatron":
        return megatron.render(layout, saved.job)
    return torchrun.render(layout) if target == "torchrun" else kueue.render(layout, saved.job.name)


def _export_chakra(saved: SavedPlan, out: Path, aggregate: str | None, output: str) -> None:
    from strata.simulate.astra.files import write_traces
    from strata.simulate.astra.lower import Aggregation
    from strata.training.export import chakra

    found = chakra.render(saved, aggregation=Aggregation(aggregate) if aggregate else None)
    for name, text in found.files.items():
        write_text(out / name, text)
    write_traces(out, found.traces)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    sizes = {name: len(text.encode()) for name, text in found.files.items()}
    sizes |= {name: len(data) for name, data in found.traces.items()}
    data = {
        "plan": saved.name,
        "target": "chakra",
        "folder": str(out),
        "num_ranks": len(found.traces),
        "files": list(sizes),
        "notes": list(found.notes),
    }

    def show(console: Console) -> None:
        body = [(str(out / name), str(size)) for name, size in sizes.items()]
        console.print(rows(["file", "bytes"], body, right=[1]))
        console.print(f"{len(found.traces)} ranks, {sum(map(bool, found.labels))} of them at work")

    emit(data, output, show)


def _show(console: Console, launch: LaunchFiles, out: Path) -> None:
    console.print(rows(["file", "bytes"], [(str(out / name), str(len(text.encode()))) for name, text in
                                           launch.files.items()], right=[1]))  # fmt: skip
    console.print(f"{len(launch.ranks.ranks)} ranks on {len(launch.ranks.nodes())} nodes")
