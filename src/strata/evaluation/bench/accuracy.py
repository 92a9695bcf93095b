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
