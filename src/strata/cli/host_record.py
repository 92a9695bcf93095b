"""`strata host record`: a trace of the scheduler, with what the machine looked like beside it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from strata.cli.output import show
from strata.cli.parameters import POSITIVE, Finite, OutputFile, choice, names_program
from strata.errors import MissingPart, UsageError
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from strata.host.record.quick import Quick
    from strata.host.record.work import RecordedCommand

SECONDS: Final = 10.0
FORMATS: Final = ("json", "yaml", "table")
"""What -o means for the commands that answer; nobody means a file of that name."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--seconds", type=Finite(0.01, 3600), help="Maximum duration; 10 unless there is a command or --pid."
)
@click.option("--pid", type=POSITIVE, help="Record until this process ends. All threads of the host are recorded.")
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="Where to write; .gz is compressed. Default: strata-trace.txt.gz, with --quick the terminal.",
)
@click.option(
    "--how",
    type=choice("auto", "perf", "tracefs"),
    default="auto",
    help="The recorder: perf, or the kernel's own tracing, which needs no package.",
)
@click.option("--quick", is_flag=True, help="No trace: two readings of /proc, unprivileged; a reduced report.")
@click.option("--as-root", is_flag=True, help="Run COMMAND as root under sudo too, not as the user who called it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, callback=names_program)
def record(
    seconds: float | None,
    pid: int | None,
    output: Path | None,
    how: str,
    quick: bool,
    as_root: bool,
    command: tuple[str, ...],
) -> None:
    """Record scheduler events for some seconds, until a process ends, or while COMMAND runs.

    Buffers are bounded; lost events are counted and reported. FILE.host.json beside FILE describes the machine:
    CPUs, caches, NUMA nodes, interrupts, cgroups, accelerators, threads. The exit code is COMMAND's.

    \b
    strata host record --seconds 10
    strata host record -- python train.py
    strata host report strata-trace.txt.gz
    """
    from strata.host.record.census import numbers_are_the_traces
    from strata.host.record.work import RecordedCommand, behind_sudo
    from strata.host.signals import stoppable

    if output is not None and str(output) in FORMATS:
        raise UsageError(
            f"-o is the file to write here, and {output} is a format",
            hint=f"strata host report TRACE -o {output}, once it is recorded",
        )
    if command and pid is not None:
        raise UsageError("--pid and a command are given; one of them says how long", hint="leave --pid out")
    if pid is not None and not Path(f"/proc/{pid}").exists():
        raise UsageError(f"there is no process {pid}", hint="strata host threads")
    # Without an end of its own a recording is short.
    lasts_s = seconds or (None if command or pid else SECONDS)
    has_numbers = not numbers_are_the_traces()
    user = None if as_root else behind_sudo(os.environ, user=os.geteuid())
    work = RecordedCommand(seconds=lasts_s, command=command, pid=pid, user=user)
    with stoppable():
        if quick:
            _quick(work, output)
        else:
            _trace(work, output or Path("strata-trace.txt.gz"), how, has_numbers=has_numbers)
    if work.process is not None:
        work.process.wait()
    if work.exit_code:
        raise click.exceptions.Exit(work.exit_code)


def _trace(work: RecordedCommand, output: Path, how: str, *, has_numbers: bool) -> None:
    from strata.files import write_json
    from strata.host.record import perf, snapshot, tracefs
    from strata.host.record.looks import looking
    from strata.host.record.sink import sink

    folder = tracefs.find()
    program = perf.find()
    if how == "perf" and program is None:
        raise MissingPart("perf is not here", hint="apt-get install linux-perf, or --how tracefs")
    events, num_cpus = tracefs.available(folder), os.cpu_count() or 1
    uses_perf = program is not None and how != "tracefs"
    began_s, is_whole = time.monotonic(), True
    with sink(output) as text, looking(work, folder, has_numbers=has_numbers) as looks:
        if uses_perf and program is not None:
            text.seen = looks.read
            try:
                is_whole = perf.record(
                    program, work, text, events=events, num_cpus=num_cpus, folder=output.absolute().parent
                )
            except MissingPart as error:  # before the work began
                if how == "perf":
                    raise
                click.echo(f"{error}; the kernel's own tracing does it instead", err=True)
                uses_perf = False
        if not uses_perf:
            tracefs.record(folder, work, text, events=events, num_cpus=num_cpus)
    data = {
        **looks.to_dict(),
        "irqs_at_end": snapshot.interrupts(),
        "steal": work.steal.to_dict() if work.steal is not None else None,
        "recorded_by": "perf" if uses_perf else "tracefs",
        "clock": "monotonic",
        "lost": text.lost,
        "events": list(events),
        "elapsed_s": round(time.monotonic() - began_s, 3),
    }
    write_json(snapshot.beside(output), data)
    for failure in looks.failures:
        click.echo(failure, err=True)
    lost = f"{text.lost:,} events were lost: figures will be too low" if text.lost else "no event was lost"
    by = "perf" if uses_perf else "the kernel's tracing"
    click.echo(f"wrote {output} ({text.num_bytes / 1e6:.1f} MB of text, by {by}); {lost}", err=True)
    if not is_whole:
        click.echo(f"perf's file came to {perf.MAX_FILE}: the trace ends before the work did", err=True)
    missing = sorted(set(tracefs.EVENTS) - set(events))
    if missing:
        click.echo(f"this kernel lacks {', '.join(missing)}", err=True)
    click.echo(f"strata host report {output}", err=True)


def _quick(work: RecordedCommand, output: Path | None) -> None:
    from strata.files import write_json
    from strata.host.record import snapshot
    from strata.host.record.quick import compare
    from strata.host.threads.classify import Classified, classify, only
    from strata.host.threads.observe import observe

    def threads() -> tuple[Classified, ...]:
        seen = observe()
        pid = work.root_pid
        return classify(seen) if pid is None else only(classify(seen), seen, pid)

    work.start()
    began_s, before, irqs = time.monotonic(), threads(), snapshot.interrupts()
    work.wait()
    after = threads()
    quick_report = compare(
        before,
        after,
        interrupts=(irqs, snapshot.interrupts()),
        steal=work.steal,
        seconds=max(time.monotonic() - began_s, 1e-3),
        num_cpus=os.cpu_count() or 1,
    )
    if output is not None:
        write_json(output, quick_report.to_dict())
        click.echo(f"wrote {output}", err=True)
        return
    show(_show(quick_report))


def _show(quick_report: Quick) -> Shown:
    for note in quick_report.notes:
        yield Line(note, is_whole=True)
    body = [
        (
            change.thread.layer,
            change.thread.thread.name,
            str(change.thread.thread.tid),
            f"{change.run_ms:,.0f}",
            f"{change.wait_ms:,.0f}",
            f"{change.wait_ms / (10 * quick_report.seconds):.1f}",
            f"{change.preempted:,}",
        )
        for change in quick_report.changes[:20]
    ]
    yield rows(("layer", "thread", "tid", "ran ms", "waited ms", "%", "preempted"), body, right=range(2, 7))
    for name, cpu, rate in quick_report.interrupts[:5]:
        yield f"interrupt {name}: {rate:,.0f}/s on CPU {cpu}"
