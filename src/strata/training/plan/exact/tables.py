"""What units can do in each common setting, tabulated: closer, the more of their shapes are built."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from strata.arrays import Ints
from strata.clock import Check, unlimited
from strata.training.plan.exact.candidates import Candidates
from strata.training.plan.exact.capacity import UnitCapacity
from strata.training.plan.exact.config import CommonConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shapes import Unit
from strata.training.plan.exact.unit import Built, Inner, Units


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
        self._split: set[tuple[CommonConfig, int]] = set()

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
        """Build the shapes of some kinds that could do most within a time, of those that hide so much, until the
        best of each is one that is built. False where that was so before."""
        table, is_new = self.of(common, check), False
        for row in rows:
            if (common, row) in self._split:
                continue
            kind, before = self.candidates(common, row), len(self.candidates(common, row))
            while (at := kind.best_open(limit_s, hides_s)) is not None:
                check()
                kind.put(at, self.shapes.of_setting(self.kinds[row], kind.configs[at]))
            if len(kind) < before:
                table.put(row, kind)
                is_new = True
        return is_new

    def build_near(self, common: CommonConfig, rows: Sequence[int], *, limit_s: float) -> bool:
        """Build the shapes of units of these kinds (a row each) that could do, with all others at their best, the
        batch within a limit; False where those were built before."""
        table, is_new = self.of(common), False
        kinds = {row: self.candidates(common, row) for row in rows if (common, row) not in self._split}
        most = {row: kind.most(limit_s) for row, kind in kinds.items()}
        built = {row: self._most(common, row, limit_s) for row in rows if row not in kinds}
        for row, kind in kinds.items():
            others = sum((most | built)[other] for other in rows) - most[row]
            could = kind.could(limit_s)
            picked = np.flatnonzero((could + others >= table.batch * (1 - 1e-9)) & (could > 0))
            for at in picked.tolist():
                kind.put(at, self.shapes.of_setting(self.kinds[row], kind.configs[at]))
            if len(picked):
                table.put(row, kind)
                is_new = True
            most[row] = kind.most(limit_s)
        return is_new

    def most_hidden_s(self, common: CommonConfig, rows: Sequence[int]) -> float:
        """Return how much of a gradient sum units of these kinds hide at most: that of the least decides."""
        hidden = [
            Built(self.built(row, common)).hidden_s if (common, row) in self._split
            else self.candidates(common, row).hidden_s
            for row in rows
        ]  # fmt: skip
        return min(float(each.max(initial=0.0)) for each in hidden)

    def _most(self, common: CommonConfig, row: int, limit_s: float) -> float:
        return Built(self.shapes.inners_of_kind(self.kinds[row], common)).most_within(limit_s)

    def build_fastest(self, common: CommonConfig, rows: Iterable[int], *, check: Check = unlimited) -> bool:
        """Build the fastest shapes of some kinds, and forget the others; False where that was done before."""
        table = self.of(common, check)
        left = [row for row in dict.fromkeys(rows) if (common, row) not in self._split]
        for row in left:
            check()
            table.put(row, Built(self.shapes.inners_of_kind(self.kinds[row], common)))
            self._split.add((common, row))
        return bool(left)

    def candidates(self, common: CommonConfig, row: int) -> Candidates:
        """Return the shapes of a kind, of which some are built."""
        if (common, row) not in self._candidates:
            unit, shapes = self.kinds[row], self.shapes.shapes
            self._candidates[common, row] = Candidates(shapes.settings(unit, common), shapes.bounds(unit, common))
        return self._candidates[common, row]

    def built(self, row: int, common: CommonConfig) -> list[Inner]:
        """Return the shapes of units of this kind that were built."""
        if (common, row) in self._split:
            return self.shapes.inners_of_kind(self.kinds[row], common)
        return self.candidates(common, row).inners
