"""Branch and bound: take candidates by their bound, build, evaluate exactly, stop when no bound is better.

Every (subset, configuration) of pipelines and every sharing of data parallelism is a branch with a bound on its
score; a branch whose bound is no better than the best plan found is never built, and a built plan whose own,
closer bound is no better is never evaluated. What is left when the search ends is the proof.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.clock import Clock
from strata.decision import Reason
from strata.errors import OutOfTime
from strata.simulate.report import StepReport
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.objective import Scales, score, score_report, within_limits
from strata.workload.plan import TrainingPlan

DomainSet = tuple[str, frozenset[str]]
"""Kind of plan and the domains it uses: what the ranked table has one row for."""

TOLERANCE: Final = 1e-4
"""A branch that could be better by less than this share is not opened; it is part of the reported gap."""

OPENED: Final = 40
"""Branches opened for a row of the ranked table before it counts as searched in part."""

ROW_TOLERANCE: Final = 5e-3
ROW_SPLITS: Final = 20
"""As TOLERANCE and MOST_SPLITS, for the rows of the ranked table below the first."""

DIVE: Final = 3
"""Branches opened before the first plans are evaluated, whatever their bounds."""

MOST_SPLITS: Final = 200
"""Layer splits of one chain that are built; where more could be better, the gap says so."""

BATCH: Final = 16
"""Plans evaluated together: the recurrence costs about the same for one plan as for some dozens."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A plan that was built and evaluated exactly."""

    plan: TrainingPlan
    report: StepReport
    score: float

    @property
    def domain_set(self) -> DomainSet:
        """The row of the ranked table it belongs to."""
        return self.plan.kind, frozenset(self.plan.domains)


@dataclass
class SearchResult:
    """What a search returns: the best plan of each domain set, the bound on any plan, and why others failed."""

    by_set: dict[DomainSet, Evaluated] = field(default_factory=dict)
    closed: set[DomainSet] = field(default_factory=set)
    """Those of which no other plan is better by ROW_TOLERANCE."""
    missed: dict[DomainSet, Evaluated] = field(default_factory=dict)
    bound: float = np.inf
    evaluated: int = 0
    branches: int = 0
    refusals: dict[frozenset[str], Reason] = field(default_factory=dict)
    stopped: bool = False
    interrupted: bool = False

    @property
    def ranked(self) -> list[Evaluated]:
        """Plans that keep all limits, best first."""
        return sorted(self.by_set.values(), key=lambda item: (item.score, sorted(item.plan.domains)))

    @property
    def best_score(self) -> float:
        """The best score so far (inf without a plan)."""
        return min((item.score for item in self.by_set.values()), default=np.inf)

    @property
    def gap(self) -> float:
        """How much better, as a share, any plan could be than the best one found."""
        best = self.best_score
        return max(0.0, (best - self.bound) / abs(best)) if np.isfinite(best) and best else 0.0

    def merge(self, other: SearchResult) -> None:
        """Take over what another search found on the same problem."""
        for kept, others in ((self.by_set, other.by_set), (self.missed, other.missed)):
            for key, item in others.items():
                if key not in kept or item.score < kept[key].score:
                    kept[key] = item
        self.closed |= other.closed
        self.bound = min(self.bound, other.bound)
        self.evaluated, self.branches = self.evaluated + other.evaluated, self.branches + other.branches
        self.refusals.update(other.refusals)
        self.stopped |= other.stopped
        self.interrupted |= other.interrupted


