"""Predicted against published step times, from 8 to thousands of accelerators, by source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Final

from strata.evaluation.published_benchmarks.error_plot import PlottedRun, write_plot
from strata.evaluation.published_benchmarks.published_layout import evaluate
from strata.evaluation.published_benchmarks.published_run import PublishedRun
from strata.progress import Progress, silent
from strata.tables import Shown, rows

FULLY_SHARDED: Final = 3
_SIZES: Final = (0, 16, 128, 1024, 100_000)


def measure(runs: Sequence[PublishedRun], *, progress: Progress = silent) -> dict[str, Any]:
    """Predict every run of a table; errors are relative and null where `step_s` is not given.

    memory_error: of `memory_bytes`, in rows whose peak was published.
    means: by source, error is the mean absolute one, bias the mean. pairs_ranked: of all `pairs` of layouts of one
    job on the same machines with the same release of the software, whose times are known, the share ranked as
    measured; null where there is none. any_release: the same, whatever the releases.
    """
    predicted = list[dict[str, Any]]()
    with progress("predicting", total=len(runs)) as advance:
        for run in runs:
            choice = evaluate(run)
            report = choice.report
            predicted.append(
                {
                    "row": run.row,
                    "source": run.source,
                    "name": run.name,
                    "predicted_s": report.step_time_s,
                    "measured_s": run.step_s,
                    "error": None if run.step_s is None else report.step_time_s / run.step_s - 1,
                    "fits_memory": report.fits_memory,
                    "memory_bytes": choice.reserved_bytes,
                }
            )
            if run.memory_bytes is not None:
                predicted[-1]["memory_error"] = choice.reserved_bytes / run.memory_bytes - 1
            advance(len(predicted))
    return {
        "rows": predicted,
        "means": _means(predicted),
        **_ranked(runs, predicted, one_release=True),
        "any_release": _ranked(runs, predicted, one_release=False),
    }


def _means(predicted: Sequence[dict[str, Any]], names: Sequence[str] = (), error: str = "error") -> dict[str, Any]:
    """Return the means by name of each row, its source unless `names` are given."""
    errors: dict[str, list[float]] = defaultdict(list)
    for name, row in zip(names or [row["source"] for row in predicted], predicted, strict=True):
        errors[name] += [] if row.get(error) is None else [row[error]]
    return {
        name: {
            "error": sum(map(abs, values)) / len(values) if values else None,
            "bias": sum(values) / len(values) if values else None,
            "rows": len(values),
        }
        for name, values in errors.items()
    }


def plot(runs: Sequence[PublishedRun], data: dict[str, Any], path: str | Path) -> None:
    """Write the errors as a picture."""
    points = [
        PlottedRun(run.source, run.num_gpus, row["error"])
        for run, row in zip(runs, data["rows"], strict=True)
        if row["error"] is not None
    ]
    write_plot(path, points)


def _size(run: PublishedRun) -> str:
    low, high = next(pair for pair in pairwise(_SIZES) if run.num_gpus <= pair[1])
    return f"{low + 1:5,} to {high:,}"


def _kind(run: PublishedRun) -> str:
    if run.spec.experts is not None:
        return "mixture of experts"
    if run.precision == "fp8":
        return "8 bit"
    if run.zero_stage == FULLY_SHARDED:
        return "fully sharded copies"
    return "copies alone" if run.tensor_parallel * run.pipeline_parallel == 1 else "tensor and pipeline"


def _ranked(
    runs: Sequence[PublishedRun], predicted: Sequence[dict[str, Any]], *, one_release: bool
) -> dict[str, Any]:
    jobs: dict[object, list[tuple[float, float, object]]] = defaultdict(list)
    for run, row in zip(runs, predicted, strict=True):
        if run.step_s is not None:
            key = (run.job, run.release if one_release else None)
            jobs[key].append((run.step_s, row["predicted_s"], run.layout))
    right = [
        (a[0] - b[0]) * (a[1] - b[1]) > 0
        for plans in jobs.values()
        for a, b in combinations(plans, 2)
        if a[0] != b[0] and a[2] != b[2]
    ]
    return {"pairs": len(right), "pairs_ranked": sum(right) / len(right) if right else None}


def show(runs: Sequence[PublishedRun], data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people: every run, and means by source, size and kind of plan."""
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
    peaks = {name: mean for name, mean in _means(data["rows"], error="memory_error").items() if mean["rows"]}
    for head, means in (
        ("source", data["means"]),
        ("cards", dict(sorted(_means(data["rows"], [_size(run) for run in runs]).items()))),
        ("plan", _means(data["rows"], [_kind(run) for run in runs])),
        *([("memory of", peaks)] if peaks else []),
    ):
        body = [
            (name, str(mean["rows"]), _percent(mean["error"], signed=False), _percent(mean["bias"]))
            for name, mean in means.items()
        ]
        yield ""
        yield rows((head, "rows", "mean |error|", "bias"), body, right=(1, 2, 3))
    yield "published, predicted: seconds a step; fits: in the memory of a card, none left free"
    for ranking, which in ((data, "of one job and release"), (data["any_release"], "of one job, of any release")):
        if ranking["pairs"]:
            yield f"{ranking['pairs']} pairs of plans {which}: {ranking['pairs_ranked']:.0%} ranked as measured"


def _percent(value: float | None, *, signed: bool = True) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f}%" if signed else f"{100 * value:.1f}%"
