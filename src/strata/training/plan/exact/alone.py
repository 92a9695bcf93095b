"""Every domain alone: the plan that a fleet of any size has first, and the best of all plans in one domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Clock
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.exact.speed import speeds
from strata.training.plan.objective import Scales

TOGETHER: Final = 32
"""Domains bounded at once: for so many it costs little more than for one."""


class SingleDomains(ChainSpace):
    """Pipelines inside one of some domains: as many masks as domains, and no links."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        """Members are positions in the fleet, at most 62 of them."""
        super().__init__(problem, ())
        self.members, self.domains = members, [problem.fleet.domains[i] for i in members]
        self.masks = 1 << np.arange(len(members), dtype=np.int64)
        self.inside = np.eye(len(members), dtype=np.int64)

    @property
    def joins(self) -> bool:
        """Return False: each domain is alone."""
        return False

    def path_costs(self, microbatch_size: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Return nothing to pay: there is no path, whatever the microbatch."""
        none = np.zeros(len(self.members))
        return none, none, none, none

    def orders(
        self, config: ParallelConfig, picked: tuple[int, ...], *, all_efficient: bool = False
    ) -> list[tuple[int, ...]]:
        """Return the one order of one domain."""
        return [picked]


def first_plan(
    problem: Problem, scales: Scales, pools: Iterable[Iterable[int]], *, clock: Clock, deadline: float,
    is_owed: bool = True,
) -> SearchResult:  # fmt: skip
    """Return one of the best plans in the fastest domain that holds the job alone; nothing where none does.

    Common settings are tried first: in the fastest domain, in all others, and as pipelines over the `pools`; then
    all settings. Where a plan `is_owed` the deadline is for pipelines alone: one domain takes some hundredths of a
    second. Nothing is proved, so the bound is open.
    """
    batches = list(_batches(problem))
    # Pools are not looked for where a domain alone holds the job: of a thousand domains that takes seconds.
    tries: Iterator[tuple[tuple[int, ...], tuple[int, ...], bool]] = chain(
        ((alone, (), True) for alone in batches),
        (((), tuple(sorted(pool)), True) for pool in pools),
        ((alone, (), False) for alone in batches),
    )
    for alone, pool, is_common in tries:
        search = Search(
            problem, scales, pool, clock=clock, deadline=deadline, needs_plan=is_owed and bool(alone),
            only_common=is_common,
            chains=SingleDomains(problem, alone) if alone else None,
        )  # fmt: skip
        tried = search.run(keeps_best=True)
        if tried.by_set or tried.interrupted:
            return SearchResult(by_set=tried.by_set, evaluated=tried.evaluated, interrupted=tried.interrupted)
    return SearchResult()


def best_alone(
    problem: Problem, scales: Scales, *, clock: Clock, deadline: float, so_far: SearchResult
) -> SearchResult:
    """Return what in one domain is better than the plans `so_far`, and the bound on any plan in one domain.

    The domains that could be fastest come first; each lot of like ones has its share of the time.
    """
    result, batches = SearchResult(), list(_batches(problem))
    for done, members in enumerate(batches):
        until = clock() + (deadline - clock()) / (len(batches) - done)
        known = so_far if so_far.best_score <= result.best_score else result
        search = Search(
            problem, scales, (), clock=clock, deadline=until, chains=SingleDomains(problem, members)
        )  # fmt: skip
        result.merge(search.run(so_far=known, keeps_best=True))
        if result.interrupted:
            result.bound = -np.inf
            break
    return result


def _batches(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield the fastest domain, then all kinds of domains, those with like devices together."""
    speed = speeds(problem)
    fastest_first = sorted(problem.representatives, key=lambda i: -speed[i])
    yield tuple(fastest_first[:1])
    like: dict[int, list[int]] = defaultdict(list)
    for index in fastest_first[1:]:
        like[problem.kinds[problem.fleet.domains[index].name]].append(index)
    for members in like.values():
        yield from (tuple(members[at : at + TOGETHER]) for at in range(0, len(members), TOGETHER))
