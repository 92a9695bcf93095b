"""What the step of a pipeline in fixed orders takes at least in every split: sums over stages (`ordered.planes`).

A sum counts every operation of one stage, which paces it, once for about each microbatch, and few of the stages
above and below. So with u_i the least that any sum paced below stage i counts of it,
V_i = max(own_i + below_i+1, u_i + V_i+1) is nested as in `splits`, below_i what the same sum counts from i on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strata.arrays import Floats, Ints


@dataclass(frozen=True)
class PlaneSums:
    """K sums over S stages of L layers.

    adds: per stage, what layers from a row to a column add to each sum [K, L + 1, L + 1], inf where they do not
    fit. above: per stage, what they add at least to those paced by a later one [L + 1, L + 1]. paced_by [K].
    """

    adds: Sequence[Floats]
    above: Sequence[Floats]
    paced_by: Ints

    @classmethod
    def of(cls, counts: Floats, work_s: Sequence[Floats], fits: Sequence[Floats]) -> PlaneSums:
        """Return the sums of `planes` [K, 3, S], from operations [L + 1, 3, L + 1] and times of each stage."""
        paced_by = counts[:, 1].argmax(axis=1)
        adds, above = [], []
        for stage, (each, times) in enumerate(zip(work_s, fits, strict=True)):
            is_there, later = np.isfinite(times), counts[paced_by > stage, :, stage]
            least = later.min(axis=0) if len(later) else np.zeros(3)
            adds.append(np.where(is_there, np.einsum("kw,awb->kab", counts[:, :, stage], each), np.inf))
            above.append(np.where(is_there, np.einsum("w,awb->ab", least, each), np.inf))
        return cls(adds, above, paced_by)

    @cached_property
    def below(self) -> list[Floats]:
        """What the stages from i on add at least to each sum, by their first layer [S + 1][K, L + 1]."""
        after = np.full(self.adds[0].shape[:2], np.inf)
        after[:, -1] = 0.0
        below = [after]
        for adds in reversed(self.adds):
            below.append((adds + below[-1][:, None]).min(axis=2))
        return below[::-1]

    @cached_property
    def nested(self) -> list[Floats]:
        """V_i by the first layer of stage i [S + 1][L + 1]."""
        after = np.full(self.adds[0].shape[1], np.inf)
        after[-1] = 0.0
        nested = [after]
        for stage in reversed(range(len(self.adds))):
            own = self.paced_by == stage
            paced = self.adds[stage][own] + self.below[stage + 1][own, None]
            nested.append(np.maximum(paced.max(axis=0, initial=0.0), self.above[stage] + nested[-1]).min(axis=1))
        return nested[::-1]

    @property
    def least_s(self) -> float:
        """What no split's step can beat."""
        return max(float(self.below[0][:, 0].max()), float(self.nested[0][0]))

    def longer(self, before: Floats, stage: int, first: Ints, last: Ints) -> tuple[Floats, Floats]:
        """Return the bounds [N] of splits whose stage has the layers from `first` to `last` [N], and what all its
        stages so far add [N, K + 1], those before it `before`: to each sum, and at least to one paced later."""
        before = before + self._added[stage][first, last]
        sums = (before[:, :-1] + self.below[stage + 1][:, last].T).max(axis=1, initial=0.0)
        return np.maximum(sums, before[:, -1] + self.nested[stage + 1][last]), before

    @cached_property
    def _added(self) -> list[Floats]:
        """What a run of layers adds to each sum, and `above`, for each stage [L + 1, L + 1, K + 1]."""
        both = zip(self.adds, self.above, strict=True)
        return [np.ascontiguousarray(np.moveaxis(np.concatenate([a, o[None]]), 0, 2)) for a, o in both]
