"""A search whose best domain sets are each searched to their best plan: the rows of the ranked table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from strata.clock import Clock
from strata.training.plan.exact.branches import CROSSING, LOTS, TOGETHER, Lot
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import SearchResult
from strata.training.plan.exact.search import ROW_SPLITS, ROW_TIMED, ROW_TOLERANCE, Search
from strata.training.plan.objective import Scales

OPENED: Final = 8
ROW_LOTS: Final = 32
"""Branches opened that fit, and lots looked into, for a row of the ranked table before it counts as searched in
part."""

LOTS_OF: Final[dict[str, tuple[Lot, ...]]] = {"single": ("alone",), "pp": ("joined",)}
"""Where the branches of a kind of plan are; of all others: among the sharings."""


class RankedSearch(Search):
    """An exact search, and then one of each of the `rank` best domain sets."""

    def __init__(
        self, problem: Problem, scales: Scales, members: Sequence[int], *, clock: Clock, deadline: float, rank: int
    ) -> None:
        super().__init__(problem, scales, members, clock=clock, deadline=deadline)
        self.rank = rank

    def _search(self, so_far: SearchResult) -> None:
        super()._search(so_far)
        if self.rank and not self.result.stopped:
            self._fill_table(so_far)

    def _fill_table(self, so_far: SearchResult) -> None:
        """Search domain sets by their least bounds, each to its best plan, until no other is of the best.

        One of them crosses domains where any can: what it takes is what a best single domain is compared with.
        """
        result, proved, branches = self.result, self.result.bound, self.branches
        self._most_splits, self._most_timed = ROW_SPLITS, ROW_TIMED
        names = branches.domain_sets
        crosses = np.array([len(domains) > 1 for _, domains in names], dtype=bool)
        most_lots = branches.looked + ROW_LOTS
        is_left, least, counted = np.ones(len(names), dtype=bool), np.full(len(names), np.inf), 0
        while not self._is_late():
            new, counted = np.arange(counted, len(branches.codes)), len(branches.codes)
            np.minimum.at(least, branches.sets_of(new), branches.bounds[new])
            self._copy_alike(so_far)
            known = {**so_far.by_set, **result.by_set}
            scores = sorted(item.score for item in known.values())
            worst = scores[self.rank - 1] if len(scores) >= self.rank else np.inf
            is_owed = all(len(domains) < 2 for _, domains in known)
            wanted = is_left & ((least < worst) | crosses if is_owed else least < worst)
            first = float(least[wanted].min(initial=np.inf))
            lots = CROSSING if is_owed and first >= worst else LOTS
            is_nearer = branches.floor(lots) < (first if lots is CROSSING else min(first, worst))
            lacks_row = first == np.inf and (is_owed or worst == np.inf)
            if is_nearer and (branches.looked < most_lots or lacks_row):
                self._look(lots, first, max(TOGETHER, most_lots - branches.looked))
                continue
            if not np.isfinite(first):
                break
            row = int(np.flatnonzero(wanted)[least[wanted].argmin()])
            is_left[row], most_lots = False, branches.looked + ROW_LOTS
            best = so_far.by_set.get(names[row])
            self._search_row(row, best.score if best is not None else np.inf, most_lots=most_lots)
        result.bound = proved

    def _search_row(self, row: int, incumbent: float, *, most_lots: int) -> None:
        """Search one domain set to its best plan."""
        branches, name, self._unsplit = self.branches, self.branches.domain_sets[row], np.inf
        self._forget()
        self._explore(
            incumbent, lots=LOTS_OF.get(name[0], ("shared",)),
            pick=lambda rows: np.asarray(branches.sets_of(rows) == row),
            among=lambda item: item.domain_set == name,
            most=OPENED, most_lots=most_lots, tolerance=ROW_TOLERANCE,
        )  # fmt: skip
        if not self.result.stopped and self._unsplit == np.inf:
            self.result.closed.add(name)
        self.result.stopped = False
