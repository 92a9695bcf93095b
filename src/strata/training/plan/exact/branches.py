"""All branches of the plan space with their bounds: pipelines over a subset, and ways to share a batch.

Branches are bounded a lot at a time, all of one setting together: a lot's floor is cheap, and a search looks into
those lots alone whose floor is no better than what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.clock import Check
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.floors import ChainFloors
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.objective import Scales, score

TOGETHER: Final = 8
"""Lots bounded between two looks at the clock, and more the more there are: they come in the order of floors."""

DomainSet = tuple[str, frozenset[str]]
"""Kind of plan and the domains it uses: what the ranked table has one row for."""

Lot = Literal["alone", "joined", "shared"]
"""Pipelines of a setting in one domain, over several, or sharings whose pipelines have a setting in common."""

LOTS: Final[tuple[Lot, ...]] = ("alone", "joined", "shared")
CROSSING: Final[tuple[Lot, ...]] = ("joined", "shared")


class SearchBranches:
    """Bounds [branches] on their scores, and codes: setting and mask of a pipeline, or minus that of a sharing.

    Both grow with the lots looked into (`look`).
    """

    def __init__(
        self, problem: Problem, scales: Scales, chains: ChainSpace, shards: ShardSpace,
        *, must_use: int | None, only_common: bool = False, among: Sequence[Lot] = LOTS,
    ) -> None:  # fmt: skip
        """With `must_use`, only those that hold this domain (a position in the fleet).

        `only_common`: only pipelines in the settings of `ParallelConfig.is_common`. `among`: only these lots.
        """
        self.only_common, self.among = only_common, among
        self.problem, self.scales, self.chains, self.shards, self.must_use = (
            problem, scales, chains, shards, must_use,
        )  # fmt: skip
        self.bounds, self.codes = np.empty(0), np.empty(0, dtype=np.int64)
        self._sharings = np.empty((0, 0), dtype=np.int64)
        self._floors: dict[Lot, Floats] = {lot: np.empty(0) for lot in LOTS}
        self._numbers: dict[Lot, Ints] = {lot: np.empty(0, dtype=np.int64) for lot in LOTS}
        self._looked: dict[Lot, int] = dict.fromkeys(LOTS, 0)
        self._raised = set[int]()
        floor = problem.job.limits.tokens_per_s
        self.slowest_s = np.inf if floor is None else problem.job.tokens_per_step / floor
        """What a step may take at most."""

    def find(self, *, check: Check) -> None:
        """Bound every lot. What `check` raises ends it."""
        numbers = [
            number
            for number, config in enumerate(self.problem.configs if len(self.chains.masks) else ())
            if not self.only_common or config.is_common
        ]
        floors = ChainFloors(self.problem, self.chains.members)
        configs = [self.problem.configs[number] for number in numbers]
        step_s, usd = floors.step_s_and_usd(configs, check=check)
        joined_s = step_s[:, 1:].min(axis=1, initial=np.inf) if self.chains.joins else np.full(len(step_s), np.inf)
        self._put("alone", np.array(numbers), step_s[:, :1].min(axis=1, initial=np.inf), usd)
        self._put("joined", np.array(numbers), joined_s, usd)
        if not self.only_common:
            least = self.shards.floors(check=check)
            none = np.inf, np.inf
            each = np.array([least.get(common, none) for common in self.shards.commons]).reshape(-1, 2)
            self._put("shared", np.arange(len(each)), *each.T)
            self._sharings = np.full((len(self.shards.ways), len(self.shards.groups)), -1)

    def _put(self, lot: Lot, numbers: Ints, step_s: Floats, usd: Floats) -> None:
        limits = self.problem.job.limits
        keep = np.isfinite(step_s) & np.isfinite(usd) & (step_s <= self.slowest_s) & (lot in self.among)
        if limits.cost_usd_per_step is not None:
            keep &= usd <= limits.cost_usd_per_step
        floors = np.asarray(score(self.problem.job, self.scales, step_s[keep], 1.0, usd[keep]), dtype=float)
        order = np.argsort(floors, kind="stable")
        self._floors[lot], self._numbers[lot] = floors[order], numbers[keep][order]

    @property
    def looked(self) -> int:
        """How many lots were looked into."""
        return sum(self._looked.values())

    def floor(self, lots: Sequence[Lot] = LOTS) -> float:
        """Return the least score that a branch of some lots not yet looked into could have."""
        return min(self._next(lot) for lot in lots)

    def _next(self, lot: Lot) -> float:
        at = self._looked[lot]
        return float(self._floors[lot][at]) if at < len(self._floors[lot]) else np.inf

    def look(self, lots: Sequence[Lot], limit: float, *, check: Check, most: float = np.inf) -> Ints:
        """Bound the branches of at most so many of the next lots, as far as their floors are at most `limit`, and
        return which."""
        first, most = len(self.codes), min(most, TOGETHER + sum(self._looked[lot] for lot in lots) // 4)
        values: list[Floats] = [self.bounds]
        codes: list[Ints] = [self.codes]
        try:
            for _ in range(int(most)):
                lot = min(lots, key=self._next)
                if self._next(lot) > limit or not np.isfinite(self._next(lot)):
                    break
                number, at = int(self._numbers[lot][self._looked[lot]]), sum(map(len, codes))
                if lot == "shared" and self._raise_floor(number, check):
                    continue
                bounds, code = self._shared(number, at, check) if lot == "shared" else self._pipelines(lot, number)
                self._looked[lot] += 1
                values.append(bounds)
                codes.append(code)
        finally:  # out of time or not, what was looked into counts
            self.bounds, self.codes = np.concatenate(values), np.concatenate(codes)
        check()
        return np.arange(first, len(self.codes))

    def _raise_floor(self, number: int, check: Check) -> bool:
        """Let the next lot of sharings have a closer floor, which takes a tenth of bounding it, and whether it is
        the next no longer."""
        if number in self._raised or not self.shards.is_time:
            return False
        self._raised.add(number)
        floors, at = self._floors["shared"], self._looked["shared"]
        floors[at] = max(floors[at], self.shards.least_s(self.shards.commons[number], check=check))
        order = at + np.argsort(floors[at:], kind="stable")
        floors[at:], self._numbers["shared"][at:] = floors[order], self._numbers["shared"][order]
        return bool(order[0] != at)

    def left(self, lots: Sequence[Lot]) -> dict[Lot, Ints]:
        """Return the numbers of the lots not yet looked into."""
        return {lot: self._numbers[lot][self._looked[lot] :] for lot in lots}

    def _pipelines(self, lot: Lot, number: int) -> tuple[Floats, Ints]:
        return self._bounded(number, self._masks[lot])

    def _bounded(self, number: int, masks: Ints) -> tuple[Floats, Ints]:
        """Return the least scores of pipelines of a setting over some masks (positions), and their codes."""
        job, limits = self.problem.job, self.problem.job.limits
        bounds = self.chains.bounds(self.problem.configs[number], masks)
        keep = np.isfinite(bounds.step_s) & (bounds.step_s <= self.slowest_s)
        if limits.cost_usd_per_step is not None:
            keep &= bounds.cost_usd <= limits.cost_usd_per_step
        picked = np.flatnonzero(keep)
        figures = (bounds.step_s[picked], bounds.utilization[picked], bounds.cost_usd[picked])
        return np.asarray(score(job, self.scales, *figures)), number * len(self.chains.masks) + picked

    @cached_property
    def _masks(self) -> dict[Lot, Ints]:
        """The masks (positions) of each lot that hold what must be used; of domains alike one alone."""
        must, inside = self.must_use, self.chains.inside
        allowed = inside.any(axis=1) if must is None else inside[:, self.chains.members.index(must)] == 1
        several = inside.sum(axis=1) > 1
        alone = np.flatnonzero(allowed & ~several)
        alike = np.array(self.problem.alike)[np.array(self.chains.members, dtype=np.int64)]
        alone = alone[np.sort(np.unique(alike[inside[alone].argmax(axis=1)], return_index=True)[1])]
        return {"alone": alone, "joined": np.flatnonzero(allowed & several)}

    def like(self, name: str) -> list[str]:
        """Return the other domains of the pipelines that are like one: alone, they have its plans."""
        if self.must_use is not None:
            return []
        fleet, alike = self.problem.fleet, self.problem.alike
        kind = alike[fleet.index(name)]
        return [d.name for i, d in zip(self.chains.members, self.chains.domains, strict=True)
                if alike[i] == kind and d.name != name]  # fmt: skip

    def _shared(self, number: int, first: int, check: Check) -> tuple[Floats, Ints]:
        numbers, step_s = self.shards.bounds_of(self.shards.commons[number], check=check)
        row, group = np.nonzero(np.isfinite(step_s) & self._has_must)
        ways = np.array(numbers)[row]
        self._sharings[ways, group] = first + np.arange(len(ways))
        scores = self._shared_score(numbers, step_s)[row, group]
        return scores, -1 - (ways * len(self.shards.groups) + group)

    @cached_property
    def _has_must(self) -> Bools:
        must = self.must_use
        return np.array([must is None or any(must in unit for unit in group) for group in self.shards.groups])

    def become_closer(self, branch: int, *, check: Check) -> bool:
        """Bound a branch, and others like it, more closely; False where its bound is the closest."""
        code = int(self.codes[branch])
        if code >= 0:
            return self._look_into(branch, *divmod(code, len(self.chains.masks)))
        at = divmod(-1 - code, len(self.shards.groups))
        closer = self.shards.closer(*at, check=check)
        if closer is None:
            return False
        ways, step_s = closer
        known = self._sharings[ways]
        row, group = np.nonzero(known >= 0)
        self.bounds[known[row, group]] = self._shared_score(ways, step_s)[row, group]
        return True

    def _look_into(self, branch: int, number: int, index: int) -> bool:
        """Bound pipelines of a setting that are like one of its masks more closely, and whether they are now."""
        masks = self.chains.look(self.problem.configs[number], int(self.chains.masks[index]))
        if masks is None:
            return False
        scores, codes = self._bounded(number, masks)
        rows = np.flatnonzero(self.codes // len(self.chains.masks) == number)
        _, old, new = np.intersect1d(self.codes[rows], codes, assume_unique=True, return_indices=True)
        before = self.bounds[branch]
        self.bounds[rows[old]] = scores[new]
        return bool(self.bounds[branch] > before)

    def shared_score(self, way: int, group: int, step_s: float) -> float:
        """Return the least score of a sharing that takes so long."""
        taken_s = np.full((1, len(self.shards.groups)), np.inf)
        taken_s[0, group] = step_s
        return float(self._shared_score([way], taken_s)[0, group])

    def _shared_score(self, ways: Sequence[int], step_s: Floats) -> Floats:
        """Return the least scores of sharings [ways, groups]."""
        scores = np.full(step_s.shape, np.inf)
        usd, use = self.shards.least_usd(ways, step_s), self.shards.most_utilization(ways, step_s)
        # A weight of zero makes NaN of infinity; money without end is that of a unit that cannot take part.
        legal = np.isfinite(step_s) & (step_s <= self.slowest_s) & np.isfinite(usd)
        scores[legal] = score(self.problem.job, self.scales, step_s[legal], use[legal], usd[legal])
        return scores

    def local_steps(self, branches: Ints) -> Ints:
        """Return after how many steps the pipelines of each of some branches exchange gradients."""
        codes = self.codes[branches]
        shared = self._local_steps[np.maximum(0, (-1 - codes) // max(1, len(self.shards.groups)))]
        return np.where(codes >= 0, 1, shared)

    @cached_property
    def _local_steps(self) -> Ints:
        return np.array([way.local_steps for way in self.shards.ways])

    @cached_property
    def domain_sets(self) -> list[DomainSet]:
        """The domain sets that branches may belong to."""
        return list(self._set_numbers[0])

    @cached_property
    def _set_numbers(self) -> tuple[dict[DomainSet, int], Ints, Ints]:
        """The number of each domain set, of each mask's, and of each group's, in step and with local steps."""
        numbers: dict[DomainSet, int] = {}

        def number(kind: str, domains: frozenset[str]) -> int:
            return numbers.setdefault((kind, domains), len(numbers))

        masks = [self.names(index) for index in range(len(self.chains.masks))]
        chains = [number("pp" if len(domains) > 1 else "single", domains) for domains in masks]
        sharings = []
        for group in self.shards.groups:
            kind = "nested" if any(len(unit) > 1 for unit in group) else "dp"
            domains = frozenset(self.problem.fleet.domains[i].name for unit in group for i in unit)
            sharings.append((number(kind, domains), number(f"{kind}+diloco", domains)))
        return numbers, np.array(chains, dtype=np.int64), np.array(sharings, dtype=np.int64).reshape(-1, 2)

    def sets_of(self, branches: Ints) -> Ints:
        """Return the position in `domain_sets` of the set that each of some branches belongs to."""
        codes, (_, chains, sharings) = self.codes[branches], self._set_numbers
        rows, is_chain = np.zeros_like(codes), codes >= 0
        rows[is_chain] = chains[codes[is_chain] % max(1, len(chains))] if len(chains) else 0
        shared = codes[~is_chain]
        if len(shared):
            is_local = self.local_steps(branches[~is_chain]) > 1
            rows[~is_chain] = sharings[(-1 - shared) % len(sharings), is_local.astype(np.int64)]
        return rows

    def names(self, index: int) -> frozenset[str]:
        """Return the domains of a mask of the pipelines."""
        inside = self.chains.inside[index]
        return frozenset(d.name for d, use in zip(self.chains.domains, inside, strict=True) if use)
