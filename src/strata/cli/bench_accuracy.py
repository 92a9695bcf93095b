"""`strata bench accuracy`: predicted against measured step times, beside the published simulator's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.evaluation.published.accuracy import AccuracyRow

Answer = dict[str, Any]


@click.command()
@click.argument("cases", type=click.Path())
@output_option
def accuracy(cases: str, output: str) -> None:
    """Predict the measured runs of the case file CASES and show the errors.

    Rows with a note are doubtful ("?"): they count in the means, which are given without them too.
    Left-out errors come from constants fitted again without the run, or without its whole set.
    """
    from strata.evaluation.published.accuracy import accuracy_rows, mean_errors
    from strata.evaluation.published.calibrate import fit_table
    from strata.evaluation.published.calibrated import CALIBRATION, FITTED_ON
    from strata.evaluation.published.file import read_cases

    file = read_cases(cases)
    found = accuracy_rows(file)
    fits = fit_table(file)
    alone, sets = fits.leave_one_out(), fits.leave_one_set_out()
    answer = {
        "rows": [
            {
                "id": row.id,
                "predicted_s": row.predicted_s,
                "measured_s": row.measured_s,
                "error": row.error,
                "sailor_error": row.sailor_error,
                "leave_one_out_error": alone.get(row.id),
                "doubtful": row.doubtful,
                "note": row.note,
                "reason": row.reason,
            }
            for row in found
        ],
        "means": _means(found),
        "means_without_doubtful": _means([row for row in found if not row.doubtful]),
        "leave_one_out": mean_errors(found, lambda row: alone.get(row.id)),
        "leave_one_set_out": mean_errors(found, lambda row: sets.get(row.id)),
        "constants": [
            {
                "name": constant.name,
                "value": getattr(CALIBRATION, constant.name),
                "unit": constant.metadata["unit"],
                "fitted_on": FITTED_ON,
            }
            for constant in fields(CALIBRATION)
        ],
        "trust": "calibrated",
    }
    emit(answer, output, lambda console: _print(console, answer))


def _means(found: Sequence[AccuracyRow]) -> Answer:
    from strata.evaluation.published.accuracy import mean_errors

    ours = mean_errors(found, lambda row: row.error)
    sailor = mean_errors(found, lambda row: row.sailor_error)
    return {
        name: {
            "ours": ours[name],
            "sailor": sailor[name],
            "rows": sum(row.set_name == name and row.error is not None for row in found),
        }
        for name in ours
    }


def _print(console: Console, answer: Answer) -> None:
    console.print(
        rows(
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
                for row in answer["rows"]
            ],
            right=range(1, 5),
        )
    )
    sure = answer["means_without_doubtful"]
    console.print()
    console.print(
        rows(
            ("mean |error|", "rows", "ours", "Sailor", "run out", "set out", "ours*", "Sailor*"),
            [
                (
                    name,
                    str(means["rows"]),
                    _percent(means["ours"]),
                    _percent(means["sailor"]),
                    _percent(answer["leave_one_out"][name]),
                    _percent(answer["leave_one_set_out"][name]),
                    _percent(sure.get(name, {}).get("ours")),
                    _percent(sure.get(name, {}).get("sailor")),
                )
                for name, means in answer["means"].items()
            ],
            right=range(1, 8),
        )
    )
    console.print("run out, set out: with constants fitted without the run, or without its set")
    console.print("*: without the doubtful rows (?)")
    console.print()
    for row in answer["rows"]:
        if row["reason"]:
            console.print(f"{row['id']}: not predicted: {row['reason']}", markup=False)
        if row["note"]:
            console.print(f"? {row['id']}: {row['note']}", markup=False)
    for constant in answer["constants"]:
        console.print(f"{constant['name']} = {constant['value']:g} {constant['unit']} (calibrated)", markup=False)
    if answer["constants"]:
        console.print(f"fitted on {answer['constants'][0]['fitted_on']}", markup=False)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f}%" if signed else f"{100 * value:.1f}%"
