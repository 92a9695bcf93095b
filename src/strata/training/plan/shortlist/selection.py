"""Candidate plans of a job in a fraction of a second: what a learned policy picks from under a preference.

No proof, unlike the planner: estimates of all branches stand for their values, and only those are built that
some preference could want, or that are the best of their domains. What is built is evaluated exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.training.plan.exact.pareto import vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.routes import efficient
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, within_limits
from strata.training.plan.shortlist.branches import Builder
from strata.training.plan.shortlist.preferences import preferences
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan

TRIES: Final = 12
"""Branches of single domains built for being the fastest or the cheapest, shared by all domains."""

CHECKED: Final = 6
"""Branches built because they might still be the fastest on one domain, of those that turn out to fit."""

LOOKED_AT: Final = 256
"""Branches looked at to find them: an estimate of memory may be wrong either way. Each takes 0.2 ms."""

OFF: Final = 0.97
"""An estimate of a single domain may be so much too high, where chunks are interleaved or a fill is short."""

SETS: Final = 4
"""Sets of domains whose fastest pipeline is built, and whose cheapest pipeline or sharing is."""

FASTEST: Final = 12
"""Sets of domains whose fastest sharing is built."""

QUICK: Final = 4
"""The same where time alone is the goal."""

NEXT: Final = 8
"""Branches that are built beside those for being fast, where time alone is the goal."""

ROUND: Final = 32
"""Branches built at most between two looks at what they brought."""

ROUNDS: Final = 4

FEW: Final = 2000
"""Up to so many branches a problem is searched exactly besides: there estimates are at their worst."""

CLOSE_ENOUGH: Final = 0.003
"""A branch that could better the plans at hand by less than this share of their range is not built."""

CELL: Final = 0.003
"""Branches that differ by less, in log time and in utilisation, are looked at once."""


def shortlist(problem: Problem, *, most: int = 256, is_time: bool = False) -> list[Evaluated]:
    """Return at most `most` legal plans, evaluated exactly, by step time; empty only where nothing fits.

    They hold the best plans found of every domain alone and of each kind, and plans close to the Pareto front
    of (step time, utilisation, money), or, where the goal `is_time` alone, more of the fastest.
    Deterministic. `score` is the step time.
    """
    if not problem.fleet.domains:
        return []
    return _Choice(problem, is_time=is_time).run(most)


class _Choice:
    def __init__(self, problem: Problem, *, is_time: bool) -> None:
        self.builder, self.is_time = Builder(problem), is_time
        self.problem = self.builder.problem
        self.branches = self.builder.branches
        self.alive = self.branches.likely.copy()
        self.built = np.zeros(len(self.branches.item), dtype=bool)
        self.items: dict[TrainingPlan, Evaluated] = {}

    def run(self, most: int) -> list[Evaluated]:
        self._build(self._best_of_sets())
        self._drop_hopeless()
        self._thin()
        weights = preferences(ROUND)
        for _ in range(0 if self.is_time else ROUNDS):
            if not self.alive.any() or len(self.items) >= most:
                break
            self._build(self._wanted(weights))
            self._drop_hopeless()
        if self.is_time:
            alive = np.flatnonzero(self.alive)
            self._build(alive[np.argsort(self.branches.values[0, alive], kind="stable")[:NEXT]])
        self._check()
        self._add_singles()
        if self.builder.count <= FEW:
            self._search()
        return self._kept(most)

    def _best_of_sets(self) -> Ints:
        """Return the fastest and the cheapest branch of every domain alone, and of the best sets of several."""
        branches, domains = self.branches, len(self.problem.fleet.domains)
        is_chain = branches.config >= 0
        groups = max(1, len(self.builder.shards.groups))
        picked: list[int] = []
        for rows, names, counts, tries in (
            (branches.single, branches.item, (domains, domains), max(1, TRIES // domains)),
            (is_chain & ~branches.single, branches.item, (SETS, SETS), 1),
            (~is_chain, branches.item % groups, (QUICK if self.is_time else FASTEST, SETS), 1),
        ):
            inside = np.flatnonzero(rows & branches.likely)
            for column, count in zip((0,) if self.is_time else (0, 2), counts, strict=False):
                order = inside[np.argsort(branches.values[column, inside], kind="stable")]
                for _ in range(tries):
                    _, first = np.unique(names[order], return_index=True)
                    picked += order[np.sort(first)[:count]].tolist()
                    order = np.delete(order, first)
        return np.array(list(dict.fromkeys(picked)), dtype=np.int64)

    def _check(self) -> None:
        """Build what may still be the fastest on a single domain, or at all, up to CHECKED branches of each.

        Where nothing has been built yet, go on until something is, whatever it takes.
        """
        times, single = self.branches.values[0], self.branches.single
        for alone in (True, False):
            scores = (item.score for item in self.items.values() if not alone or len(item.plan.domains) == 1)
            best = min(scores, default=np.inf)
            rows = np.flatnonzero((single if alone else ~single) & ~self.built & (times * OFF < best))
            nearest = rows[np.argsort(times[rows], kind="stable")][:LOOKED_AT]
            # Those that do not fit, often the fastest if they did, must not use up the places of those that do.
            built = ((row, self.builder.plans(row)) for row in nearest.tolist())
            fitting = dict(islice(((row, plans) for row, plans in built if plans), CHECKED))
            rows, below = np.array(list(fitting), dtype=np.int64), np.array([[best, -np.inf, -np.inf]])
            self._evaluate(rows, chain(*fitting.values()), front=below)
            self._build_others(fitting, below)
        rows = np.flatnonzero(~self.built)
        for row in rows[np.argsort(times[rows], kind="stable")] if not self.items else ():
            self._build(np.array([row]))
            if self.items:
                break

    def _add_singles(self) -> None:
        """Build a plan of each domain that has none alone yet: the first that fits, of LOOKED_AT branches."""
        have = {name for item in self.items.values() if len(item.plan.domains) == 1 for name in item.plan.domains}
        missing = [k for k, domain in enumerate(self.problem.fleet.domains) if domain.name not in have]
        left = np.flatnonzero(self.branches.single & ~self.built)
        left = left[np.argsort(self.branches.values[0, left], kind="stable")]
        for place in missing:
            inside = self.builder.chains.inside[self.branches.item[left], place] > 0
            for row in left[inside][: LOOKED_AT // len(missing)].tolist():
                # Where all schedules are fixed orders a branch has no other plans.
                if plans := self.builder.plans(row) if self.builder.in_turn else self.builder.other_plans(row):
                    self._evaluate(np.array([row]), plans)
                    break

    def _search(self) -> None:
        """Add the fastest plan of all, and those an exact search meets on its way to it."""
        job = replace(self.problem.job, objective=Objective.TIME)
        everything = range(len(self.problem.fleet.domains))
        search = Search(replace(self.problem, job=job), Scales(), everything, clock=lambda: 0.0, deadline=0.0)
        for item in search.run().by_set.values():
            self.items.setdefault(item.plan, item)

    def _drop_hopeless(self) -> None:
        """Drop the branches that a plan at hand is as good as, or nearly, in all three."""
        if not self.items:
            return
        points = np.array([vector(item.report) for item in self.items.values()])
        front = points[efficient(points)]
        slack = self._slack(front)
        rows = np.flatnonzero(self.alive)
        self.alive[rows[_dominated(self.branches.values[:, rows], front - slack)]] = False

    def _thin(self) -> None:
        """Keep the cheapest of the branches that are all but equal in time and utilisation."""
        rows = np.flatnonzero(self.alive)
        if not len(rows):
            return
        time_s, unused, usd = self.branches.values[:, rows]
        cells = np.floor(np.log(time_s) / CELL) * 1e4 + np.floor(unused / CELL)
        order = np.lexsort((usd, cells))
        first = np.concatenate([[True], np.diff(cells[order]) != 0])
        self.alive[:] = False
        self.alive[rows[order[first]]] = True

    def _wanted(self, weights: Floats) -> Ints:
        """Return the branches whose estimates are the best under some preference (augmented Tchebycheff)."""
        rows = np.flatnonzero(self.alive)
        values = self.branches.values[:, rows]
        low, high = values.min(axis=1, keepdims=True), np.percentile(values, 90, axis=1, keepdims=True)
        terms = (values - low) / np.maximum(high - low, 1e-12)
        picked = []
        for w in weights:
            a, b, c = terms * w[:, None]
            picked.append(int(np.argmin(np.maximum(np.maximum(a, b), c) + 1e-3 * (a + b + c))))
        return rows[list(dict.fromkeys(picked))]

    def _build(self, picked: Ints) -> None:
        plans = {row: self.builder.plans(row) for row in picked.tolist()}
        self._evaluate(picked, chain(*plans.values()))
        front = self._front()
        self._build_others(plans, front - self._slack(front))

    def _build_others(self, plans: Mapping[int, list[TrainingPlan]], front: Floats) -> None:
        """Build the other plans of branches that could be better than a front, by those that are there."""
        hopeful = [row for row, own in plans.items() if not own or self._is_hopeful(own, front)]
        others = (plan for row in hopeful for plan in self.builder.other_plans(row))
        self._evaluate(np.array(list(plans), dtype=np.int64), others, front=front)

    def _is_hopeful(self, plans: list[TrainingPlan], front: Floats) -> bool:
        """Whether some of these pipelines could join the front if none of their stages ever waited for the first
        and the last microbatches."""
        items = [self.items[plan] for plan in plans if plan in self.items]
        for item in items:
            pipeline = item.plan.pipelines[0]
            busy = pipeline.microbatches / (pipeline.microbatches + len(pipeline.stages) - 1)
            if not _dominated(np.array([vector(item.report)]).T * [[busy], [1 / busy], [busy]], front)[0]:
                return True
        return False

    @staticmethod
    def _slack(front: Floats) -> Floats:
        """Return the differences that do not count [3]."""
        return CLOSE_ENOUGH * np.maximum(np.ptp(front, axis=0), 1e-12) if len(front) > 1 else np.zeros(3)

    def _front(self) -> Floats:
        """Return the front of the plans at hand [N, 3]: of time alone where that is the goal."""
        if self.is_time:
            return np.array(
                [[min((item.score for item in self.items.values()), default=np.inf), -np.inf, -np.inf]]
            )
        points = np.array([vector(item.report) for item in self.items.values()]).reshape(-1, 3)
        return points[efficient(points)] if len(points) else points

    def _evaluate(self, picked: Ints, built: Iterable[TrainingPlan], *, front: Floats | None = None) -> None:
        """Evaluate the plans of some branches, but for those that some of a front are as good as in any case."""
        self.alive[picked], self.built[picked] = False, True
        plans = [plan for plan in dict.fromkeys(built) if plan not in self.items]
        model = self.problem.model
        if front is not None and plans:
            bounds = np.array([vector(bound) for bound in model.bounds(plans)])
            plans = [plan for plan, out in zip(plans, _dominated(bounds.T, front), strict=True) if not out]
        for plan, report in zip(plans, model.reports(plans), strict=True):
            if np.isfinite(report.step_time_s) and within_limits(self.problem.job, report):
                self.items[plan] = Evaluated(plan, report, report.step_time_s)

    def _kept(self, most: int) -> list[Evaluated]:
        """Return the fastest plan of each domain alone, the front, the fastest of each domain set, then others."""
        items = sorted(self.items.values(), key=lambda item: (*vector(item.report), sorted(item.plan.domains)))
        if not items:
            return []
        front = [items[k] for k in efficient(np.array([vector(item.report) for item in items]))]
        by_set: dict[object, Evaluated] = {}
        for item in items:
            by_set.setdefault(item.domain_set, item)
        singles = [item for item in by_set.values() if len(item.domain_set[1]) == 1]
        chosen = {id(item): item for item in (*singles, *front, *by_set.values(), *items)}
        return sorted(list(chosen.values())[:most], key=lambda item: vector(item.report))


def _dominated(values: Floats, points: Floats) -> Bools:
    """Return which columns of `values` [3, N] are no better than some row of `points` in all three."""
    out = np.zeros(values.shape[1], dtype=bool)
    for time_s, unused, usd in points:
        out |= (values[0] >= time_s) & (values[1] >= unused) & (values[2] >= usd)
    return out
