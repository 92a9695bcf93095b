"""Our ASTRA-compatible mode against a table of ASTRA-sim's own runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from strata.evaluation.astra_reference.reference import SCALE_ONLY, answers, read_rows, score
from strata.tables import Shown, rows


def measure(path: str) -> dict[str, Any]:
    """Answer every run of a CSV file as ASTRA-sim would, and count equal nanoseconds by family."""
    runs = answers(read_rows(path))
    counted = [run for run in runs if run.family != SCALE_ONLY]
    families = sorted({run.family for run in runs})
    return {
        "answers": [
            {
                "row": run.row,
                "scenario": run.scenario,
                "topology": run.topology,
                "backend": run.backend,
                "ours_ns": run.ours_ns,
                "default_ns": run.default_ns,
                "reason": run.reason,
                "doubt": run.doubt,
            }
            for run in runs
        ],
        **asdict(score(counted)),
        "families": {name: asdict(score(run for run in runs if run.family == name)) for name in families},
        "not_counted": [name for name in families if name == SCALE_ONLY],
        "misses": [
            {
                "scenario": run.scenario,
                "backend": run.backend,
                "expected_ns": run.expected_ns,
                "ours_ns": run.ours_ns,
            }
            for run in counted
            if run.error
        ],
    }


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    if not data["rows"]:
        yield rows(
            ("row", "scenario", "backend", "ours [ns]"),
            [
                (str(each["row"]), each["scenario"], each["backend"], _ns(each["ours_ns"]))
                for each in data["answers"]
            ],
            right=(0, 3),
        )
        yield ""
    scores = {**data["families"], "all": data}
    yield rows(
        ("family", "rows", "exact", "worst error"),
        [
            (
                name + "*" * (name in data["not_counted"]),
                str(each["rows"]),
                str(each["exact"]),
                _share(each["worst"] if each["rows"] else None),
            )
            for name, each in scores.items()
        ],
        right=range(1, 4),
    )
    if data["not_counted"]:
        yield "* shows ASTRA-sim's scale; not in `all`"
    if data["misses"]:
        yield ""
        yield rows(
            ("miss", "backend", "ASTRA-sim [ns]", "ours [ns]"),
            [
                (each["scenario"], each["backend"], _ns(each["expected_ns"]), _ns(each["ours_ns"]))
                for each in data["misses"]
            ],
            right=(2, 3),
        )
    pipelines = [each for each in data["answers"] if each["default_ns"] is not None]
    if pipelines:
        yield ""
        yield rows(
            ("pipeline", "topology", "backend", "ASTRA [ms]", "ours [ms]", "more"),
            [
                (
                    each["scenario"],
                    each["topology"],
                    each["backend"],
                    f"{each['ours_ns'] / 1e6:.3f}",
                    f"{each['default_ns'] / 1e6:.3f}",
                    f"{100 * (each['ours_ns'] / each['default_ns'] - 1):+.1f} %",
                )
                for each in pipelines
            ],
            right=range(3, 6),
        )
        yield "ASTRA: one communication slot a rank; ours: sends overlap (docs/fidelity.md)"
    for title, key in (("no answer", "reason"), ("ASTRA-sim answers, but", "doubt")):
        for text, count in Counter(each[key] for each in data["answers"] if each[key]).items():
            yield ""
            yield f"{title} ({count} row{'s' * (count > 1)}): {text}"


def _ns(value: int | None) -> str:
    return "-" if value is None else f"{value:,}".replace(",", " ")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.4g} %"
