"""`strata bench slicing`: what the quota library adds to a driver's calls, and to starting processes."""

from __future__ import annotations

from typing import Any, Final

import click

from strata.cli.output import Shown, emit, output_option, progress, rows

GOALS_NS: Final = {"alloc_free_ns": 60.0, "untouched_call_ns": 5.0}


@click.command()
@click.option("--rounds", default=10, type=click.IntRange(min=1), help="Timed loops per turn.")
@output_option
def slicing(rounds: int, output: str) -> None:
    """Time a driver's calls with the quota library and without, in turns, in one run.

    The driver is one that does nothing, compiled here, so that what the library adds is seen: nanoseconds an
    allocation and its free, nanoseconds a call it leaves alone, and milliseconds until 200 processes that were
    started together have all allocated. Then what share of its device's time a program gets that asks for all of
    it and may have some; the device is one that only keeps time.
    """
    from strata.evaluation.bench.slicing import measure

    data = measure(rounds=rounds, progress=progress)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    from strata.evaluation.bench.slicing import PROCESSES

    alloc, untouched = data["alloc_free_ns"], data["untouched_call_ns"]
    costs = (
        ("allocation and free [ns]", alloc["without"], alloc["with"], f"{GOALS_NS['alloc_free_ns']:.0f}"),
        ("untouched call [ns]", untouched["without"], untouched["with"], f"{GOALS_NS['untouched_call_ns']:.0f}"),
        (f"{PROCESSES} processes started [ms]", data["startup_ms_200_without"], data["startup_ms_200"], "-"),
    )
    body = [
        [name, f"{without:.1f}", f"{with_:.1f}", f"{with_ - without:.1f}", f"{with_ / without:.2f}", goal]
        for name, without, with_, goal in costs
    ]
    yield rows(["", "without", "with", "added", "ratio", "added at most"], body, right=range(1, 6))
    yield "\nshare of a device's time:"
    body = [[f"{100 * share[key]:.1f}%" for key in ("asked", "kernels", "graphs")] for share in data["shares"]]
    yield rows(["asked", "kernels got", "graphs got"], body, right=range(3))
