"""`strata demo --live`: a small real training job on this machine, moved when a link goes bad."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strata.cli.endings import ended_as_by_ctrl_c
from strata.cli.output import emit, show
from strata.errors import INTERRUPTED
from strata.tables import Shown

if TYPE_CHECKING:
    from strata.evaluation.testbed.live import LiveEvent, LiveReport


def demo_live(output: str, *, may_shape: bool) -> int:
    """Run it, tell what happens as it happens, and return the exit code; nothing is left behind."""
    from rich.rule import Rule

    from strata.evaluation.testbed.live import run_live

    is_table = output == "table"
    if is_table:
        show([
            Rule("a small training job on three domains of this machine", align="left"),
            "The scheduler runs a real training job (residual MLPs in NumPy, no torch) across",
            "two domains. On the way the link between them goes bad.",
            "",
        ])  # fmt: skip

    def tell(event: LiveEvent) -> None:
        if is_table:
            show([_line(event)])

    with tempfile.TemporaryDirectory(prefix="strata-demo-") as folder, ended_as_by_ctrl_c():
        try:
            report = run_live(Path(folder), may_shape=may_shape, tell=tell)
        except KeyboardInterrupt:
            click.echo("interrupted: what was started is ended", err=True)
            return INTERRUPTED
    emit({**asdict(report), "is_whole": report.is_whole}, output, _shown(report))
    return 0 if report.is_whole else 1


def _line(event: LiveEvent) -> str:
    return f"{event.at_s:5.1f} s  {event.text}"


def _shown(report: LiveReport) -> Shown:
    yield ""
    count = "each once" if report.is_whole else "NOT each once"
    yield f"{len(report.steps)} steps, {count}; loss {report.losses[0]:.2f} -> {report.losses[-1]:.2g}"
    yield f"The domains were {report.kind}."
    yield "next: docs/running.md, to do the same with your own fleet and job"
