"""Who may share a batch: domains, and the chains of regions, in groups that sum gradients between them.

A unit holds one copy of the model: a domain, or the chain of all domains of a region (pipeline inside the
region, data parallel across regions).
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.gradient_sums import least_of_any_s, least_of_groups_s
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.shapes import Unit
from strata.training.plan.exact.speed import speeds

SPEEDS: Final = 4
"""Speeds down to which domains are looked at without the slower ones."""


class UnitGroups:
    """All groups of two or more disjoint units of some domains, and what sums of gradients between them take."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        """Groups of units of `members`; of more than POOL of them those of `_likely_groups` only."""
        self.problem, self.members = problem, members
        self._sums: dict[float, Floats] = {}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Every domain alone, and every region of two or more connected domains as a chain, both ways round."""
        domains = self.problem.fleet.domains
        regions: dict[str, list[int]] = {}
        for i in self.members:
            if domains[i].region:
                regions.setdefault(domains[i].region, []).append(i)
        latency = self.problem.pair_costs(1).latency_sum
        chains = []
        for inside in regions.values():
            order, cost = best_path(latency, tuple(inside))
            if len(order) > 1 and np.isfinite(cost):
                chains += [order, order[::-1]]
        return (*((i,) for i in self.members), *chains)

    @cached_property
    def groups(self) -> tuple[tuple[Unit, ...], ...]:
        """All sets of two or more disjoint units that links could connect; their stages do not interleave."""
        if (self.problem.job.pins.virtual_stages or 1) > 1:
            return ()
        if len(self.members) > POOL:
            return self._likely_groups()
        units, bandwidth = self.units, self.bandwidth
        inside = [sum(1 << i for i in unit) for unit in units]
        linked = [sum(1 << int(i) for i in np.flatnonzero(bandwidth[list(unit)].any(axis=0))) for unit in units]
        groups: list[tuple[Unit, ...]] = []
        disjoint: list[tuple[tuple[int, ...], int]] = [((k,), inside[k]) for k in range(len(units))]
        while disjoint:
            disjoint = [
                ((*at, k), whole | inside[k])
                for at, whole in disjoint
                for k in range(at[-1] + 1, len(units))
                if not whole & inside[k]
            ]
            groups += [tuple(units[k] for k in at) for at, whole in disjoint if all(linked[k] & whole for k in at)]
        fixed = self.problem.job.pins.stages
        return tuple(group for group in groups if fixed is None or sum(map(len, group)) == len(fixed))

    def _likely_groups(self) -> tuple[tuple[Unit, ...], ...]:
        """Return groups by speed, by egress, as cliques of fast links, and near each domain.

        A direct sum is as fast as the slowest links of its members, and a batch shared among unlike domains in
        whole microbatches is as slow as the slow ones' rounding: so there are cliques of all domains and of those
        alone that are as fast as the fastest, the next, … Of those near a domain, sizes grow by half.
        """
        bandwidth, speed = self.bandwidth, speeds(self.problem)[list(self.members)]
        near = bandwidth[np.ix_(self.members, self.members)]
        near = np.minimum(near, near.T)
        orders = [np.argsort(-speed, kind="stable"), np.argsort(-near.sum(axis=1) * speed, kind="stable")]
        orders += [_cliques(near, np.flatnonzero(speed >= least)) for least in np.unique(speed)[::-1][:SPEEDS]]
        orders.append(_cliques(near, np.arange(len(near))))
        picked = {frozenset(order[:count].tolist()) for order in orders for count in range(2, len(order) + 1)}
        for hub in range(len(self.members)):
            linked = np.argsort(-near[hub], kind="stable")
            order = [hub, *(int(k) for k in linked if k != hub and near[hub, k] > 0)]
            count = 2
            while count <= len(order):
                picked.add(frozenset(order[:count]))
                count += max(1, count // 2)
        return tuple(tuple((self.members[k],) for k in sorted(group)) for group in sorted(picked, key=sorted))

    @cached_property
    def bandwidth(self) -> Floats:
        """Bandwidth between domains of the fleet."""
        bandwidth = self.problem.fleet.bandwidth_bytes_per_s()
        np.fill_diagonal(bandwidth, 0.0)
        return bandwidth

    @cached_property
    def between(self) -> Floats:
        """Bandwidth [unit, unit] from all domains of one to all of the other."""
        domains = np.zeros((len(self.units), len(self.problem.fleet.domains)))
        for k, unit in enumerate(self.units):
            domains[k, list(unit)] = 1.0
        return np.asarray(domains @ self.bandwidth @ domains.T)

    @cached_property
    def _least_latency(self) -> Floats:
        """One-way latency [unit, unit] over the shortest link from any domain of one to any of the other."""
        latency = self.problem.fleet.latency_s()
        starts = np.cumsum([0, *map(len, self.units[:-1])])
        inside = [i for unit in self.units for i in unit]
        rows = np.minimum.reduceat(latency[np.ix_(inside, inside)], starts, axis=0)
        return np.asarray(np.minimum.reduceat(rows, starts, axis=1))

    @cached_property
    def gradient_bytes(self) -> float:
        """What a sum of gradients is of."""
        return float(self.problem.job.layers.params_before[-1]) * self.problem.job.element_bytes

    @cached_property
    def position(self) -> dict[Unit, int]:
        """Where in `units` each is."""
        return {unit: k for k, unit in enumerate(self.units)}

    @cached_property
    def member(self) -> Bools:
        """Which units each group holds [group, unit]."""
        member = np.zeros((len(self.groups), len(self.units)), dtype=bool)
        for row, group in enumerate(self.groups):
            member[row, [self.position[unit] for unit in group]] = True
        return member

    def least_sum_s(self, factor: float) -> Floats:
        """Return what a sum of gradients between D = 2.. units takes at least."""
        return least_of_any_s(self.gradient_bytes / factor, self._seconds_per_byte, self._least_latency)

    @cached_property
    def _seconds_per_byte(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(1 / self.between)

    def sums_s(self, factor: float) -> Floats:
        """Return what the sum of gradients between the units of each group takes at least [groups]."""
        if factor not in self._sums:
            self._sums[factor] = least_of_groups_s(
                self.gradient_bytes / factor, self.member, self._seconds_per_byte, self._least_latency
            )
        return self._sums[factor]


def _cliques(near: Floats, members: Ints) -> Ints:
    """Return members of bandwidths [K, K], ordered so that without the last ones those left have faster links.

    The one whose slowest link to the others is slowest is dropped first.
    """
    left, dropped = list(members.tolist()), []
    apart = near + np.diag(np.full(len(near), np.inf))
    while left:
        inside = np.sort(apart[np.ix_(left, left)], axis=1)
        # Both ends of a slow link have the same slowest one: the next slowest decides.
        dropped.append(left.pop(int(np.lexsort(inside.T[::-1])[0])))
    return np.array(dropped[::-1], dtype=np.int64)
