"""`strata bench astra`: our ASTRA-compatible mode against a table of ASTRA-sim's own runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, rows


@click.command()
@click.argument("table", type=click.Path())
@output_option
def astra(table: str, output: str) -> None:
    """Answer every run of the CSV file TABLE as ASTRA-sim would, and count equal nanoseconds.

    Without the column reported_ns the answers alone are given. Runs that failed are not counted; the reason
    is. Nor are llm runs: they show ASTRA-sim's scale, their rows say little of them. Pipelines are shown beside
    our default model too.
    """
    from strata.evaluation.bench.astra import measure

    data = measure(table)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
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
