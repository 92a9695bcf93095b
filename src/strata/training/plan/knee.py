"""The knee between time and money: the cheapest plan that is nearly as fast as the fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from strata.clock import Clock
from strata.training.plan.exact.problem import POOL
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, money
from strata.training.plan.report import TrainingPlanReport
from strata.workload.job import Objective

SLOWER: Final = 0.1
"""By how much of the best time the cheapest plan may be slower."""

WORTH: Final = 0.005
"""What a plan that stands in no row must save over one that does: less is a plan cut a little otherwise."""


def knee(report: TrainingPlanReport, *, clock: Clock, deadline: float) -> Evaluated | None:
    """Return the cheapest plan within SLOWER of the best time; the best itself where none is cheaper.

    None where time is not the goal or money is not known. Searched exactly on up to POOL domains, as far as there
    is time; else the cheapest of the plans that were evaluated.
    """
    best, job = report.best, report.problem.job
    if best is None or job.objective is not Objective.TIME or best.report.cost_usd_per_step is None:
        return None
    longest_s = (1 + SLOWER) * best.report.step_time_s
    near = [item for item in report.plans if item.report.step_time_s <= longest_s]
    cheapest = min(near, key=lambda item: money(item.report))
    members = range(len(report.problem.fleet.domains))
    if len(members) > POOL or clock() > deadline:
        return cheapest
    limits = replace(job.limits, tokens_per_s=best.report.tokens_per_s / (1 + SLOWER))
    problem = replace(report.problem, job=replace(job, objective=Objective.COST, limits=limits))
    search = Search(problem, Scales(), members, clock=clock, deadline=deadline)
    so_far = SearchResult({cheapest.domain_set: replace(cheapest, score=money(cheapest.report))})
    for item in search.run(so_far=so_far, keeps_best=True).ranked[:1]:
        if money(item.report) < (1 - WORTH) * money(cheapest.report):
            cheapest = replace(item, score=item.report.step_time_s)
    return cheapest
