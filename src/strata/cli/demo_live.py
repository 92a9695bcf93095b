"""`strata demo --live`: a small real training job on this machine, moved when a link goes bad."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from strata.cli.output import emit, show
from strata.errors import INTERRUPTED
from strata.tables import Shown

if TYPE_CHECKING:
    from strata.evaluation.testbed.live import LiveEvent, LiveReport

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


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

    with tempfile.TemporaryDirectory(prefix="strata-demo-") as folder, _ended_as_by_ctrl_c():
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


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Take SIGTERM and SIGHUP for Ctrl-C, so that cleaning up is done; a second one does not cut it short."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in (*_ENDINGS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (*_ENDINGS, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
