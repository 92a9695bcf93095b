"""Plans for every point of a file of published cases, scored by the neutral formulas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata.evaluation.published_benchmarks.case_file import CaseFile, CasePoint, TrainingCase, read_cases
from strata.evaluation.published_benchmarks.formulas import FormulaScorer
from strata.evaluation.published_benchmarks.search.point import search_point
from strata.progress import Progress, silent
from strata.tables import Line, Shown, rows


def measure(
    path: str | Path, *, progress: Progress = silent
) -> tuple[dict[str, Any], list[tuple[TrainingCase, CasePoint]]]:
    """Plan every point; return what `-o json` prints, and the points with the peers' published figures."""
    started = time.perf_counter()
    file = read_cases(path)
    reading_s = time.perf_counter() - started
    points = [(case, point) for case in file.cases for point in case.points]
    plans = []
    with progress("planning", total=len(points)) as advance:
        for case, point in points:
            plans.append(_planned(file, case, point, reading_s))
            advance(len(plans))
    return {"points": plans}, points


def _planned(file: CaseFile, case: TrainingCase, point: CasePoint, reading_s: float) -> dict[str, Any]:
    started = time.perf_counter()
    result = search_point(FormulaScorer(file, case.model, case.global_batch), point)
    search_s = reading_s + time.perf_counter() - started
    score = result.score
    data: dict[str, Any] = {
        "case": case.id,
        "point": point.id,
        "minimize": point.minimize,
        "plan": result.plan.to_dict() if result.plan else None,
        "iteration_s": score.iteration_s if score else None,
        "cost_usd": score.cost_usd if score else None,
        "search_s": search_s,
        "gpus_used": score.gpus_used if score else 0,
        "evaluations": result.num_evaluated,
        "lower_bound": result.bound,
        "peers": {name: dict(figures) for name, figures in point.peers.items()},
    }
    if result.reason:
        data["reason"] = result.reason
    return data


def show(plans: list[dict[str, Any]], points: list[tuple[TrainingCase, CasePoint]]) -> Shown:
    """Yield what is shown of the measurement to people."""
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
    if beside := list(_time_and_money(plans)):
        yield ""
        columns = ("time and money", "ours s", "USD", "Sailor s", "USD", "time", "money")
        yield rows(columns, beside, right=range(1, len(columns)))
    for plan in plans:
        if "reason" in plan:
            yield Line(f"{plan['case']} {plan['point']}: {plan['reason']}", style="yellow")


def _time_and_money(plans: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield ours beside Sailor's where both of its figures are known; a ratio below 1 is in our favour."""
    for plan in plans:
        ours, sailor = (plan["iteration_s"], plan["cost_usd"]), plan["peers"].get("SAILOR", {})
        theirs = sailor.get("iteration_s"), sailor.get("cost_usd")
        if ours[0] is not None and None not in theirs:
            ratios = (_ratio(own, other) for own, other in zip(ours, theirs, strict=True))
            yield f"{plan['case']} {plan['point']}", *map(_figure, ours), *map(_figure, theirs), *ratios


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ratio(ours: float | None, other: float | None) -> str:
    return "-" if ours is None or not other else f"{ours / other:.3f}"
