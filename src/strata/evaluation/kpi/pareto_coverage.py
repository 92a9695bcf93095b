"""Row `pareto_coverage`: how much of a front, exact where proved, 64 preferences find, and other searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Trust
from strata.errors import install
from strata.evaluation.kpi.fronts import measures, scaled
from strata.evaluation.kpi.instances import FRONTS, PlanningCase
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.searches import nsga2_front, random_front
from strata.evaluation.kpi.study import MOST_PLANS, QUERIES, Study
from strata.stats import mean_interval
from strata.training.plan.baselines import nsga2
from strata.training.plan.exact.pareto import front, vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.shortlist.preferences import preferences

TARGET: Final = 0.85
HEADLINE: Final = "coverage_eps_1"

MOST_LOOKED: Final = {True: 500, False: 1400}
"""Looks into sharings and orders of pipelines before a search for a front ends, by whether the run is quick: some
10 ms each. They are counted, not timed: all machines have the same front."""


def measure(study: Study) -> Kpi:
    """Return the row over all instances on which a plan fits."""
    instances, most_looked = FRONTS.draw(quick=study.quick), MOST_LOOKED[study.quick]
    measured: list[dict[str, dict[str, float]]] = []
    sizes, is_exact = [], list[bool]()
    for done, instance in enumerate(instances, 1):
        problem, started = instance.problem(), study.clock()
        items = study.candidates(problem)
        listed_s = study.clock() - started
        # Whatever is known first rules branches out: the front is the same.
        best, complete = front(
            instance.problem(), clock=study.clock, deadline=np.inf, start=items, most_looked=most_looked
        )
        if best:
            measured.append(_compare(study, instance, problem, items, points(best), listed_s))
            sizes.append(len(best))
            is_exact.append(complete)
        study.advance(done / len(instances))
    rng = study.rng()
    headline = [case["hi_ppo"][HEADLINE] for case in measured]
    interval = mean_interval(headline, rng=rng) if len(measured) > 1 else None
    return Kpi(
        name="pareto_coverage",
        definition=f"mean share of the front (step time, utilisation, money) within 1 % of its range of a plan "
        f"found with {QUERIES} preferences, fleets of 5 to 8 domains; the front is exact on {sum(is_exact)} of "
        f"{len(is_exact)}, else the best known",
        baseline="the front of branch and bound over the whole plan space, which begins with all candidates and "
        f"ends with proof or after {most_looked:,} looks into branches",
        value=float(np.mean(headline)) if headline else None,
        target=TARGET,
        sense="at least",
        ci95=ends(interval),
        instances=len(measured),
        guards=_guards(measured, sizes, is_exact),
        trust=Trust.ANALYTIC,
        beside={
            name: float(np.mean([case[name][HEADLINE] for case in measured]))
            for name in (measured[0] if measured else ())
            if name not in ("hi_ppo", "linear_weights_oracle")
        },
    )


def points(items: Sequence[Evaluated]) -> Floats:
    """Return what the front minimises, [N, 3]."""
    return np.array([vector(item.report) for item in items]).reshape(-1, 3)


def linear_oracle(exact: Floats, *, queries: int) -> Floats:
    """Return the front points that minimise some weighted sum: the most a linear reward could ever find."""
    worth = preferences(queries) @ scaled(exact, exact).T
    return np.asarray(exact[np.unique(worth.argmin(axis=1))])


def _compare(
    study: Study, instance: PlanningCase, problem: Problem, items: list[Evaluated], exact: Floats, listed_s: float
) -> dict[str, dict[str, float]]:
    answers: dict[str, dict[str, float]] = {}

    def add(name: str, measured: Floats, elapsed_s: float) -> None:
        answers[name] = {**measures(measured, exact), "plans": float(len(measured)), "elapsed_s": elapsed_s}

    started = study.clock()
    add("hi_ppo", points(study.front(problem, items)), listed_s + study.clock() - started)
    add("untrained", points(study.untrained.front(problem, items)), 0.0)
    add("all_candidates", points(items), listed_s)
    add("linear_weights_oracle", linear_oracle(exact, queries=QUERIES), 0.0)
    started = study.clock()
    context = study.context(seed=instance.seed)
    drawn = random_front(instance.problem(), context, evaluations=MOST_PLANS)
    add("random_search", points(drawn), study.clock() - started)
    if nsga2.available():
        started = study.clock()
        context = study.context(seed=instance.seed)
        evolved = nsga2_front(instance.problem(), context, evaluations=MOST_PLANS)
        add("nsga2", points(evolved), study.clock() - started)
    return answers


def _guards(
    measured: Sequence[dict[str, dict[str, float]]], sizes: Sequence[int], is_exact: Sequence[bool]
) -> dict[str, Any]:
    methods = list(measured[0]) if measured else []
    guards: dict[str, Any] = {
        method: {name: float(np.mean([case[method][name] for case in measured])) for name in measured[0][method]}
        for method in methods
    }
    if not nsga2.available():
        guards["nsga2"] = f"not installed: {install('dev')}"
    guards["front_size"] = summary(sizes)
    guards["fronts_not_proved"] = len(is_exact) - sum(is_exact)
    for name, wanted in (("on_exact_fronts", True), ("on_fronts_not_proved", False)):
        each = [
            case["hi_ppo"][HEADLINE] for case, proved in zip(measured, is_exact, strict=True) if proved is wanted
        ]
        guards[name] = float(np.mean(each)) if each else None
    guards["share_of_instances_that_reach_it"] = (
        float(np.mean([case["hi_ppo"][HEADLINE] >= TARGET for case in measured])) if measured else None
    )
    guards["budget"] = {"preferences": QUERIES, "vectors_of_other_searches": MOST_PLANS}
    if measured:
        ours = guards["hi_ppo"][HEADLINE]
        guards["not_better_than"] = [
            name for name in ("random_search", "nsga2")
            if name in methods and guards[name][HEADLINE] >= ours
        ]  # fmt: skip
    return guards
