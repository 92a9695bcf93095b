"""`strata bench host`: how fast traces are read and explained, and how often the culprit is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, progress, rows


@click.command()
@click.option("--events", type=click.IntRange(min=1000), default=1_000_000, help="Length of the synthetic trace.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this trace instead of a synthetic one.",
)
@click.option(
    "--seeds", type=click.IntRange(min=0), default=2, help="Trials of each fault whose culprit is known."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=0),
    default=5,
    help="How often each recorder and each policy is tried on this kernel (about a minute); 0: not at all.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Inject the faults on this kernel (root), not on the simulated one, and try what helps against it.",
)
@output_option
def host(events: int, trace: Path | None, seeds: int, rounds: int, live: bool, output: str) -> None:
    """Measure how fast traces are read and explained, and how often a report names the culprit that was there.

    Rates are of CPU time, one thread; the text comes from a file that was just written. Faults are CPU
    hogs, a storm of forks, yields or pipes, a hog on the trainer's CPU, interrupts, or none.

    On the kernel that runs here: what recording costs, and how long a trainer waits for a CPU beside four busy
    loops on two CPUs, under one policy after the other. What is set is undone. Ctrl-C keeps what is done.
    """
    from strata.evaluation.bench.host import measure

    data, is_interrupted = measure(trace, events=events, seeds=seeds, rounds=rounds, live=live, progress=progress)
    emit(data, output, _show(data))
    if is_interrupted:
        raise click.exceptions.Exit(130)


def _show(data: Mapping[str, Any]) -> Shown:
    body = [
        ["read", f"{data['parse_events_per_s']:,.0f} events/s"],
        ["read, line by line", f"{data['plain_parse_events_per_s']:,.0f} events/s"],
        ["waits, and who had the CPU", f"{data['explain_events_per_s']:,.0f} events/s"],
        ["detectors and table", f"{data['report_s']:.2f} s"],
        ["trace", f"{data['events']:,} events, {data['bytes'] / 1e6:,.0f} MB, {data['waits']:,} waits"],
        ["most memory", f"{data['peak_memory_bytes'] / 2**20:,.0f} MiB"],
    ]
    yield rows(["", "CPU time, one thread"], body)
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
