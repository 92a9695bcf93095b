"""`strata bench simulate`: plans a second of the cost model, and events a second of the event backend."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, rows


@click.command()
@click.option("--plans", type=click.IntRange(min=1), default=20_000, help="Plans in a batch.")
@output_option
def simulate(plans: int, output: str) -> None:
    """Measure plans per second of process CPU time, on one thread, for NumPy and (if installed) torch.

    Then one LLM step (32 layers, 4 stages x 8 copies, 8 microbatches) by the events backend, its copies together
    or each with its own jitter, beside ASTRA-sim's CPU time.
    """
    from strata.evaluation.bench.simulate import measure

    data = measure(plans)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    yield _rates_table(data["rows"])
    yield ""
    yield _events_table(data["events"])


def _rates_table(rates: list[dict[str, Any]]) -> Any:
    return rows(
        ("form", "backend", "S", "M", "plans/s", "peer", "ratio"),
        (
            (
                row["name"], row["backend"], str(row["stages"]), str(row["microbatches"]),
                f"{row['plans_per_s']:,.0f}", f"{row['peer_plans_per_s']:,.0f}", f"{row['ratio']:.2f}"
            )
            for row in rates
        ),
        right=range(2, 7)
    )  # fmt: skip


def _events_table(events: list[dict[str, Any]]) -> Any:
    return rows(
        ("events backend", "events/s", "wall", "ASTRA-sim"),
        (
            (
                row["name"],
                f"{row['events_per_s']:,.0f}",
                f"{row['wall_s'] * 1e3:.1f}ms",
                f"{row['peer_s'] * 1e3:.0f}ms",
            )
            for row in events
        ),
        right=range(1, 4),
    )
