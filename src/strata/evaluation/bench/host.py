"""How fast traces are read and explained, how often the culprit is named, and what this kernel's policies win."""

from __future__ import annotations

import itertools
import math
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from strata.evaluation.bench.host_trace import perf_text
from strata.evaluation.bench.progress import Progress, silent
from strata.evaluation.fault_injection import trials
from strata.evaluation.noisy_neighbours import neighbours, overhead
from strata.evaluation.noisy_neighbours.gains import measure as measure_gains
from strata.evaluation.noisy_neighbours.turns import Patience
from strata.host.analysis.report import report_of
from strata.host.analysis.view import view_of
from strata.host.signals import stoppable
from strata.host.trace.events import Names
from strata.host.trace.lines import read_line
from strata.host.trace.read import read_trace

SEED: Final = 1
ROUNDS: Final = 3
SHORT_BYTES: Final = 200 * 2**20
"""Traces up to this size are read that often; the best round counts."""
PLAIN_LINES: Final = 20_000
"""Lines that are also read one by one, by regular expressions: what most readers in Python do."""


def measure(
    trace: Path | None, *, events: int, seeds: int, rounds: int, live: bool, progress: Progress = silent
) -> tuple[dict[str, Any], bool]:
    """Read `trace`, or a made-up one of `events` events; name culprits; try recorders and policies on this kernel.

    Returns what `-o json` prints, and whether Ctrl-C ended it before all was measured.
    """
    patience = Patience()
    if trace is not None:
        data = _measured(trace)
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "trace.txt"
            with made.open("wb") as file:
                for portion in perf_text(events, seed=SEED):
                    file.write(portion)
            data = _measured(made)
    data["diagnosis"] = _diagnosis(seeds, live=live, progress=progress)
    data |= _kernel(rounds, patience, gains=live, progress=progress)
    return data, patience.is_over


def _diagnosis(seeds: int, *, live: bool, progress: Progress) -> dict[str, Any]:
    if live:
        with progress("trials", total=1.0) as advance:
            result = trials.live(seeds, advance=advance)
    else:
        result = trials.simulated(seeds)
    return {**result.to_dict(), "kernel": "real" if live else "simulated"}


def _measured(trace: Path) -> dict[str, Any]:
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
        "waits": len(view.delays),
        "bytes": trace.stat().st_size,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _plain_rate(trace: Path) -> float:
    with trace.open("rb") as file:
        lines = [line.rstrip(b"\n") for line in itertools.islice(file, PLAIN_LINES)]
    names = Names()
    started = time.process_time()
    for line in lines:
        read_line(line, names)
    return len(lines) / max(time.process_time() - started, 1e-9)


def _kernel(rounds: int, patience: Patience, *, gains: bool, progress: Progress) -> dict[str, Any]:
    """Measure recording and policies on this kernel, each `rounds` times, unless Ctrl-C comes first."""
    load = os.getloadavg()[0]
    with stoppable():
        with progress("recording", total=1.0) as advance:
            costs = overhead.measure(rounds, patience=patience, advance=advance)
        with progress("neighbours", total=1.0) as advance:
            table = neighbours.measure(rounds, patience=patience, advance=advance)
        data = {
            # The first that works, as `host record` takes it.
            "record_cpu_s_per_mevents": next((cost.cpu_s_per_mevents for cost in costs if not cost.reason), None),
            "record": [cost.to_dict() for cost in costs],
            "noisy_neighbour": table.to_dict(),
            "noise_floor": {policy: table.floor(policy) for policy in ("quiet", "eevdf")},
            "others_share": table.others,
            "load_average": load,
        }
        if gains:
            with progress("gains", total=1.0) as advance:
                won = measure_gains(rounds, patience=patience, advance=advance)
            data["gain"] = [gain.to_dict() for gain in won]
    return data
