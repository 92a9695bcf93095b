"""How fast traces are read and explained, how often the culprit is named, and what this kernel's policies win."""

from __future__ import annotations

import itertools
import math
import os
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from strata.evaluation.bench.host_trace import perf_text
from strata.evaluation.fault_injection import trials
from strata.evaluation.noisy_neighbours import agent_cost, agent_day, neighbours, overhead
from strata.evaluation.noisy_neighbours.gains import measure as measure_gains
from strata.evaluation.noisy_neighbours.turns import Patience
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.signals import stoppable
from strata.host.trace.events import Names
from strata.host.trace.lines import read_line
from strata.host.trace.read import read_trace
from strata.progress import Progress, silent
from strata.tables import Shown, rows

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
    day = agent_day.live_a_day().to_dict() if rounds else None
    data["agent"] = {**agent_cost.measure().to_dict(), "day": day}
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
        view = TraceView(read)
        assert len(view.attribution.labels)  # which takes all that is worked out of a trace
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


def show(data: Mapping[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    body = [
        ["read", f"{data['parse_events_per_s']:,.0f} events/s"],
        ["read, line by line", f"{data['plain_parse_events_per_s']:,.0f} events/s"],
        ["waits, and who had the CPU", f"{data['explain_events_per_s']:,.0f} events/s"],
        ["detectors and table", f"{data['report_s']:.2f} s"],
        ["trace", f"{data['events']:,} events, {data['bytes'] / 1e6:,.0f} MB, {data['waits']:,} waits"],
        ["most memory", f"{data['peak_memory_bytes'] / 2**20:,.0f} MiB"],
    ]
    yield rows(["", "CPU time, one thread"], body)
    agent = data["agent"]
    yield ""
    yield (
        f"host agent, a look every {agent['interval_s']:.0f} s at {agent['threads']:,} threads: "
        f"{agent['cpu_share']:.2%} of one CPU"
    )
    if (day := agent["day"]) is not None:
        yield (
            f"its memory over a virtual day of {day['jobs']:,} jobs and {day['threads']:,} threads: "
            f"{day['quarter_bytes'] / 1e6:.2f} MB after a quarter, {day['end_bytes'] / 1e6:.2f} MB at the end"
        )
    trials = data["diagnosis"]
    disturbed = f", {trials['disturbed']} more were disturbed by others" if trials["disturbed"] else ""
    yield ""
    rates = f"precision {trials['precision']:.0%}, recall {trials['recall']:.0%}" if trials["runs"] else "nothing"
    yield f"culprits named, {trials['kernel']} kernel: {rates} in {trials['runs']} trials{disturbed}"
    for trial in trials["skipped"]:
        yield f"  {trial['fault']} cannot be made here: {trial['reason']}"
    for trial in trials["missed"]:
        was = " or ".join(trial["injected"]) or "nobody"
        yield f"  {trial['fault']}, seed {trial['seed']}: it was {was}, named {trial['named'] or 'nobody'}"
    yield from _show_kernel(data)


def _show_kernel(data: Mapping[str, Any]) -> Shown:
    yield ""
    for recorder in data["record"]:
        yield f"recording by {recorder['how']}: {_cost(recorder)}"
    measurements = [measured for measured in data["noisy_neighbour"] if measured["trials"]]
    body = [
        (
            measured["policy"],
            f"{measured['wait_ms_mean']:.3f}",
            f"{measured['wait_ms_low']:.3f} - {measured['wait_ms_high']:.3f}",
            _times(measured["ratio_to_quiet"]),
        )
        for measured in measurements
    ]
    if body:
        yield ""
        yield rows(("policy", "wait a round [ms]", "least - most", "to quiet"), body, right=range(1, 4))
    for measured in data["noisy_neighbour"]:
        if measured["reason"]:
            yield f"{measured['policy']}: {measured['reason']}"
    for policy, floor in data["noise_floor"].items():
        if floor:
            ratio = f"{_times(floor['ratio'])} ({_times(floor['low'])} to {_times(floor['high'])})"
            yield f"equal runs differ (A/A), {policy}: {ratio}"
    if data["others_share"] is not None:
        busy = f"load average {data['load_average']:.1f}"
        yield f"others had {data['others_share']:.0%} of the CPU time meanwhile; {busy} at the start"
    yield from _show_gains(data.get("gain", []))


def _show_gains(gains: list[Mapping[str, Any]]) -> Shown:
    if not gains:
        return
    body = [
        (
            gain["fault"],
            gain["policy"],
            _percent(gain["predicted"]),
            _percent(gain["achieved"]),
            f"{_percent(gain['achieved_low'])} - {_percent(gain['achieved_high'])}",
            gain["reason"],
        )
        for gain in gains
    ]
    yield ""
    yield rows(("fault", "policy", "at most", "achieved", "least - most", ""), body, right=range(2, 5))


def _cost(cost: Mapping[str, Any]) -> str:
    if cost["cpu_s_per_mevents"] is None:
        return str(cost["reason"])
    return (
        f"{cost['cpu_s_per_mevents']:.1f} CPU s a million events ({cost['recorder_cpu_s_per_mevents']:.1f} the "
        f"recorder, {cost['slowdown_cpu_s_per_mevents']:.1f} the work), {cost['once_cpu_s']:.2f} s once"
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.2f}x"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.0%}"
