"""`strata bench accuracy`: predicted against measured step times, beside the published simulator's errors."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, rows


@click.command()
@click.argument("cases", type=click.Path())
@output_option
def accuracy(cases: str, output: str) -> None:
    """Predict the measured runs of the case file CASES and show the errors.

    Rows with a note are doubtful ("?"): they count in the means, which are given without them too.
    Left-out errors come from constants fitted again without the run, or without its whole set.
    """
    from strata.evaluation.bench.accuracy import measure

    data = measure(cases)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    yield rows(
        ("run", "measured", "predicted", "error", "Sailor", ""),
        [
            (
                row["id"],
                _seconds(row["measured_s"]),
                _seconds(row["predicted_s"]),
                _percent(row["error"], signed=True),
                _percent(row["sailor_error"], signed=True),
                "?" if row["doubtful"] else "",
            )
            for row in data["rows"]
        ],
        right=range(1, 5),
    )
    sure = data["means_without_doubtful"]
    yield ""
    yield rows(
        ("mean |error|", "rows", "ours", "Sailor", "run out", "set out", "ours*", "Sailor*"),
        [
            (
                name,
                str(means["rows"]),
                _percent(means["ours"]),
                _percent(means["sailor"]),
                _percent(data["leave_one_out"][name]),
                _percent(data["leave_one_set_out"][name]),
                _percent(sure.get(name, {}).get("ours")),
                _percent(sure.get(name, {}).get("sailor")),
            )
            for name, means in data["means"].items()
        ],
        right=range(1, 8),
    )
    yield "run out, set out: with constants fitted without the run, or without its set"
    yield "*: without the doubtful rows (?)"
    yield ""
    for row in data["rows"]:
        if row["reason"]:
            yield f"{row['id']}: not predicted: {row['reason']}"
        if row["note"]:
            yield f"? {row['id']}: {row['note']}"
    for constant in data["constants"]:
        yield f"{constant['name']} = {constant['value']:g} {constant['unit']} (calibrated)"
    if data["constants"]:
        yield f"fitted on {data['constants'][0]['fitted_on']}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f}%" if signed else f"{100 * value:.1f}%"
