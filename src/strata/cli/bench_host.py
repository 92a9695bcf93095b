"""`strata bench host`: how fast traces are read and explained, and how often the culprit is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, rows

if TYPE_CHECKING:
    from rich.console import Console

SEED: Final = 1
ROUNDS: Final = 3
SHORT_BYTES: Final = 200 * 2**20
"""Traces up to this size are read that often; the best round counts."""
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
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this trace instead of a made-up one.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Trials of each trouble whose culprit is known.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How often each recorder and each policy is tried on this kernel (about a minute); 0: not at all.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Make the trouble on this kernel (root), not on the simulated one, and try what helps against it.",
)
@output_option
def host(events: int, trace: Path | None, seeds: int, rounds: int, live: bool, output: str) -> None:
    """Measure how fast traces are read and explained, and how often a report names the culprit that was there.

    Rates are of CPU time, one thread; the text comes from a file that was just written. Trouble is CPU
    hogs, a storm of forks, yields or pipes, a hog on the trainer's CPU, interrupts, or none.

    On the kernel that runs here: what recording costs, and how long a trainer waits for a CPU beside four busy
    loops on two CPUs, under one policy after the other. What is set is undone. Ctrl-C keeps what is done.
    """
    import tempfile

    from strata.cli.bench_host_kernel import measured
    from strata.evaluation.noisy_neighbours.turns import Patience

    if trace is not None:
        answer = _measured(trace)
    else:
        from strata.evaluation.bench.host_trace import perf_text

        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "trace.txt"
            with made.open("wb") as file:
                for portion in perf_text(events, seed=SEED):
                    file.write(portion)
            answer = _measured(made)
    answer["diagnosis"] = _diagnosis(seeds, live=live)
    patience = Patience()
    answer |= measured(rounds, patience, gains=live)
    emit(answer, output, lambda console: _show(console, answer))
    if patience.is_over:
        raise click.exceptions.Exit(130)


def _diagnosis(seeds: int, *, live: bool) -> dict[str, Any]:
    from strata.cli.output import progress
    from strata.evaluation.fault_injection import trials

    if live:
        with progress("trials", total=1.0) as advance:
            found = trials.live(seeds, advance=advance)
    else:
        found = trials.simulated(seeds)
    return {**found.to_dict(), "kernel": "real" if live else "simulated"}


def _measured(trace: Path) -> dict[str, Any]:
    import math
    import resource
    import time

    from strata.host.report import report_of
    from strata.host.trace.read import read_trace
    from strata.host.view import view_of

    # Of a short trace the first reading is mostly what Python and NumPy do once.
    parse_s = explain_s = math.inf
    for _ in range(ROUNDS if trace.stat().st_size <= SHORT_BYTES else 1):
        started = time.process_time()
        read = read_trace(trace)
        parsed = time.process_time()
        view = view_of(read)
        viewed = time.process_time()
        parse_s, explain_s = min(parse_s, parsed - started), min(explain_s, viewed - parsed)
    report_of(view)
    reported = time.process_time()
    return {
        "parse_events_per_s": read.num_events / parse_s,
        "explain_events_per_s": read.num_events / explain_s,
        "plain_parse_events_per_s": _plain_rate(trace),
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
    from strata.cli.bench_host_kernel import show as show_kernel

    body = [
        ["read", f"{answer['parse_events_per_s']:,.0f} events/s"],
        ["read, line by line", f"{answer['plain_parse_events_per_s']:,.0f} events/s"],
        ["waits, and who had the CPU", f"{answer['explain_events_per_s']:,.0f} events/s"],
        ["detectors and table", f"{answer['report_s']:.2f} s"],
        ["trace", f"{answer['events']:,} events, {answer['bytes'] / 1e6:,.0f} MB, {answer['waits']:,} waits"],
        ["most memory", f"{answer['peak_memory_bytes'] / 2**20:,.0f} MiB"],
    ]
    console.print(rows(["", "CPU time, one thread"], body))
    found = answer["diagnosis"]
    disturbed = f", {found['disturbed']} more were disturbed by others" if found["disturbed"] else ""
    console.print()
    rates = f"precision {found['precision']:.0%}, recall {found['recall']:.0%}" if found["runs"] else "nothing"
    console.print(f"culprits named, {found['kernel']} kernel: {rates} in {found['runs']} trials{disturbed}")
    for one in found["skipped"]:
        console.print(f"  {one['trouble']} cannot be made here: {one['reason']}")
    for one in found["missed"]:
        was = " or ".join(one["injected"]) or "nobody"
        console.print(f"  {one['trouble']}, seed {one['seed']}: it was {was}, named {one['named'] or 'nobody'}")
    show_kernel(console, answer)
