"""`strata export`: write the files that launch a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from strata.cli.output import emit, output_option, rows
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
    type=click.Choice(["torchrun", "megatron", "kueue"]),
    required=True,
    help="What will launch it.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/export"), show_default=True, help="Folder to fill."
)
@output_option
def export(plan: Path, target: str, out: Path, output: str) -> None:
    """Write launch files whose ranks run exactly what PLAN says; PLAN is what `strata plan train` saved.

    \b
    strata export plan.json --to torchrun
    strata export plan.json --to kueue --out launch/
    """
    saved = read_plan(plan)
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


def _show(console: Console, launch: LaunchFiles, out: Path) -> None:
    console.print(rows(["file", "bytes"], [(str(out / name), str(len(text.encode()))) for name, text in
                                           launch.files.items()], right=[1]))  # fmt: skip
    console.print(f"{len(launch.ranks.ranks)} ranks on {len(launch.ranks.nodes())} nodes")
