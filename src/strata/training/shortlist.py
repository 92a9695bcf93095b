"""Candidate plans of a job in a fraction of a second: what a learned policy picks from under a preference.

No proof, unlike the planner: the closed-form bounds of all branches stand for their values, and only those are
built that some preference could want, or that are the best of their domains. What is built is evaluated exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.training.estimate import ChainEstimates
from strata.training.exact.chain import build_chain
from strata.training.exact.chain_space import ALL_ORDERS, ChainSpace
from strata.training.exact.pareto import vector
from strata.training.exact.problem import POOL, Problem, Setting
from strata.training.exact.routes import best_path, efficient, efficient_routes
from strata.training.exact.search import Evaluated
from strata.training.exact.shards import ShardSpace
from strata.training.exact.some_chains import SomeChains
from strata.training.exact.wide import first_pools
from strata.training.objective import within_limits
from strata.training.preferences import preferences
from strata.workload.job import Schedule
from strata.workload.plan import TrainingPlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALL_SUBSETS: Final = 8
"""Up to so many domains all their subsets are looked at; above, pairs and the subsets of pools."""

POOLS: Final = 2

FEW_MICROBATCHES: Final = (1, 4)
FEW_SHAPES: Final = 6
"""What is tried on large fleets: more of either is seldom better there, and each costs."""

TRIES: Final = 12
"""Branches of single domains built for being the fastest or the cheapest, shared by all domains."""

CHECKED: Final = 12
"""Branches built because by their bounds they might be the fastest on one domain."""

SETS: Final = 12
"""Pipelines and sharings that are built for being the fastest or the cheapest of their domains."""

PROMISING: Final = 6000
"""Pipelines over several domains that are estimated: those of the best bounds under each of LEANINGS."""

LEANINGS: Final = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 1], [2, 1, 0], [1, 0, 1], [0, 2, 1]], dtype=float)
"""Weights of log time, log idleness and log money."""

SCHEDULES: Final = (Schedule.LATENCY_AWARE, Schedule.INTERLEAVED, Schedule.ONE_F_ONE_B, Schedule.GPIPE)

ROUND: Final = 32
"""Branches built at most between two looks at what they brought."""

ROUNDS: Final = 4

CLOSE_ENOUGH: Final = 0.003
"""A branch that could better the plans at hand by less than this share of their range is not built."""

CELL: Final = 0.003
"""Branches that differ by less, in log time and in utilisation, are looked at once."""


@dataclass(frozen=True, slots=True)
class _Branches:
    """What could be built: estimates [3, N] of (time, -utilisation, money), and where each comes from.

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
            else SomeChains(problem, first_pools(problem)[:POOLS], pairs=count <= 2 * ALL_SUBSETS)
        )
        large = count > ALL_SUBSETS
        self.shards = (
            ShardSpace(problem, members)
            if count <= POOL
            else ShardSpace(problem, members, microbatches=FEW_MICROBATCHES, shapes=FEW_SHAPES)
        )
        copies = sorted({setting.copies for setting in problem.settings})[:: 2 if large else 1]
        #: Positions in problem.settings: on a large fleet every second number of copies, and no large microbatch.
        self.settings = [
            number
            for number, setting in enumerate(problem.settings)
            if not large or (setting.copies in copies and setting.microbatch_size in FEW_MICROBATCHES)
        ]
        self.items: dict[TrainingPlan, Evaluated] = {}
        # The fastest schedule first: where it fits, no other is built.
        self.schedules = tuple(sorted(problem.job.schedules, key=SCHEDULES.index))
        self.branches = self._branches()
        self.bound_s = self.branches.values[0].copy()
        self.alive, self.built = np.ones((2, len(self.branches.item)), dtype=bool)
        self.built[:] = False

    def run(self, most: int) -> list[Evaluated]:
        self._estimate()
        self._build(self._best_of_sets())
        self._drop_hopeless()
        self._thin()
        weights = preferences(ROUND)
        for _ in range(ROUNDS):
            if not self.alive.any() or len(self.items) >= most:
                break
            self._build(self._wanted(weights))
            self._drop_hopeless()
        self._check_singles(CHECKED)
        return self._kept(most)

    def _estimate(self) -> None:
        """Keep the pipelines whose bounds promise most, with closer estimates in their place."""
        branches = self.branches
        chains = np.flatnonzero(branches.setting >= 0)
        several = self.chains.inside.sum(axis=1)[branches.item[chains]] > 1
        near: Ints = chains
        if several.sum() > PROMISING:
            rows = chains[several]
            logs = np.log(np.maximum(np.abs(branches.values[:, rows]), 1e-300))
            each = PROMISING // len(LEANINGS)
            scores = LEANINGS @ (logs * np.array([[1.0], [-1.0], [1.0]]))
            picks = [rows[np.argpartition(score, each)[:each]] for score in scores]
            near = np.concatenate([chains[~several], np.unique(np.concatenate(picks))])
        values = ChainEstimates(self.problem, self.chains).values(branches.setting[near], branches.item[near])
        fits = np.isfinite(values[0])
        # Where no estimate fits a domain's memory, the bounds' word is taken: building is what tells.
        if not fits.any():
            values, fits = branches.values[:, near], np.ones(len(near), dtype=bool)
        branches.values[:, near[fits]] = values[:, fits]
        self.alive[chains] = False
        self.alive[near[fits]] = True

    def _branches(self) -> _Branches:
        values: list[Floats] = [np.empty((3, 0))]
        settings: list[Ints] = [np.empty(0, dtype=np.int64)]
        items: list[Ints] = [np.empty(0, dtype=np.int64)]
        for number in self.settings:
            bound = self.chains.bounds(self.problem.settings[number])
            rows = np.flatnonzero(np.isfinite(bound.step_s))
            values.append(np.stack([bound.step_s[rows], -bound.utilization[rows], bound.cost_usd[rows]]))
            settings.append(np.full(len(rows), number))
            items.append(rows)
        step_s = self.shards.bounds()
        if step_s.size:
            ways, groups = np.nonzero(np.isfinite(step_s))
            values.append(self._sharing_values(step_s[ways, groups], ways, groups))
            settings.append(np.full(len(ways), -1))
            items.append(ways * step_s.shape[1] + groups)
        return _Branches(np.concatenate(values, axis=1), np.concatenate(settings), np.concatenate(items))

    def _sharing_values(self, step_s: Floats, ways: Ints, groups: Ints) -> Floats:
        """Return estimates: a sharing takes all devices of its domains, each as much of the batch as it can do."""
        domains, job, fleet = self.problem.fleet.domains, self.problem.job, self.problem.fleet
        inside = np.zeros((len(self.shards.groups), len(domains)))
        for row, group in enumerate(self.shards.groups):
            inside[row, [i for unit in group for i in unit]] = 1.0
        devices = np.array([d.num_devices for d in domains], dtype=float)
        priced = all(d.price_usd_per_device_hour is not None for d in domains)
        usd = devices * [(d.price_usd_per_device_hour or 0.0) * priced / 3600 for d in domains]
        rate = inside @ np.divide(devices, self._useful_s, out=np.zeros_like(devices), where=self._useful_s > 0)
        used = np.minimum(1.0, job.global_batch / np.maximum(rate[groups] * step_s, 1e-300))
        price = fleet.price_usd_per_byte()
        sent = (
            float(job.layers.params_before[-1])
            * job.element_bytes
            * np.array([2.0 / (factor * steps) for _, _, factor, steps in self.shards.ways])
        )
        members = inside.sum(axis=1)
        between = np.where(np.isfinite(price), price, 0.0)
        np.fill_diagonal(between, 0.0)
        mean = ((inside @ between) * inside).sum(axis=1) / np.maximum(members * (members - 1), 1)
        egress = sent[ways] * ((members - 1) * mean)[groups]
        return np.stack([step_s, -used, step_s * (inside @ usd)[groups] + egress])

    @cached_property
    def _useful_s(self) -> Floats:
        """Device-seconds of use in one sample in each domain; 0 where its speed is not known."""
        setting = self.problem.settings[0]
        useful = self.problem.effort(setting).useful_s / setting.microbatch_size
        return np.where(np.isfinite(useful), useful, 0.0)

    def _best_of_sets(self) -> Ints:
        """Return the fastest and the cheapest branch of every domain alone, and of the best sets of several."""
        branches = self.branches
        single = (self.chains.inside.sum(axis=1) == 1)[branches.item % len(self.chains.masks)]
        chain, alive = branches.setting >= 0, self.alive
        picked: list[int] = []
        domains = len(self.problem.fleet.domains)
        for rows, count, tries in (
            (np.flatnonzero(alive & chain & single), domains, max(1, TRIES // domains)),
            (np.flatnonzero(alive & chain & ~single), SETS, 1),
            (np.flatnonzero(alive & ~chain), SETS, 1),
        ):
            for column in (0, 2):
                order = rows[np.argsort(branches.values[column, rows], kind="stable")]
                names = branches.item[order] % (len(self.chains.masks) if chain[rows[:1]].any() else 1 << 62)
                for _ in range(tries):
                    _, first = np.unique(names, return_index=True)
                    picked += order[np.sort(first)[:count]].tolist()
                    order, names = np.delete(order, first), np.delete(names, first)
        return np.array(list(dict.fromkeys(picked)), dtype=np.int64)

    def _check_singles(self, most: int) -> None:
        """Build what by its bound may still be the fastest on a single domain, up to `most` branches.

        Where nothing has been built yet, go on until something is, whatever it takes.
        """
        chain = self.branches.setting >= 0
        single = (self.chains.inside.sum(axis=1) == 1)[self.branches.item % len(self.chains.masks)]
        rows = np.flatnonzero(chain & single & ~self.built)
        for row in rows[np.argsort(self.bound_s[rows], kind="stable")][:most]:
            best = min((item.score for item in self.items.values() if len(item.plan.domains) == 1), default=np.inf)
            if self.bound_s[row] >= best:
                break
            self._build(np.array([row]))
        rows = np.flatnonzero(~self.built)
        for row in rows[np.argsort(self.bound_s[rows], kind="stable")] if not self.items else ():
            self._build(np.array([row]))
            if self.items:
                break

    def _drop_hopeless(self) -> None:
        """Drop the branches that a plan at hand is as good as, or nearly, in all three."""
        if not self.items:
            return
        points = np.array([vector(item.report) for item in self.items.values()])
        front = points[efficient(points)]
        slack = CLOSE_ENOUGH * np.maximum(front.max(axis=0) - front.min(axis=0), 1e-12)
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
        self.alive[picked], self.built[picked] = False, True
        plans: list[TrainingPlan] = []
        for row in picked.tolist():
            number, item = int(self.branches.setting[row]), int(self.branches.item[row])
            if number < 0:
                plan = self.shards.build(self.shards.sharing(*divmod(item, len(self.shards.groups))))
                plans += [] if plan is None else [plan]
            else:
                plans += self._pipelines(self.problem.settings[number], int(self.chains.masks[item]))
        plans = [plan for plan in dict.fromkeys(plans) if plan not in self.items]
        for plan, report in zip(plans, self.problem.model.reports(plans), strict=True):
            if np.isfinite(report.step_time_s) and within_limits(self.problem.job, report):
                self.items[plan] = Evaluated(plan, report, report.step_time_s)

    def _pipelines(self, setting: Setting, mask: int) -> Iterator[TrainingPlan]:
        """Yield the plans of one subset: by the fastest and the cheapest route, both ways round."""
        picked = tuple(i for i in range(len(self.chains.members)) if mask >> i & 1)
        for order in self._orders(setting, picked):
            for plan in build_chain(self.problem, setting, order, schedules=self.schedules):
                if isinstance(plan, TrainingPlan):
                    yield plan
                    break

    def _orders(self, setting: Setting, picked: tuple[int, ...]) -> list[tuple[int, ...]]:
        if len(picked) == 1:
            return [picked]
        costs = self.problem.pair_costs(setting.microbatch_size)
        load = self.problem.message_bytes(setting.microbatch_size) * setting.copies
        if len(picked) <= ALL_ORDERS:
            orders = efficient_routes(costs, picked, load_bytes=load)[:ALL_ORDERS]
            return [*orders, *(order[::-1] for order in orders)]
        fast, _ = best_path(load * costs.slowness_sum + costs.latency_sum, picked)
        cheap, cost = best_path(costs.price_sum, picked)
        if not np.isfinite(cost):
            return []
        return list(dict.fromkeys([fast, fast[::-1], cheap, cheap[::-1]]))

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


def _dominated(values: Floats, points: Floats) -> NDArray[np.bool_]:
    """Return which columns of `values` [3, N] are no better than some row of `points` in all three."""
    out = np.zeros(values.shape[1], dtype=bool)
    for time_s, unused, usd in points:
        out |= (values[0] >= time_s) & (values[1] >= unused) & (values[2] >= usd)
    return out
