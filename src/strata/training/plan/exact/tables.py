"""What units can do in each common setting, tabulated: closer, the more of their shapes are built."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.clock import Check, unlimited
from strata.training.plan.exact.candidates import Candidates
from strata.training.plan.exact.capacity import UnitCapacity
from strata.training.plan.exact.config import CommonConfig, ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.row_bounds import least_s, most_hidden_s
from strata.training.plan.exact.shapes import Unit
from strata.training.plan.exact.unit import Inner, Units

FEW: Final = 8
"""Settings of a kind that are built for a plan where there is no time for all that could be better."""


class ShapeTables:
    """The capacities of some units, kind by kind; rows are those of kinds."""

    def __init__(self, problem: Problem, shapes: Units, units: Sequence[Unit]) -> None:
        self.problem, self.shapes = problem, shapes
        rows: dict[Hashable, int] = {}
        self.kind: Ints = np.array([rows.setdefault(shapes.kind(unit), len(rows)) for unit in units], np.int64)
        _, first = np.unique(self.kind, return_index=True)
        self.kinds = [units[k] for k in first]
        self._capacities: dict[CommonConfig, UnitCapacity] = {}
        self._candidates: dict[tuple[CommonConfig, int], Candidates] = {}

    def of(self, common: CommonConfig, check: Check = unlimited) -> UnitCapacity:
        """Return the table of a common setting: of shapes that might fit, as far as none were built."""
        if common not in self._capacities:
            shapes = []
            for unit in self.kinds:
                check()
                shapes.append(self.shapes.shapes.bounds(unit, common))
            batch = self.problem.job.global_batch
            self._capacities[common] = UnitCapacity.of(shapes, self.kind, batch=batch, check=check)
        return self._capacities[common]

    def build_best(
        self,
        common: CommonConfig,
        rows: Iterable[int],
        *,
        limit_s: float,
        hides_s: float,
        check: Check = unlimited,
    ) -> bool:
        """Look into the settings of some kinds that could do most within a time, of those that hide so much, until
        what the best of each does is known. False where that was so before."""
        table, is_new = self.of(common, check), False
        for row in rows:
            kind, is_closer = self.candidates(common, row), False
            while (best := kind.best_open(limit_s, hides_s)) is not None:
                check()
                kind.look(*best)
                is_closer = True
            if is_closer:
                table.put(row, kind)
            is_new |= is_closer
        return is_new

    def add_fast(self, common: CommonConfig, rows: Sequence[int], *, limit_s: float) -> None:
        """Let the FEW settings of each kind that could do most within a limit be built."""
        for row in set(rows):
            kind = self.candidates(common, row)
            could = kind.could(limit_s)
            kind.looked.update(at for at in np.argsort(-could)[:FEW].tolist() if could[at] > 0)

    def look_near(self, common: CommonConfig, rows: Sequence[int], *, limit_s: float) -> None:
        """Let the settings of units of these kinds (a row each) be built that could do, with all others at their
        best, the batch within a limit."""
        kinds = [self.candidates(common, row) for row in rows]
        most = [kind.most(limit_s) for kind in kinds]
        for kind, own in zip(kinds, most, strict=True):
            could = kind.could(limit_s)
            needed = self.problem.job.global_batch * (1 - 1e-9) - (sum(most) - own)
            kind.looked.update(np.flatnonzero((could >= needed) & (could > 0)).tolist())

    def most_hidden_s(self, common: CommonConfig, rows: Sequence[int]) -> float:
        """Return how much of a gradient sum units of these kinds hide at most: that of the least decides."""
        return min(float(self.candidates(common, row).hidden_s.max(initial=0.0)) for row in rows)

    def candidates(self, common: CommonConfig, row: int) -> Candidates:
        """Return the settings of a kind, some of which were looked into."""
        if (common, row) not in self._candidates:
            unit, shapes = self.kinds[row], self.shapes.shapes
            settings, bounds = shapes.settings(unit, common), shapes.bounds(unit, common)
            after_s = dict(zip(settings, bounds.after_s.tolist(), strict=True))

            def least_of(config: ParallelConfig, count: int) -> tuple[float, float]:
                return least_s(self.problem, config, unit, count, after_s=after_s[config])

            def hidden_of(config: ParallelConfig) -> tuple[float, float]:
                # Exchanges of shards lengthen backwards, too.
                is_sharded = max(self.problem.job.zero_stages) >= 2
                return (np.inf, np.inf) if is_sharded else most_hidden_s(self.problem, config, unit)

            self._candidates[common, row] = Candidates(
                settings, bounds, least_of, hidden_of, is_filled=self.problem.is_filled
            )
        return self._candidates[common, row]

    def built(self, row: int, common: CommonConfig) -> list[Inner]:
        """Return the shapes of units of this kind in the settings that were looked into."""
        kind = self.candidates(common, row)
        each = (self.shapes.of_setting(self.kinds[row], kind.configs[at]) for at in sorted(kind.looked))
        return [inner for inners in each for inner in inners]
