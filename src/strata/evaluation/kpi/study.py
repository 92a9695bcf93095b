"""What every row is given: the policy that is measured, how many instances, a clock; and its decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Clock
from strata.evaluation.kpi.other_orders import other_orders
from strata.evaluation.kpi.seeking import seeking
from strata.training.hi_ppo import global_agent
from strata.training.hi_ppo.policy import HiPpoPolicy, safe_policy
from strata.training.plan.baselines.context import Context
from strata.training.plan.exact.pareto import vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.objective import Scales
from strata.training.plan.shortlist.selection import shortlist

QUERIES: Final = 64
"""Preferences a front is asked with: the budget of facts §3."""

MOST_PLANS: Final = 256
"""Plans of the shortlist, and the vectors every other search may evaluate."""

SEARCH_LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Study:
    """One run of the table. clock: wall time; cpu_clock: of this process alone, which other work does not slow.

    `advance` is told the share of a row that is done; `seed` is of the resampling.
    """

    policy: HiPpoPolicy
    clock: Clock
    cpu_clock: Clock
    quick: bool = False
    seed: int = 0
    advance: Callable[[float], None] = field(default=lambda _share: None, compare=False)

    def rng(self) -> np.random.Generator:
        """Return the generator of a row: the same for each, whatever ran before."""
        return np.random.default_rng(self.seed)

    @property
    def untrained(self) -> Study:
        """The same with the policy that has learned nothing."""
        return replace(self, policy=safe_policy())

    def context(self, *, num_devices: int = 0, seed: int = 0) -> Context:
        """Return what a baseline may use, with the limit every search of the table has."""
        rng = np.random.default_rng(seed)
        return Context(Scales(), num_devices, rng, self.clock, self.clock() + SEARCH_LIMIT_S)

    def decide(self, problem: Problem, items: Sequence[Evaluated] | None = None) -> Evaluated | None:
        """Return the policy's plan of a new job, for the job's own objective; None where nothing fits."""
        return global_agent.decide(problem, policy=self.policy, clock=self.clock, items=items).best

    def candidates(self, problem: Problem) -> list[Evaluated]:
        """Return the plans a front is picked from: the shortlist, and its best pipelines in other orders."""
        items = shortlist(problem, most=MOST_PLANS)
        return [*items, *other_orders(problem, items)]

    def front(self, problem: Problem, items: Sequence[Evaluated] | None = None) -> list[Evaluated]:
        """Return the policy's plans under at most QUERIES preferences, each plan once.

        Each preference aims into the largest gap the plans so far leave; candidates may be given.
        """
        candidates = self.candidates(problem) if items is None else list(items)
        if not candidates:
            return []
        scales = global_agent.scales_of(candidates)
        asking = seeking(np.array(scales.ideal), np.array(scales.nadir))
        taken: list[Evaluated] = []
        weights: Floats | None = next(asking)
        while weights is not None and len(taken) < QUERIES:
            taken += global_agent.answers(problem, candidates, weights[None], policy=self.policy)
            try:
                weights = asking.send(np.array(vector(taken[-1].report)))
            except StopIteration:
                weights = None
        return list({item.plan: item for item in taken}.values())
