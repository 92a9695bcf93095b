"""`strata bench host`: how fast traces are read and analysed, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, rows

if TYPE_CHECKING:
    from rich.console import Console

SEED: Final = 1
PLAIN_LINES: Final = 20_000
"""Lines that are also read one by one, by regular expressions: what most readers in Python do."""


@click.command()
@click.option(
    "--events",
    type=click.IntRange(min=1000),
    default=1_000_000,
    show_default=True,
    help="How long the made-up trace is.",
)
@click.option("--trace", type=click.Path(path_type=Path), help="Read this trace instead of a made-up one.")
@output_option
def host(events: int, trace: Path | None, output: str) -> None:
    """Measure how fast a trace of `perf script` is read, and how fast its waits are explained.

    Rates are of CPU time, one thread; the text comes from a file that was just written.
    """
    import tempfile

    if trace is not None:
        answer = _measured(trace)
    else:
        from strata.host.synthetic import perf_text

        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "trace.txt"
            with made.open("wb") as file:
                for portion in perf_text(events, seed=SEED):
                    file.write(portion)
            answer = _measured(made)
    emit(answer, output, lambda console: _show(console, answer))


def _measured(trace: Path) -> dict[str, Any]:
    import resource
    import time

    from strata.host.report import report_of
    from strata.host.trace.read import read_trace
    from strata.host.view import view_of

    started = time.process_time()
    read = read_trace(trace)
    parsed = time.process_time()
    plain = _plain_rate(trace)
    analysing = time.process_time()
    view = view_of(read)
    viewed = time.process_time()
    report_of(view)
    reported = time.process_time()
    return {
        "parse_events_per_s": read.num_events / (parsed - started),
        "explain_events_per_s": read.num_events / (viewed - analysing),
        "plain_parse_events_per_s": plain,
        "report_s": reported - viewed,
        "events": read.num_events,
        "unparsed": read.unparsed,
        "waits": len(view.waits),
        "bytes": trace.stat().st_size,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _plain_rate(trace: Path) -> float:
    import itertools
    import time

    from strata.host.trace.events import Names
    from strata.host.trace.lines import read_line

    with trace.open("rb") as file:
        lines = [line.rstrip(b"\n") for line in itertools.islice(file, PLAIN_LINES)]
    names = Names()
    started = time.process_time()
    for line in lines:
        read_line(line, names)
    return len(lines) / max(time.process_time() - started, 1e-9)


def _show(console: Console, answer: Mapping[str, Any]) -> None:
    body = [
        ["read", f"{answer['parse_events_per_s']:,.0f} events/s"],
        ["read, line by line", f"{answer['plain_parse_events_per_s']:,.0f} events/s"],
        ["waits, and who had the CPU", f"{answer['explain_events_per_s']:,.0f} events/s"],
        ["detectors and table", f"{answer['report_s']:.2f} s"],
        ["trace", f"{answer['events']:,} events, {answer['bytes'] / 1e6:,.0f} MB, {answer['waits']:,} waits"],
        ["most memory", f"{answer['peak_memory_bytes'] / 2**20:,.0f} MiB"],
    ]
    console.print(rows(["", "CPU time, one thread"], body))
