"""`strata bench training`: plan every point of a case file and score the plans by the neutral formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import Line, Shown, emit, output_option, progress, rows

if TYPE_CHECKING:
    from strata.evaluation.published_benchmarks.case_file import CasePoint, TrainingCase


@click.command()
@click.argument("cases", type=click.Path(), metavar="CASES.json")
@output_option
def training(cases: str, output: str) -> None:
    """Plan every point of CASES.json (measured layer profiles, quotas, prices).

    Plans are scored with the neutral formulas all planners are compared by; search_s counts reading the
    file, building all tables and the search. A point whose limits nothing meets has no plan, and a reason.
    """
    from strata.evaluation.bench.training import measure

    data, points = measure(cases, progress=progress)
    emit(data, output, _show(data["points"], points))


def _show(plans: list[dict[str, Any]], points: list[tuple[TrainingCase, CasePoint]]) -> Shown:
    body = []
    for plan, (case, point) in zip(plans, points, strict=True):
        ours = plan[point.minimize]
        sailor = point.peers.get("SAILOR", {}).get(point.minimize)
        body.append(
            (
                f"{case.id} {point.id}",
                "USD" if point.minimize == "cost_usd" else "s",
                _figure(ours),
                _figure(sailor),
                _ratio(ours, sailor),
                _figure(point.best_known),
                _ratio(ours, point.best_known),
                _ratio(ours, plan["lower_bound"]),
                f"{plan['search_s']:.2f}",
            )
        )
    headers = ("point", "in", "ours", "Sailor", "ratio", "best", "ratio", "/bound", "search s")
    yield rows(headers, body, right=range(2, len(headers)))
    for plan in plans:
        if "reason" in plan:
            yield Line(f"{plan['case']} {plan['point']}: {plan['reason']}", style="yellow")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ratio(ours: float | None, other: float | None) -> str:
    return "-" if ours is None or not other else f"{ours / other:.3f}"
