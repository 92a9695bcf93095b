"""Predicted against published step times, from 8 to thousands of accelerators, by source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from strata.evaluation.bench.progress import Progress, silent
from strata.evaluation.published_benchmarks.published_layout import evaluate
from strata.evaluation.published_benchmarks.published_run import PublishedRun, read_runs
from strata.tables import Shown, rows


def measure(path: str | Path, *, progress: Progress = silent) -> dict[str, Any]:
    """Predict every row of a table of runs; errors are relative and null where `step_s` is not given.

    means: by source, error is the mean absolute one, bias the mean. pairs_ranked: of all pairs of plans of one job
    on the same machines whose times are known, the share ranked as measured; null where there is none.
    """
    runs, predicted = read_runs(path), list[dict[str, Any]]()
    with progress("predicting", total=len(runs)) as advance:
        for run in runs:
            report = evaluate(run).report
            predicted.append(
                {
                    "row": run.row,
                    "source": run.source,
                    "name": run.name,
                    "predicted_s": report.step_time_s,
                    "measured_s": run.step_s,
                    "error": None if run.step_s is None else report.step_time_s / run.step_s - 1,
                    "fits_memory": report.fits_memory,
                }
            )
            advance(len(predicted))
    return {"rows": predicted, "means": _means(predicted), "pairs_ranked": _ranked(runs, predicted)}


def _means(predicted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors: dict[str, list[float]] = defaultdict(list)
    for row in predicted:
        errors[row["source"]] += [] if row["error"] is None else [row["error"]]
    return {
        source: {
            "error": sum(map(abs, values)) / len(values) if values else None,
            "bias": sum(values) / len(values) if values else None,
            "rows": len(values),
        }
        for source, values in errors.items()
    }


def _ranked(runs: Sequence[PublishedRun], predicted: Sequence[dict[str, Any]]) -> float | None:
    jobs: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for run, row in zip(runs, predicted, strict=True):
        if run.step_s is not None:
            jobs[run.job].append((run.step_s, row["predicted_s"]))
    right = [
        (a[0] - b[0]) * (a[1] - b[1]) > 0
        for plans in jobs.values()
        for a, b in combinations(plans, 2)
        if a[0] != b[0]
    ]
    return sum(right) / len(right) if right else None


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    yield rows(
        ("row", "source", "run", "published", "predicted", "error", "fits"),
        [
            (
                str(row["row"]),
                row["source"],
                row["name"],
                "-" if row["measured_s"] is None else f"{row['measured_s']:.3f}",
                f"{row['predicted_s']:.3f}",
                _percent(row["error"]),
                "yes" if row["fits_memory"] else "no",
            )
            for row in data["rows"]
        ],
        right=(0, 3, 4, 5),
    )
    yield ""
    yield rows(
        ("source", "rows", "mean |error|", "bias"),
        [
            (source, str(means["rows"]), _percent(means["error"], signed=False), _percent(means["bias"]))
            for source, means in data["means"].items()
        ],
        right=(1, 2, 3),
    )
    yield "published, predicted: seconds a step; fits: in the memory of a card, none left free"
    if data["pairs_ranked"] is not None:
        yield f"pairs of plans of one job ranked as measured: {data['pairs_ranked']:.0%}"


def _percent(value: float | None, *, signed: bool = True) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f}%" if signed else f"{100 * value:.1f}%"
