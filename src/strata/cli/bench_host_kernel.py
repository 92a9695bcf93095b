"""What `strata bench host` measures on the kernel it runs on: recording, noisy neighbours, what policies win."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strata.cli.output import rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.evaluation.noisy_neighbours.turns import Patience


def measured(rounds: int, patience: Patience, *, gains: bool) -> dict[str, Any]:
    """Return the answer's part of this kernel; each thing is tried `rounds` times, unless Ctrl-C comes first."""
    import os

    from strata.cli.output import progress
    from strata.evaluation.noisy_neighbours import neighbours, overhead
    from strata.evaluation.noisy_neighbours.gains import measure as measure_gains
    from strata.host.signals import stoppable

    load = os.getloadavg()[0]
    with stoppable():
        with progress("recording", total=1.0) as advance:
            costs = overhead.measure(rounds, patience=patience, advance=advance)
        with progress("neighbours", total=1.0) as advance:
            table = neighbours.measure(rounds, patience=patience, advance=advance)
        answer = {
            # The first that works, as `host record` takes it.
            "record_cpu_s_per_mevents": next((one.cpu_s_per_mevents for one in costs if not one.reason), None),
            "record": [one.to_dict() for one in costs],
            "noisy_neighbour": table.to_dict(),
            "noise_floor": {policy: table.floor(policy) for policy in ("quiet", "eevdf")},
            "others_share": table.others,
            "load_average": load,
        }
        if gains:
            with progress("gains", total=1.0) as advance:
                found = measure_gains(rounds, patience=patience, advance=advance)
            answer["gain"] = [one.to_dict() for one in found]
    return answer


def show(console: Console, answer: Mapping[str, Any]) -> None:
    """Print it for people."""
    console.print()
    for one in answer["record"]:
        console.print(f"recording by {one['how']}: {_cost(one)}", soft_wrap=True)
    tried = [one for one in answer["noisy_neighbour"] if one["trials"]]
    body = [
        (
            one["policy"],
            f"{one['wait_ms_mean']:.3f}",
            f"{one['wait_ms_low']:.3f} - {one['wait_ms_high']:.3f}",
            _times(one["ratio_to_quiet"]),
        )
        for one in tried
    ]
    if body:
        console.print()
        console.print(rows(("policy", "wait a round [ms]", "least - most", "to quiet"), body, right=range(1, 4)))
    for one in answer["noisy_neighbour"]:
        if one["reason"]:
            console.print(f"{one['policy']}: {one['reason']}", soft_wrap=True)
    for policy, floor in answer["noise_floor"].items():
        if floor:
            said = f"{_times(floor['ratio'])} ({_times(floor['low'])} to {_times(floor['high'])})"
            console.print(f"equal runs differ (A/A), {policy}: {said}")
    if answer["others_share"] is not None:
        busy = f"load average {answer['load_average']:.1f}"
        console.print(f"others had {answer['others_share']:.0%} of the CPU time meanwhile; {busy} at the start")
    _show_gains(console, answer.get("gain", []))


def _show_gains(console: Console, gains: list[Mapping[str, Any]]) -> None:
    if not gains:
        return
    body = [
        (
            one["trouble"],
            one["policy"],
            _percent(one["predicted"]),
            _percent(one["achieved"]),
            f"{_percent(one['achieved_low'])} - {_percent(one['achieved_high'])}",
            one["reason"],
        )
        for one in gains
    ]
    console.print()
    console.print(rows(("trouble", "policy", "at most", "achieved", "least - most", ""), body, right=range(2, 5)))


def _cost(one: Mapping[str, Any]) -> str:
    if one["cpu_s_per_mevents"] is None:
        return str(one["reason"])
    return (
        f"{one['cpu_s_per_mevents']:.1f} CPU s a million events ({one['recorder_cpu_s_per_mevents']:.1f} the "
        f"recorder, {one['slowdown_cpu_s_per_mevents']:.1f} the work), {one['once_cpu_s']:.2f} s once"
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.2f}x"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.0%}"