class Search:
    """One exact search over all plans on subsets of some domains."""

    def __init__(
        self,
        problem: Problem,
        scales: Scales,
        members: Sequence[int],
        *,
        clock: Clock,
        deadline: float,
        must_use: int | None = None,
        needs_plan: bool = False,
        chains: ChainSpace | None = None,
        shards: ShardSpace | None = None,
    ) -> None:
        """Search subsets of `members`; with `must_use`, only those that hold this one of them.

        `needs_plan`: the deadline holds only once there is a plan. `chains` and `shards` are all pipelines and
        sharings of the members, unless these are given.
        """
        self.must_use, self.needs_plan = must_use, needs_plan
        self.problem, self.scales, self.clock, self.deadline = problem, scales, clock, deadline
        # Of more domains than a pool only sharings are searched: their pipelines come from the pools.
        self.chains = chains or ChainSpace(problem, tuple(members) if len(members) <= POOL else ())
        self.shards = shards or ShardSpace(problem, tuple(members))
        self.result = SearchResult()
        self._built: list[tuple[float, int, TrainingPlan]] = []
        self._chains: list[tuple[float, int, Chain]] = []
        self._unsplit, self._most_splits = np.inf, MOST_SPLITS
        self._refused: set[int] = set()
        self._serial = 0

    def run(self, *, so_far: SearchResult | None = None, rank: int = 0, keeps_best: bool = False) -> SearchResult:
        """Search until the bound meets the best plan, here or among those `so_far`, or the deadline passes.

        The `rank` best domain sets are searched for the ranked table, each to its best plan. Where DiLoCo
        wins, the best synchronous plan is searched too: its token penalty is an assumption, so both are shown.
        `keeps_best`: Ctrl-C ends the search with the best so far and `interrupted`, which the caller must heed;
        without it, KeyboardInterrupt is raised: half of a search is no baseline, bound or proof.
        """
        try:
            self._search(so_far or SearchResult(), rank)
        except OutOfTime:  # before all branches had a bound: there is no plan yet, and nothing proved
            self.result.stopped, self.result.bound = True, -np.inf
        except KeyboardInterrupt:
            if not keeps_best:
                raise
            # What was not looked at counts as not proved.
            self.result.stopped = self.result.interrupted = True
            self.result.bound = -np.inf
        return self.result

    def _search(self, so_far: SearchResult, rank: int) -> None:
        bounds, codes = self._branches()
        incumbent = so_far.best_score
        self.result.branches = len(codes)
        self._explore(bounds, codes, incumbent)
        best = min(self.result.by_set.values(), key=lambda item: item.score, default=None)
        if best is not None and best.plan.local_steps > 1 and not self.result.stopped:
            proved, self._built, self._chains = self.result.bound, [], []
            in_step = (codes >= 0) | (self._local_steps(codes) == 1)
            self._explore(
                bounds[in_step], codes[in_step], incumbent, among=lambda item: item.plan.local_steps == 1
            )
            self.result.bound = proved
        if rank and not self.result.stopped:
            self._fill_table(bounds, codes, rank, so_far)
        self._keep_proved_refusals(codes)

    def _keep_proved_refusals(self, codes: Ints) -> None:
        """Forget the refusals of sets that another configuration might fit: those were outbid, not impossible."""
        if not self._refused:
            return
        count = len(self.chains.masks)
        branches, refused = (
            np.bincount(each[each >= 0] % count, minlength=count)
            for each in (codes, np.array(sorted(self._refused)))
        )
        possible = {self._names(int(index)) for index in np.flatnonzero(branches > refused)}
        for names in possible & self.result.refusals.keys():
            del self.result.refusals[names]

    def _explore(
        self,
        bounds: Floats,
        codes: Ints,
        incumbent: float,
        *,
        among: Callable[[Evaluated], bool] = lambda _: True,
        most: float = np.inf,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Search these branches until none is better than the best plan `among` those found, or `most` are open.

        Better by less than `tolerance`, as a share, does not count.
        """
        order = np.argsort(bounds, kind="stable")
        position, dive = 0, DIVE
        while True:
            branch = float(bounds[order[position]]) if position < len(order) else np.inf
            plan = self._built[0][0] if self._built else np.inf
            chain = self._chains[0][0] if self._chains else np.inf
            threshold = min(self._best(among), incumbent)
            threshold -= tolerance * abs(threshold) if np.isfinite(threshold) else 0.0
            if min(branch, plan, chain) >= threshold or not np.isfinite(min(branch, plan, chain)):
                break
            if self._is_late() or position >= most:
                self.result.stopped = True
                break
            # The first branches are evaluated at once, and each time as many again: a search that is stopped
            # has plans then, however many branches seem better than all that is built.
            if branch < min(plan, threshold) and not (position >= dive and plan < threshold):
                self._open(int(codes[order[position]]))
                position += 1
            elif plan < threshold:
                dive = max(dive, 2 * position)
                self._evaluate_next(threshold)
            else:  # only now: the better the best plan, the fewer splits are worth building
                self._split(threshold)
        self.result.bound = min(branch, plan, chain, self._unsplit, self._best(among), incumbent)

    def _best(self, among: Callable[[Evaluated], bool]) -> float:
        return min((item.score for item in self.result.by_set.values() if among(item)), default=np.inf)

    def _local_steps(self, codes: Ints) -> Ints:
        steps = np.array([way[3] for way in self.shards.ways])
        return steps[np.maximum(0, (-1 - codes) // max(1, len(self.shards.groups)))]

    def exists(self) -> bool:
        """Whether any branch can be built at all, whatever it costs and however slow it is. Raises OutOfTime."""
        bounds, codes = self._branches()
        for code in codes[np.argsort(bounds, kind="stable")]:
            self._check_time()
            self._open(int(code))
            if self._built:
                return True
        return False

    def _branches(self) -> tuple[Floats, Ints]:
        """Return the bound of every branch and its code: configuration and mask, or minus the sharing's number."""
        job, limits = self.problem.job, self.problem.job.limits
        values, codes = [], []
        count = len(self.chains.masks)
        must = self.must_use
        allowed = (
            np.ones(count, bool) if must is None else self.chains.inside[:, self.chains.members.index(must)] == 1
        )
        for number, config in enumerate(self.problem.configs if count else ()):
            self._check_time()
            bounds = self.chains.bounds(config)
            keep = np.isfinite(bounds.step_s) & allowed
            if limits.cost_usd_per_step is not None:
                keep &= bounds.cost_usd <= limits.cost_usd_per_step
            if limits.tokens_per_s is not None:
                keep &= bounds.step_s <= job.tokens_per_step / limits.tokens_per_s
            picked = np.flatnonzero(keep)
            figures = (bounds.step_s[picked], bounds.utilization[picked], bounds.cost_usd[picked])
            values.append(score(job, self.scales, *figures))
            codes.append(number * count + picked)
        step_s = self.shards.bounds(check=self._check_time)
        if step_s.size:
            # Utilisation at most 1, money at least one device a domain: weak, but sharings are few.
            usd_per_s = np.array([self.shards.least_usd(group) for group in range(step_s.shape[1])])
            groups = np.array([must is None or any(must in unit for unit in g) for g in self.shards.groups])
            ways, group = np.nonzero(np.isfinite(step_s) & groups)
            least_s = step_s[ways, group]
            values.append(score(job, self.scales, least_s, 1.0, least_s * usd_per_s[group]))
            codes.append(-1 - (ways * len(groups) + group))
        return np.concatenate([np.empty(0), *values]), np.concatenate([np.empty(0, dtype=np.int64), *codes])

    def _open(self, code: int) -> None:
        if code < 0:
            plan = self.shards.build(self.shards.sharing(*divmod(-1 - code, len(self.shards.groups))))
            self._push([] if plan is None else [plan])
            return
        number, index = divmod(code, len(self.chains.masks))
        built = self.chains.open(self.problem.configs[number], int(self.chains.masks[index]))
        if isinstance(built, Reason):
            self._refuse(code, built)
            return
        self._push(chain.plan for chain in built)
        for chain in built:
            if chain.splits is not None:
                self._serial += 1
                heapq.heappush(self._chains, (self._least_score(chain, chain.bound_s), self._serial, chain))

    def _refuse(self, code: int, reason: Reason) -> None:
        self._refused.add(code)
        self.result.refusals.setdefault(self._names(code % len(self.chains.masks)), reason)

    def _push(self, plans: Iterable[TrainingPlan]) -> None:
        plans = list(plans)
        if not plans:
            return
        for plan, report in zip(plans, self.problem.model.bounds(plans), strict=True):
            self._serial += 1
            heapq.heappush(self._built, (score_report(self.problem.job, self.scales, report), self._serial, plan))

    def _least_score(self, chain: Chain, step_s: float) -> float:
        """Return a bound on the score of a chain's plans that take at least so long."""
        return float(score(self.problem.job, self.scales, step_s, *chain.least(step_s)))

    def _split(self, threshold: float) -> None:
        """Build the plans of the least chain in every other split that could score better than `threshold`."""
        least, _, chain = heapq.heappop(self._chains)
        limit_s = chain.longest_s(lambda step_s: self._least_score(chain, step_s) < threshold)
        plans = list(islice(chain.within(limit_s), self._most_splits + 1))
        if len(plans) > self._most_splits:
            self._unsplit = min(self._unsplit, least)
        self._push(plans)

    def _evaluate_next(self, threshold: float) -> None:
        batch: list[tuple[float, int, TrainingPlan]] = []
        while self._built and len(batch) < BATCH and self._built[0][0] < threshold:
            batch.append(heapq.heappop(self._built))
        try:
            self.evaluate([plan for _, _, plan in batch])
        except OutOfTime:  # their bounds are part of what is not proved
            self._built = [*batch, *self._built]
            heapq.heapify(self._built)

    def evaluate(self, plans: Sequence[TrainingPlan]) -> None:
        """Evaluate plans exactly and keep the best of each domain set. Raises OutOfTime with none of them kept."""
        reports = self.problem.model.reports(plans, check=self._check_time)
        self.result.evaluated += len(plans)
        for plan, report in zip(plans, reports, strict=True):
            if not np.isfinite(report.step_time_s):
                continue  # links are missing: no all-reduce connects the pipelines
            if not plan.keeps(self.problem.job.pins):
                continue
            item = Evaluated(plan, report, score_report(self.problem.job, self.scales, report))
            kept = self.result.by_set if within_limits(self.problem.job, item.report) else self.result.missed
            if item.domain_set not in kept or item.score < kept[item.domain_set].score:
                kept[item.domain_set] = item

    def _fill_table(self, bounds: Floats, codes: Ints, rank: int, so_far: SearchResult) -> None:
        """Search domain sets by their least bounds, each to its best plan, until no other is of the `rank` best.

        One of them crosses domains where any can: what it takes is what a best single domain is compared with.
        """
        result, proved = self.result, self.result.bound
        self._most_splits = ROW_SPLITS
        names, rows = self._domain_sets(codes)
        least = np.full(len(names), np.inf)
        np.minimum.at(least, rows, bounds)
        for row in np.argsort(least, kind="stable"):
            known = {**so_far.by_set, **result.by_set}
            scores = sorted(item.score for item in known.values())
            crosses = len(names[row][1]) > 1 and all(len(domains) < 2 for _, domains in known)
            if len(scores) >= rank and least[row] >= scores[rank - 1] and not crosses:
                continue
            if self._is_late():
                break
            self._built, self._chains, self._unsplit = [], [], np.inf
            best = so_far.by_set.get(names[row])
            picked = rows == row
            self._explore(
                bounds[picked], codes[picked], best.score if best is not None else np.inf,
                among=partial(_is_of, names[row]), most=OPENED, tolerance=ROW_TOLERANCE,
            )  # fmt: skip
            if not result.stopped and self._unsplit == np.inf:
                result.closed.add(names[row])
            result.stopped = False
        result.bound = proved

    def _domain_sets(self, codes: Ints) -> tuple[list[DomainSet], Ints]:
        """Return the domain sets that branches belong to, and the number of each branch's."""
        numbers: dict[DomainSet, int] = {}

        def number(kind: str, domains: frozenset[str]) -> int:
            return numbers.setdefault((kind, domains), len(numbers))

        masks = [self._names(index) for index in range(len(self.chains.masks))]
        chains = [number("pp" if len(domains) > 1 else "single", domains) for domains in masks]
        sharings = []
        for group in self.shards.groups:
            kind = "nested" if any(len(unit) > 1 for unit in group) else "dp"
            domains = frozenset(self.problem.fleet.domains[i].name for unit in group for i in unit)
            sharings.append((number(kind, domains), number(f"{kind}+diloco", domains)))
        of_chains, of_sharings = np.array(chains, dtype=np.int64), np.array(sharings, dtype=np.int64)
        rows = np.zeros_like(codes)
        is_chain = codes >= 0
        rows[is_chain] = of_chains[codes[is_chain] % max(1, len(chains))] if chains else 0
        shared = codes[~is_chain]
        if len(shared):
            is_local = self._local_steps(shared) > 1
            rows[~is_chain] = of_sharings[(-1 - shared) % len(sharings), is_local.astype(np.int64)]
        return list(numbers), rows

    def _is_late(self) -> bool:
        is_owed = self.needs_plan and not self.result.by_set and not self.result.missed
        return self.clock() > self.deadline and not is_owed

    def _check_time(self) -> None:
        if self._is_late():
            raise OutOfTime("the search")

    def _names(self, index: int) -> frozenset[str]:
        inside = self.chains.inside[index]
        return frozenset(d.name for d, use in zip(self.chains.domains, inside, strict=True) if use)


def _is_in_step(item: Evaluated) -> bool:
    return item.plan.local_steps == 1


def _is_of(domain_set: DomainSet, item: Evaluated) -> bool:
    return item.domain_set == domain_set
