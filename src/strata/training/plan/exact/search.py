"""Branch and bound: take candidates by their bound, build, evaluate exactly, stop when no bound is better.

Every (subset, configuration) of pipelines and every sharing of data parallelism is a branch with a bound on its
score; a branch whose bound is no better than the best plan found is never built, and a built plan whose own,
closer bound is no better is never evaluated. What is left when the search ends is the proof.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from strata.arrays import Bools, Ints
from strata.clock import Check, Clock, unlimited
from strata.decision import Reason
from strata.errors import OutOfTime
from strata.training.plan.exact.branches import LOTS, Lot, SearchBranches
from strata.training.plan.exact.chain import MOST_TIMED, Chain, OtherSplits
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.refusals import Refusals
from strata.training.plan.exact.result import TOLERANCE, Evaluated, SearchResult
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.sharing_builder import SharingBuilder
from strata.training.plan.exact.unit import moved
from strata.training.plan.objective import Scales, score, score_report, within_limits
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan

REFUSED: Final = 5
"""For each branch that fits so many may be opened where these are counted: some do not fit."""

DIVE: Final = 3
"""Branches opened before the first plans are evaluated, whatever their bounds."""

MOST_SPLITS: Final = 200
"""Layer splits of one chain that are built; where more could be better, the gap says so."""

ROW_TOLERANCE: Final = 5e-3
ROW_SPLITS: Final = 20
ROW_TIMED: Final = 512
"""As TOLERANCE, MOST_SPLITS and MOST_TIMED, for rows of a table below its first."""

LATE_SHARE: Final = 0.05
"""Of its time, what a search that is out of it may take for the plan that it built last."""

BATCH: Final = 16
"""Plans evaluated together: the recurrence costs about the same for one plan as for some dozens."""


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
        only_common: bool = False,
        is_rough: bool = False,
        lots: Sequence[Lot] = LOTS,
        chains: ChainSpace | None = None,
        shards: ShardSpace | None = None,
    ) -> None:
        """Search subsets of `members`; with `must_use`, only those that hold this one of them.

        `needs_plan`: the deadline holds only once there is a plan. `only_common`: pipelines alone, in few
        settings, until there is a plan. `lots`: these alone. `is_rough`: to ROW_TOLERANCE, as far as
        a row of the ranked table is searched. `chains` and `shards` are all pipelines and sharings of the members,
        unless these are given.
        """
        self.needs_plan, self._started = needs_plan, clock()
        self.problem, self.scales, self.clock, self.deadline = problem, scales, clock, deadline
        # Of more domains than a pool only sharings are searched: their pipelines come from the pools.
        self.chains = chains or ChainSpace(problem, tuple(members) if len(members) <= POOL else ())
        self.shards = shards or ShardSpace(problem, tuple(members))
        self.branches = SearchBranches(
            problem, scales, self.chains, self.shards, must_use=must_use, only_common=only_common, among=lots
        )
        self.result = SearchResult()
        self._built: list[tuple[float, int, TrainingPlan]] = []
        self._chains: list[tuple[float, int, OtherSplits]] = []
        self._sharings: list[tuple[float, int]] = []
        self.sharings = SharingBuilder(self.branches)
        self._unsplit, self._most_splits, self._most_timed = np.inf, MOST_SPLITS, MOST_TIMED
        self._tolerance = ROW_TOLERANCE if is_rough else TOLERANCE
        if is_rough:
            self._most_splits, self._most_timed = ROW_SPLITS, ROW_TIMED
        self.refusals = Refusals(self.branches)
        self._opened: set[TrainingPlan] = set()
        self._serial = 0

    def run(self, *, so_far: SearchResult | None = None, keeps_best: bool = False) -> SearchResult:
        """Search until the bound meets the best plan, here or among those `so_far`, or the deadline passes.

        Where DiLoCo wins, the best synchronous plan is searched too: its token penalty is an assumption, so both
        are shown.
        `keeps_best`: Ctrl-C ends the search with the best so far and `interrupted`, which the caller must heed;
        without it, KeyboardInterrupt is raised: half of a search is no baseline, bound or proof.
        """
        so_far = so_far or SearchResult()
        try:
            self._search(so_far)
            self._copy_alike(so_far)
            self.result.branches = len(self.branches.codes)
            self.result.refusals = self.refusals.proved(is_late=self._is_late)
        except OutOfTime:  # before all branches had a bound: there is no plan yet, and nothing proved
            self.result.stopped, self.result.bound = True, -np.inf
        except KeyboardInterrupt:
            if not keeps_best:
                raise
            # What was not looked at counts as not proved.
            self.result.stopped = self.result.interrupted = True
            self.result.bound = -np.inf
        return self.result

    def _search(self, so_far: SearchResult) -> None:
        branches, incumbent = self.branches, so_far.best_score
        branches.find(check=self._check_time)
        self._explore(incumbent, tolerance=self._tolerance)
        best = min(self.result.by_set.values(), key=lambda item: item.score, default=None)
        if best is not None and best.plan.local_steps > 1 and not self.result.stopped:
            proved = self.result.bound
            self._forget()
            self._explore(
                incumbent, pick=lambda rows: branches.local_steps(rows) == 1,
                among=lambda item: item.plan.local_steps == 1,
            )  # fmt: skip
            self.result.bound = proved

    def _copy_alike(self, so_far: SearchResult) -> None:
        """Let every domain have the plans alone of one like it that was searched, here or before."""
        result, kept = self.result, {**self.result.missed, **self.result.by_set}
        for key, item in so_far.by_set.items():
            kept[key] = min(item, kept.get(key, item), key=lambda each: each.score)
        for (kind, names), item in tuple(kept.items()):
            if kind != "single":
                continue
            [name], [pipeline] = names, item.plan.pipelines
            others = self.branches.like(name)
            worse = [
                replace(item.plan, pipelines=(moved(pipeline, other),))
                for other in others
                if (known := kept.get((kind, frozenset([other])))) is None or known.score > item.score
            ]
            if worse:
                self.evaluate(worse, check=unlimited)
            if item.domain_set in result.closed:
                result.closed |= {(kind, frozenset([other])) for other in others}

    def _forget(self) -> None:
        """Begin again with what is built and opened."""
        self._built, self._chains, self._sharings, self._opened = [], [], [], set()

    def _explore(
        self,
        incumbent: float,
        *,
        lots: Sequence[Lot] = LOTS,
        pick: Callable[[Ints], Bools] = lambda rows: np.ones(len(rows), dtype=bool),
        among: Callable[[Evaluated], bool] = lambda _: True,
        most: float = np.inf,
        most_lots: float = np.inf,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Search the branches of `lots` that `pick` names until none is better than the best `among` the plans
        found, or `most` are open. More than `most_lots` are not looked into.

        Better by less than `tolerance`, as a share, does not count.
        """
        branches, opened, fitting, dive = self.branches, 0, 0, DIVE
        left = self._in_order(np.arange(len(branches.codes)), pick, incumbent)
        while True:
            branch = float(branches.bounds[left[0]]) if len(left) else np.inf
            floor = branches.floor(lots)
            plan = self._built[0][0] if self._built else np.inf
            chain = self._chains[0][0] if self._chains else np.inf
            sharing = self._sharings[0][0] if self._sharings else np.inf
            best = min(self._best(among), incumbent)
            threshold = best - tolerance * abs(best) if np.isfinite(best) else best
            if floor < threshold and branches.looked >= most_lots:
                self.result.stopped, floor = True, np.inf
            least = min(branch, floor, plan, chain, sharing)
            if least >= threshold or not np.isfinite(least):
                break
            if self._is_late() or fitting >= most or opened >= REFUSED * most:
                self.result.stopped = True
                if self._is_late() and plan < threshold:
                    self._evaluate_late()
                break
            # The first branches are evaluated at once, and each time as many again: a search that is stopped
            # has plans then, however many branches seem better than all that is built.
            if opened == DIVE and lots == LOTS and not self.sharings.is_wide:
                # Where sharing the batch is fastest, thousands of slower pipelines may seem better until then.
                new = self._look(("shared",), threshold)
                left = self._in_order(np.concatenate([left, new]), pick, best)
                shared = left[branches.codes[left] < 0][:1]
                for row in shared.tolist():
                    self._open(int(branches.codes[row]), best, float(branches.bounds[row]), is_first=True)
                left, opened = left[~np.isin(left, shared)], opened + 1
            elif min(branch, floor) < min(plan, threshold) and not (opened >= dive and plan < threshold):
                # Lots of very many units take seconds to look into: a first plan comes before.
                if floor < branch and not (self.sharings.is_wide and opened < DIVE and len(left)):
                    new = self._look(lots, min(branch, threshold), most_lots - branches.looked)
                    left = self._in_order(np.concatenate([left, new]), pick, best)
                else:
                    first, is_closer = left[0], self._become_closer(int(left[0]))
                    if opened < DIVE or not is_closer:
                        before = self._serial
                        self._open(int(branches.codes[first]), best, branch, is_first=True)
                        left, opened, fitting = left[1:], opened + 1, fitting + (self._serial > before)
                    if is_closer:  # not only the first has another bound now
                        left = self._in_order(left, pick, best)
            elif plan < threshold:
                dive = max(dive, 2 * opened)
                self._evaluate_next(threshold)
                if self.branches.only_common and self.result.by_set:
                    self.result.stopped = True
                    break
            # Only now: the better the best plan, the fewer shapes and splits are worth building.
            elif sharing < threshold:
                bound, code = heapq.heappop(self._sharings)
                self._share(code, threshold, bound)
            else:
                self._split(threshold)
        self.result.bound = min(branch, floor, plan, chain, sharing, self._unsplit, self._best(among), incumbent)

    def _look(self, lots: Sequence[Lot], limit: float, most: float = np.inf) -> Ints:
        before = len(self.branches.codes)
        try:
            return self.branches.look(lots, limit, check=self._check_time, most=most)
        except OutOfTime:  # the loop sees it, too; what was looked into counts
            return np.arange(before, len(self.branches.codes))

    def _in_order(self, rows: Ints, pick: Callable[[Ints], Bools], best: float) -> Ints:
        """Return the branches that could be better than `best` among some that `pick` names, by their bounds."""
        bounds = self.branches.bounds
        rows = rows[bounds[rows] < best]
        rows = rows[pick(rows)]
        return np.asarray(rows[np.argsort(bounds[rows], kind="stable")])

    def _best(self, among: Callable[[Evaluated], bool]) -> float:
        return min((item.score for item in self.result.by_set.values() if among(item)), default=np.inf)

    def _become_closer(self, branch: int) -> bool:
        """Bound a sharing more closely; of very many units only where the goal is time, which takes few shapes."""
        if self.sharings.is_wide and self.problem.job.objective is not Objective.TIME:
            return False
        try:
            return self.branches.become_closer(branch, check=self._check_time)
        except OutOfTime:  # the loop sees it, too; the bound that there is holds
            return True

    def exists(self) -> bool:
        """Whether any branch can be built at all, whatever it costs and however slow it is. Raises OutOfTime."""
        self.branches.find(check=self._check_time)
        while np.isfinite(self.branches.floor()):
            rows = self.branches.look(LOTS, np.inf, check=self._check_time)
            for row in self._in_order(rows, lambda some: np.ones(len(some), dtype=bool), np.inf):
                self._check_time()
                self._open(int(self.branches.codes[row]))
                if self._built:
                    return True
        return False

    def _open(self, code: int, best: float = np.inf, bound: float = np.inf, *, is_first: bool = False) -> None:
        """Build what could be better than `best` of a branch whose bound is known."""
        if code < 0:
            self._share(code, best, bound, is_first=is_first)
            return
        number, index = divmod(code, len(self.chains.masks))
        limit_s = best if self.problem.job.objective is Objective.TIME else np.inf
        built = self.chains.open(self.problem.configs[number], int(self.chains.masks[index]), limit_s)
        if isinstance(built, Reason):
            self.refusals.add(code, built)
            return
        # Of the settings that differ in a cap that does not bind one is enough.
        built = [chain for chain in built if chain.plan not in self._opened]
        self._opened.update(chain.plan for chain in built)
        self._push(plan for chain in built for plan in chain.plans)
        for chain in built:
            if chain.splits is not None:
                self._put(OtherSplits(chain, self._most_timed))
            elif np.isfinite(chain.unsplit_s):
                self._unsplit = min(self._unsplit, self._least_score(chain, chain.unsplit_s))

    def _share(self, code: int, best: float, bound: float, *, is_first: bool = False) -> None:
        at = divmod(-1 - code, len(self.shards.groups))
        try:
            shared = self.sharings.built(*at, best=best, bound=bound, is_first=is_first, check=self._check_time)
        except OutOfTime:
            self._unsplit = min(self._unsplit, bound)
            return
        if shared.is_open:
            heapq.heappush(self._sharings, (shared.bound, code))
        else:
            self._unsplit = min(self._unsplit, shared.bound)
        self._push(shared.plans)

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
        """Build some plans of the least chain in other splits that could score better than `threshold`."""
        least, _, others = heapq.heappop(self._chains)
        chain = others.chain
        if others.least_s < chain.bound_s:
            others.least_s = chain.bound_s
            self._put(others)
            return
        limit_s = chain.longest_s(lambda step_s: self._least_score(chain, step_s) < threshold)
        try:
            self._push(others.take(limit_s, BATCH, check=self._check_time))
        except OutOfTime:  # those that are left are part of what is not proved
            self._unsplit = min(self._unsplit, least)
        else:
            self._put(others)

    def _put(self, others: OtherSplits) -> None:
        least = self._least_score(others.chain, others.least_s) if np.isfinite(others.least_s) else np.inf
        if others.is_over or others.num_taken >= self._most_splits:
            self._unsplit = min(self._unsplit, least)
        elif np.isfinite(least):
            self._serial += 1
            heapq.heappush(self._chains, (least, self._serial, others))

    def _evaluate_next(self, threshold: float) -> None:
        batch: list[tuple[float, int, TrainingPlan]] = []
        most = 1 if self._is_owed else BATCH  # no limit holds before the first plan
        while self._built and len(batch) < most and self._built[0][0] < threshold:
            batch.append(heapq.heappop(self._built))
        try:
            self.evaluate([plan for _, _, plan in batch])
        except OutOfTime:  # their bounds are part of what is not proved
            self._built = [*batch, *self._built]
            heapq.heapify(self._built)

    def _evaluate_late(self) -> None:
        """Evaluate the most promising plan that was built when time was out, which may be the best by far."""
        until = self.clock() + LATE_SHARE * (self.deadline - self._started)

        def check() -> None:
            if self.clock() > until:
                raise OutOfTime("the search")

        with suppress(OutOfTime):  # its bound is part of what is not proved
            self.evaluate([heapq.heappop(self._built)[2]], check=check)

    def evaluate(self, plans: Sequence[TrainingPlan], *, check: Check | None = None) -> None:
        """Evaluate plans exactly and keep the best of each domain set. What `check` raises (OutOfTime, unless it
        is given) ends it with none of them kept."""
        reports = self.problem.model.reports(plans, check=check or self._check_time)
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

    def _is_late(self) -> bool:
        return self.clock() > self.deadline and not self._is_owed

    @property
    def _is_owed(self) -> bool:
        return self.needs_plan and not self.result.by_set and not self.result.missed

    def _check_time(self) -> None:
        if self._is_late():
            raise OutOfTime("the search")
