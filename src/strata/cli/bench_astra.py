"""`strata bench astra`: our ASTRA-compatible mode against a table of ASTRA-sim's own runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.simulate.compat.reference import Score

Data = dict[str, Any]


@click.command()
@click.argument("table", type=click.Path())
@output_option
def astra(table: str, output: str) -> None:
    """Answer every run of the CSV file TABLE as ASTRA-sim would, and count equal nanoseconds.

    Without the column reported_ns the answers alone are given. Runs that failed are not counted; the reason
    is. So are the llm runs: they show ASTRA-sim's scale, a row says too little of them.
    """
    from strata.simulate.compat.reference import SCALE_ONLY, answers, read_rows, score

    found = answers(read_rows(table))
    counted = [answer for answer in found if answer.family != SCALE_ONLY]
    families = sorted({answer.family for answer in found})
    data: Data = {
        "answers": [
            {
                "row": answer.row,
                "scenario": answer.scenario,
                "backend": answer.backend,
                "ours_ns": answer.ours_ns,
                "reason": answer.reason,
                "doubt": answer.doubt,
            }
            for answer in found
        ],
        **_score(score(counted)),
        "families": {
            name: {
                **_score(score(answer for answer in found if answer.family == name)),
                **({"worst": None} if name == SCALE_ONLY else {}),
            }
            for name in families
        },
        "not_counted": [name for name in families if name == SCALE_ONLY],
        "misses": [
            {
                "scenario": answer.scenario,
                "backend": answer.backend,
                "expected_ns": answer.expected_ns,
                "ours_ns": answer.ours_ns,
            }
            for answer in counted
            if answer.error
        ],
    }
    emit(data, output, lambda console: _print(console, data))


def _score(score: Score) -> Data:
    return {"rows": score.rows, "exact": score.exact, "worst": score.worst}


def _print(console: Console, data: Data) -> None:
    if not data["rows"]:
        console.print(
            rows(
                ("row", "scenario", "backend", "ours [ns]"),
                [
                    (str(each["row"]), each["scenario"], each["backend"], _ns(each["ours_ns"]))
                    for each in data["answers"]
                ],
                right=(0, 3),
            )
        )
        console.print()
    scores = {**data["families"], "all": data}
    console.print(
        rows(
            ("family", "rows", "exact", "worst error"),
            [
                (
                    name + "*" * (name in data["not_counted"]),
                    str(each["rows"]),
                    str(each["exact"]),
                    _share(each["worst"]),
                )
                for name, each in scores.items()
            ],
            right=range(1, 4),
        )
    )
    if data["not_counted"]:
        console.print("* shows ASTRA-sim's scale; not in `all`")
    if data["misses"]:
        console.print()
        console.print(
            rows(
                ("miss", "backend", "ASTRA-sim [ns]", "ours [ns]"),
                [
                    (each["scenario"], each["backend"], _ns(each["expected_ns"]), _ns(each["ours_ns"]))
                    for each in data["misses"]
                ],
                right=(2, 3),
            )
        )
    for title, key in (("no answer", "reason"), ("ASTRA-sim answers, but", "doubt")):
        for text, count in Counter(each[key] for each in data["answers"] if each[key]).items():
            console.print()
            console.print(f"{title} ({count} rows): {text}")


def _ns(value: int | None) -> str:
    return "-" if value is None else f"{value:,}".replace(",", " ")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.4g} %"
