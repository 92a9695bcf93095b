"""Predicted against measured step times of published runs, beside the published simulator's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from strata.evaluation.published_benchmarks.accuracy import AccuracyRow, accuracy_rows, mean_errors
from strata.evaluation.published_benchmarks.calibrate import fit_table
from strata.evaluation.published_benchmarks.calibrated import CALIBRATION, FITTED_ON
from strata.evaluation.published_benchmarks.case_file import read_cases
from strata.tables import Shown, rows


def measure(path: str | Path) -> dict[str, Any]:
    """Predict the measured runs of a case file; with errors left-one-out and left-one-set-out."""
    file = read_cases(path)
    runs = accuracy_rows(file)
    fits = fit_table(file)
    alone, sets = fits.leave_one_out(), fits.leave_one_set_out()
    return {
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
            for row in runs
        ],
        "means": _means(runs),
        "means_without_doubtful": _means([row for row in runs if not row.doubtful]),
        "leave_one_out": mean_errors(runs, lambda row: alone.get(row.id)),
        "leave_one_set_out": mean_errors(runs, lambda row: sets.get(row.id)),
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


def _means(runs: Sequence[AccuracyRow]) -> dict[str, Any]:
    ours = mean_errors(runs, lambda row: row.error)
    sailor = mean_errors(runs, lambda row: row.sailor_error)
    return {
        name: {
            "ours": ours[name],
            "sailor": sailor[name],
            "rows": sum(row.set_name == name and row.error is not None for row in runs),
        }
        for name in ours
    }


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
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
