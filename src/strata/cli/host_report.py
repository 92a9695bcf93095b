"""`strata host report`: why threads waited for a CPU, who had it, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import PATH, POSITIVE, Finite, OutputFile, Whole, choice
from strata.cli.planning import remember
from strata.errors import GoalMissed
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from strata.host.analysis.report import TraceReport

MOST_OFFSET_S: Final = 4e9
"""In nanoseconds, with as much again for the times themselves, still a 64-bit number."""
MOST_LISTED: Final = 2000
"""What `strata.api.host` lists where nobody asks for more; here too, so that `--help` imports no analysis."""
_MOST_FINDINGS: Final = 10
_MOST_THREADS: Final = 12
_MOST_SLEEPERS: Final = 3


@click.command()
@click.argument("trace", type=PATH)
@click.option(
    "--critical",
    multiple=True,
    metavar="PREFIX",
    help="Name prefix of the critical threads; repeat for more. Default: trainer, pt_main, nccl ...",
)
@click.option("--pid", type=POSITIVE, help="The job: this process and its descendants. Default: the one recorded.")
@click.option("--tid", type=POSITIVE, help="Only this thread is critical.")
@click.option(
    "--top",
    type=Whole(min=0),
    default=MOST_LISTED,
    show_default=True,
    help="Threads in the answer: critical ones, then those that waited longest; 0 for all.",
)
@click.option(
    "--here", is_flag=True, help="TRACE is of this machine: also report migrations between caches and nodes."
)
@click.option(
    "--kineto",
    type=PATH,
    multiple=True,
    help="A PyTorch profiler trace of the same time: explains idle accelerators. Repeat for each rank.",
)
@click.option(
    "--nsys",
    type=PATH,
    multiple=True,
    help="The same from Nsight Systems, exported: nsys export --type sqlite. Repeat for each rank.",
)
@click.option(
    "--kineto-offset",
    type=Finite(-MOST_OFFSET_S, MOST_OFFSET_S),
    metavar="SECONDS",
    help="How far the profiler's clock is ahead of TRACE's; known with --here.",
)
@click.option("--html", type=OutputFile(), help="Also write an HTML page with a picture of the trace.")
@click.option(
    "--fail-on",
    type=choice("info", "warning", "error"),
    help="Exit 4 if there is a finding of this severity or above.",
)
@output_option
def report(
    trace: Path,
    critical: Sequence[str],
    pid: int | None,
    tid: int | None,
    top: int,
    here: bool,
    kineto: Sequence[Path],
    nsys: Sequence[Path],
    kineto_offset: float | None,
    html: Path | None,
    fail_on: str | None,
    output: str,
) -> None:
    """Explain why threads waited for a CPU, who held it meanwhile, and what to do about it.

    TRACE is the text of `perf script` or of tracefs, plain or gzip. The machine is known from the snapshot that
    `strata host record` leaves beside it.

    \b
    strata host record -- python train.py
    strata host report strata-trace.txt.gz
    perf record -a -e 'sched:*' -- sleep 10
    perf script -F comm,pid,tid,cpu,time,event,trace --ns > trace.txt
    strata host report trace.txt
    """
    from strata.api.host import host_report
    from strata.host.analysis.findings.finding import Severity

    trace_report = host_report(
        trace, critical=critical, pid=pid, tid=tid, top=top, here=here, kineto=kineto, nsys=nsys,
        kineto_offset_s=kineto_offset,
    )  # fmt: skip
    if html is not None:
        from strata.files import write_text
        from strata.host.analysis.page import page

        write_text(html, page(trace_report, title=trace.name))
        click.echo(f"wrote {html}", err=True)
    remember("host", {"name": trace.name, **trace_report.to_dict(), "threads": []})
    emit(trace_report.to_dict() if output != "table" else None, output, _show(trace_report))
    worst = trace_report.worst()
    if fail_on and worst is not None and worst.rank >= Severity(fail_on).rank:
        raise GoalMissed(f"a finding of severity {worst}")


def _show(trace_report: TraceReport) -> Shown:
    from strata.host.analysis.findings.finding import in_words, predicted_gain
    from strata.host.analysis.report import verdict

    view = trace_report.view
    trace = view.trace
    lost = f", {trace.lost:,} lost" if trace.lost else ""
    unparsed = f", {trace.unparsed:,} lines not parsed" if trace.unparsed else ""
    yield f"{trace.num_events:,} events{lost}{unparsed}, {len(view.on_cpu.cpus)} CPUs, {view.wall_ns / 1e9:.1f} s"
    yield ""
    yield Line(verdict(trace_report), style="bold")
    for finding in trace_report.findings[:_MOST_FINDINGS]:
        yield ""
        yield Line(
            f"{finding.severity.upper()} {finding.token}: {finding.reason}", style=_STYLES[finding.severity]
        )
        cost = (
            f"cost {finding.cost_ms:,.1f} ms ({finding.cost_share:.1%} of its time); " if finding.cost_ms else ""
        )
        gain, trust = predicted_gain(finding) or (0.0, "")
        more = f" Without it {in_words(gain)} ({trust})." if gain else ""
        for text in (
            f"{cost}{finding.evidence}; confidence {finding.confidence:.0%}",
            f"by {finding.process}" if finding.process is not None else "",
            f"do: {finding.advice}{more}",
        ):
            if text:
                yield Line(text, indent="  ")
    if len(trace_report.findings) > _MOST_FINDINGS:
        yield ""
        yield f"{len(trace_report.findings) - _MOST_FINDINGS} more findings that cost less: -o json lists all"
    yield ""
    shown = [thread for thread in trace_report.threads if thread.waits or thread.unfinished_ms][:_MOST_THREADS]
    body = [
        [
            ("* " if thread.is_critical else "  ") + thread.comm,
            str(thread.tid),
            f"{thread.waits:,}",
            f"{thread.wait_ms_total:,.1f}",
            f"{thread.wait_ms_mean:.2f}",
            f"{thread.wait_ms_p99:.1f}",
            ", ".join(f"{name} {ms:,.0f}" for name, ms in list(thread.culprits.items())[:2]),
        ]
        for thread in shown
    ]
    yield rows(
        ["  thread", "tid", "waits", "ms", "mean", "p99", "on the CPU meanwhile [ms]"], body, right=range(1, 6)
    )
    yield "* critical; times in ms; p99: one wait in a hundred is longer"
    for slept in trace_report.sleeps()[:_MOST_SLEEPERS]:
        yield Line(str(slept))
    if len(shown) < trace_report.num_threads:
        yield f"{trace_report.num_threads - len(shown):,} more threads: -o json lists all"


_STYLES: Final = {"info": "", "warning": "yellow", "error": "red"}
