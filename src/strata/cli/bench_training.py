"""`strata bench training`: plan every point of a case file and score the plans by the neutral formulas."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.evaluation.published.file import Case, CaseFile, CasePoint


@click.command()
@click.argument("cases", type=click.Path(), metavar="CASES.json")
@output_option
def training(cases: str, output: str) -> None:
    """Plan every point of CASES.json (measured layer profiles, quotas, prices).

    Plans are scored with the neutral formulas all planners are compared by; search_s counts reading the
    file, building all tables and the search. A point whose limits nothing meets has no plan, and a reason.
    """
    from strata.evaluation.published.file import read_cases

    started = time.perf_counter()
    file = read_cases(cases)
    reading_s = time.perf_counter() - started
    points = [(case, point) for case in file.cases for point in case.points]
    answers = []
    with progress("planning", total=len(points)) as advance:
        for case, point in points:
            answers.append(_answer(file, case, point, reading_s))
            advance(1)
    emit({"points": answers}, output, lambda terminal: _show(terminal, answers, points))


def _answer(file: CaseFile, case: Case, point: CasePoint, reading_s: float) -> dict[str, Any]:
    from strata.evaluation.published.neutral import Scorer
    from strata.evaluation.published.search import plan_point

    started = time.perf_counter()
    found = plan_point(Scorer(file, case.model, case.global_batch), point)
    search_s = reading_s + time.perf_counter() - started
    score = found.score
    answer: dict[str, Any] = {
        "case": case.id,
        "point": point.id,
        "minimize": point.minimize,
        "plan": found.plan.to_dict() if found.plan else None,
        "iteration_s": score.iteration_s if score else None,
        "cost_usd": score.cost_usd if score else None,
        "search_s": search_s,
        "gpus_used": score.gpus_used if score else 0,
        "evaluations": found.num_evaluated,
        "lower_bound": found.bound,
    }
    if found.reason:
        answer["reason"] = found.reason
    return answer


def _show(terminal: Console, answers: list[dict[str, Any]], points: list[tuple[Case, CasePoint]]) -> None:
    body = []
    for answer, (case, point) in zip(answers, points, strict=True):
        ours = answer[point.minimize]
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
                _ratio(ours, answer["lower_bound"]),
                f"{answer['search_s']:.2f}",
            )
        )
    headers = ("point", "in", "ours", "Sailor", "ratio", "best", "ratio", "/bound", "search s")
    terminal.print(rows(headers, body, right=range(2, len(headers))))
    for answer in answers:
        if "reason" in answer:
            terminal.print(f"{answer['case']} {answer['point']}: {answer['reason']}", style="yellow")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ratio(ours: float | None, other: float | None) -> str:
    return "-" if ours is None or not other else f"{ours / other:.3f}"
