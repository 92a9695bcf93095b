"""Every domain alone: the plan that a fleet of any size has first, and the best of all plans in one domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Clock
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.routes import PairCosts
from strata.training.plan.exact.search import Search, SearchResult
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

    def _least_paths(self, costs: PairCosts) -> tuple[Floats, Floats, Floats, Floats]:
        none = np.zeros(len(self.members))
        return none, none, none, none


def best_alone(
    problem: Problem, scales: Scales, *, clock: Clock, deadline: float, until: float = np.inf
) -> SearchResult:
    """Return the best plan in one domain, the domains that could be fastest first.

    Until there is a plan no limit holds, since one domain takes some hundredths of a second; from then on domains
    are searched until `until`, and the bound, on any plan in one domain, is -inf where some were not.
    """
    result = SearchResult()
    for members in _batches(problem):
        has_plan = bool(result.by_set)
        if result.interrupted or (has_plan and clock() > until):
            result.bound = -np.inf
            break
        search = Search(
            problem, scales, (), clock=clock, deadline=deadline, needs_plan=not has_plan,
            chains=SingleDomains(problem, members),
        )  # fmt: skip
        result.merge(search.run(so_far=result, keeps_best=True))
    result.stopped |= clock() > deadline
    return result


def speeds(problem: Problem) -> Floats:
    """Return how many samples per second each domain could work through with all its devices busy."""
    kinds = problem.representatives
    each = {replace(problem.fleet.domains[i], name="", region=""): k for k, i in enumerate(kinds)}
    of_kind = np.array([each[replace(domain, name="", region="")] for domain in problem.fleet.domains])
    best = np.zeros(len(problem.fleet.domains))
    for config in {(s.tensor_parallel, s.microbatch_size, s.recompute): s for s in problem.configs}.values():
        slots = np.array([problem.slots(problem.fleet.domains[i], config.tensor_parallel) for i in kinds])[of_kind]
        best = np.maximum(best, slots * config.microbatch_size / problem.compute_cost(config).work_s)
    return best


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
