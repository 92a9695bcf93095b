"""`strata bench slicing`: what the quota library adds to a driver's calls, and to starting processes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.evaluation.bench.slicing import Cost, SlicingCost

TURNS: Final = 5
PROCESSES: Final = 200
SHARES: Final = (0.1, 0.3, 0.7)
SHARE_MS: Final = 3000
GOALS_NS: Final = {"alloc_free_ns": 60.0, "untouched_call_ns": 5.0}


@click.command()
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(min=1), help="Timed loops a turn.")
@output_option
def slicing(rounds: int, output: str) -> None:
    """Time a driver's calls with the quota library and without, in turns, in one run.

    The driver is one that does nothing, compiled here, so that what the library adds is seen: nanoseconds an
    allocation and its free, nanoseconds a call it leaves alone, and milliseconds until 200 processes that were
    started together have all allocated. Then what share of its device's time a program gets that asks for all of
    it and may have some; the device is one that only keeps time.
    """
    from strata.evaluation.bench.slicing import measure

    with progress("slicing", total=TURNS + len(SHARES)) as advance:
        cost = measure(
            turns=TURNS,
            rounds=rounds,
            processes=PROCESSES,
            shares=SHARES,
            share_ms=SHARE_MS,
            advance=advance,
        )
    answer = {
        "alloc_free_ns": {**_both(cost.alloc_free_ns), "added": _added(cost.alloc_free_ns)},
        "untouched_call_ns": _both(cost.untouched_call_ns),
        "startup_ms_200": cost.startup_ms.with_library,
        "startup_ms_200_without": cost.startup_ms.without,
        "shares": [asdict(one) for one in cost.shares],
        "trust": "measured",
    }
    emit(answer, output, lambda console: _show(console, cost))


def _both(cost: Cost) -> dict[str, Any]:
    return {"without": cost.without, "with": cost.with_library}


def _added(cost: Cost) -> float:
    return cost.with_library - cost.without


def _show(console: Console, cost: SlicingCost) -> None:
    kinds = (
        ("allocation and free [ns]", cost.alloc_free_ns, f"{GOALS_NS['alloc_free_ns']:.0f}"),
        ("untouched call [ns]", cost.untouched_call_ns, f"{GOALS_NS['untouched_call_ns']:.0f}"),
        (f"{PROCESSES} processes started [ms]", cost.startup_ms, "-"),
    )
    body = [
        [
            name,
            f"{one.without:.1f}",
            f"{one.with_library:.1f}",
            f"{_added(one):.1f}",
            f"{one.with_library / one.without:.2f}",
            goal,
        ]
        for name, one, goal in kinds
    ]
    console.print(rows(["", "without", "with", "added", "ratio", "added at most"], body, right=range(1, 6)))
    console.print("\nshare of a device's time:")
    body = [[f"{100 * part:.1f}%" for part in (one.asked, one.kernels, one.graphs)] for one in cost.shares]
    console.print(rows(["asked", "kernels got", "graphs got"], body, right=range(3)))
