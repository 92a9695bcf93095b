"""Why threads of a trace waited for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from strata.errors import UsageError
from strata.host.analysis.accelerator import activity_of
from strata.host.analysis.kineto import kineto_trace
from strata.host.analysis.nsys import nsys_trace
from strata.host.analysis.report import TraceReport, report_of
from strata.host.analysis.view import TraceView
from strata.host.record.snapshot import machine_of
from strata.host.trace.read import read_trace

MOST_LISTED: Final = 2000
"""Threads of an answer: a few megabytes of JSON, where a storm of 20,000 would make hundreds."""


def host_report(
    trace: str | Path,
    *,
    critical: Sequence[str] = (),
    pid: int | None = None,
    tid: int | None = None,
    top: int = MOST_LISTED,
    here: bool = False,
    kineto: Sequence[Path] = (),
    nsys: Sequence[Path] = (),
    kineto_offset_s: float | None = None,
) -> TraceReport:
    """Explain a trace: what `strata host report` does, with its options. top: 0 for all threads.

    here: the trace is of this machine. kineto_offset_s: how far the profiler's clock is ahead of the trace's [s].
    Raises BadFile, UsageError where no thread of the process is in the trace.
    """
    path = Path(trace)
    read = read_trace(path)
    machine = machine_of(path, is_here=here)
    if machine.numbers:
        read = read.renumbered(machine.numbers)
    offset_ns = machine.clock_offset_ns(kineto_offset_s)
    profiles = [kineto_trace(profile, offset_ns=offset_ns) for profile in kineto]
    profiles += [nsys_trace(profile, offset_ns=offset_ns) for profile in nsys]
    view = TraceView(
        read,
        critical=tuple(critical),
        cpus=machine.cpus,
        accelerator=activity_of(profiles, read) if profiles else None,
        feeding=machine.critical,
        steal=machine.steal,
        census=machine.census,
        job=pid or (machine.job if tid is None and not critical else None),
        only=tid,
        sleeping=machine.sleeping,
        holding=machine.holding,
    )
    if view.is_guessed and (pid or tid):
        what = f"process {pid}" if pid else f"thread {tid}"
        raise UsageError(
            f"{path}: no thread of {what} is in it", hint="strata host report TRACE -o json lists all"
        )
    name = machine.job_name if view.job == machine.job else ""
    return report_of(view, top=top or None, job=name)
