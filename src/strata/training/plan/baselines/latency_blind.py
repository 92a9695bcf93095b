"""Latency-blind: strata's own search told that every link has no latency, then run with the real one."""

from __future__ import annotations

from dataclasses import replace

from strata.training.plan.baselines.context import Context, best, evaluate, exact
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.search import Evaluated


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return what the latency-blind optimum really takes."""
    blind_links = {pair: replace(link, latency_s=0.0) for pair, link in problem.fleet.links.items()}
    blind = replace(problem, fleet=replace(problem.fleet, links=blind_links))
    chosen = exact(blind, context, range(min(len(problem.fleet.domains), POOL)))
    return best(evaluate(problem, context, [chosen.plan])) if chosen is not None else None
