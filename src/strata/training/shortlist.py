"""Candidate plans of a job in a fraction of a second: what a learned policy picks from under a preference.

No proof, unlike the planner: the closed-form bounds of all branches stand for their values, and only those are
built that some preference could want, or that are the best of their domains. What is built is evaluated exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.decision import Reason
from strata.training.exact.chain_space import ChainSpace
from strata.training.exact.pareto import vector
from strata.training.exact.problem import Problem
from strata.training.exact.routes import efficient
from strata.training.exact.search import Evaluated
from strata.training.exact.shards import ShardSpace
from strata.training.exact.some_chains import SomeChains
from strata.training.exact.wide import first_pools
from strata.training.objective import within_limits
from strata.training.preferences import preferences
from strata.workload.plan import TrainingPlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALL_SUBSETS: Final = 8
"""Up to so many domains all their subsets are looked at; above, pairs and the subsets of pools."""

ROUND: Final = 32
"""Branches built between two looks at what they brought."""

CLOSE_ENOUGH: Final = 0.004
"""A branch that could better the plans at hand by less than this share of their range is not built."""


@dataclass(frozen=True, slots=True)
class _Branches:
    """What could be built: estimates [N, 3] of (time, -utilisation, money), and where each comes from.

    setting: [N] position in problem.settings, -1 for a sharing. item: [N] row of the chains' masks, or
    way × groups + group.
    """

    values: Floats
    setting: Ints
    item: Ints


def shortlist(problem: Problem, *, most: int = 256) -> list[Evaluated]:
    """Return at most `most` legal plans, evaluated exactly, by step time; empty only where nothing fits.

    They hold the best plans found of every domain alone and of each kind, and plans close to the Pareto front
    of (step time, utilisation, money). Deterministic. `score` is the step time.
    """
    if not problem.fleet.domains:
        return []
    return _Builder(problem).run(most)


class _Builder:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        count = len(problem.fleet.domains)
        members = tuple(range(count))
        self.chains: ChainSpace = (
            ChainSpace(problem, members)
            if count <= ALL_SUBSETS
            else SomeChains(problem, first_pools(problem)[:2], pairs=count <= 2 * ALL_SUBSETS)
        )
        self.shards = ShardSpace(problem, members)
        self.items: dict[TrainingPlan, Evaluated] = {}
        self.branches = self._branches()
        self.alive = np.ones(len(self.branches.item), dtype=bool)

    def run(self, most: int) -> list[Evaluated]:
        self._build(self._best_of_sets())
        weights = preferences(ROUND)
        while len(self.items) < most and self.alive.any():
            if self.items:
                points = np.array([vector(item.report) for item in self.items.values()])
                front = points[efficient(points)]
                slack = CLOSE_ENOUGH * np.maximum(front.max(axis=0) - front.min(axis=0), 1e-12)
                rows = np.flatnonzero(self.alive)
                self.alive[rows[_dominated(self.branches.values[rows], front - slack)]] = False
            self._build(self._wanted(weights))
        return self._kept(most)

    def _branches(self) -> _Branches:
        values: list[Floats] = [np.empty((0, 3))]
        settings: list[Ints] = [np.empty(0, dtype=np.int64)]
        items: list[Ints] = [np.empty(0, dtype=np.int64)]
        for number, setting in enumerate(self.problem.settings):
            bound = self.chains.bounds(setting)
            rows = np.flatnonzero(np.isfinite(bound.step_s))
            values.append(np.stack([bound.step_s[rows], -bound.utilization[rows], bound.cost_usd[rows]], axis=1))
            settings.append(np.full(len(rows), number))
            items.append(rows)
        step_s = self.shards.bounds()
        if step_s.size:
            ways, groups = np.nonzero(np.isfinite(step_s))
            values.append(self._sharing_values(step_s[ways, groups], groups))
            settings.append(np.full(len(ways), -1))
            items.append(ways * step_s.shape[1] + groups)
        return _Branches(np.concatenate(values), np.concatenate(settings), np.concatenate(items))

    def _sharing_values(self, step_s: Floats, groups: Ints) -> Floats:
        """Return estimates: a sharing takes all devices of its domains, and uses them as well as any plan does."""
        domains = self.problem.fleet.domains
        usd = np.array([(d.price_usd_per_device_hour or 0.0) * d.num_devices / 3600 for d in domains])
        devices = np.array([d.num_devices for d in domains], dtype=float)
        inside = [[i for unit in group for i in unit] for group in self.shards.groups]
        usd_per_s = np.array([usd[picked].sum() for picked in inside])
        size = np.array([devices[picked].sum() for picked in inside])
        busy_s = self.problem.job.global_batch * self._useful_s()
        return np.stack(
            [step_s, -np.minimum(1.0, busy_s / (size[groups] * step_s)), step_s * usd_per_s[groups]], 1
        )

    def _useful_s(self) -> float:
        """Return the device-seconds of use in one sample, on the domains where it is least."""
        least = np.inf
        for setting in {(s.tensor_parallel, s.microbatch_size): s for s in self.problem.settings}.values():
            useful = self.problem.effort(setting).useful_s
            least = min(least, float(useful[useful > 0].min(initial=np.inf)) / setting.microbatch_size)
        return least if np.isfinite(least) else 0.0

    def _best_of_sets(self) -> Ints:
        """Return the fastest and the cheapest branch of every domain alone, and of the best sets of several."""
        branches = self.branches
        picked: list[int] = []
        single = (self.chains.inside.sum(axis=1) == 1)[np.maximum(branches.item, 0) % len(self.chains.masks)]
        for rows, count in (
            (np.flatnonzero((branches.setting >= 0) & single), len(self.problem.fleet.domains)),
            (np.flatnonzero((branches.setting >= 0) & ~single), 8),
            (np.flatnonzero(branches.setting < 0), 8),
        ):
            for column in (0, 2):
                order = rows[np.argsort(branches.values[rows, column], kind="stable")]
                keys = branches.item[order] if branches.setting[rows].min(initial=0) >= 0 else order
                _, first = np.unique(keys, return_index=True)
                picked += order[np.sort(first)[:count]].tolist()
        return np.array(list(dict.fromkeys(picked)), dtype=np.int64)

    def _wanted(self, weights: Floats) -> Ints:
        """Return the branches whose estimates are the best under some preference (augmented Tchebycheff)."""
        rows = np.flatnonzero(self.alive)
        if not len(rows):
            return rows
        values = self.branches.values[rows]
        low = values.min(axis=0)
        high = np.percentile(values, 90, axis=0)
        terms = (values - low) / np.maximum(high - low, 1e-12)
        picked = [int(np.argmin((terms * w).max(axis=1) + 1e-3 * (terms * w).sum(axis=1))) for w in weights]
        return rows[list(dict.fromkeys(picked))]

    def _build(self, picked: Ints) -> None:
        self.alive[picked] = False
        plans: list[TrainingPlan] = []
        for row in picked.tolist():
            number, item = int(self.branches.setting[row]), int(self.branches.item[row])
            if number < 0:
                plan = self.shards.build(self.shards.sharing(*divmod(item, len(self.shards.groups))))
                plans += [] if plan is None else [plan]
                continue
            built = self.chains.build(self.problem.settings[number], int(self.chains.masks[item]))
            plans += [] if isinstance(built, Reason) else built
        plans = [plan for plan in dict.fromkeys(plans) if plan not in self.items]
        for plan, report in zip(plans, self.problem.model.reports(plans), strict=True):
            if np.isfinite(report.step_time_s) and within_limits(self.problem.job, report):
                self.items[plan] = Evaluated(plan, report, report.step_time_s)

    def _kept(self, most: int) -> list[Evaluated]:
        """Return the non-dominated plans, then the fastest and cheapest of each domain set, up to `most`."""
        items = sorted(self.items.values(), key=lambda item: (*vector(item.report), sorted(item.plan.domains)))
        if not items:
            return []
        kept = [items[k] for k in efficient(np.array([vector(item.report) for item in items]))]
        by_set: dict[object, Evaluated] = {}
        for item in items:
            by_set.setdefault(item.domain_set, item)
        singles = [item for item in by_set.values() if len(item.domain_set[1]) == 1]
        others = sorted(by_set.values(), key=lambda item: item.score)
        chosen = {id(item): item for item in (*singles, *kept, *others, *items)}
        return sorted(list(chosen.values())[:most], key=lambda item: vector(item.report))


def _dominated(values: Floats, points: Floats) -> NDArray[np.bool_]:
    out = np.zeros(len(values), dtype=bool)
    for point in points:
        out |= (values >= point).all(axis=1)
    return out
