"""What a gradient sum between units takes at least: of given groups of units, and of the best group there is.

All three algorithms of `simulate.collective.best_all_reduce` are bounded, each by its own formula; a sum takes the
least of the three. U units, D members, seconds a byte x[i, j] and one-way latency L[i, j] from i to j [U, U], inf
where there is no link; the diagonals are not read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Bools, Floats

CELLS: Final = 2**22
"""Pairs of members looked at together: 32 MB an array."""

ROUNDING: Final = 1 - 1e-12
"""A bound must not exceed by rounding what it is exactly equal to."""


def least_of_groups_s(size_bytes: float, member: Bools, seconds_per_byte: Floats, latency_s: Floats) -> Floats:
    """Return for each group [G], rows of `member` [G, U], what no sum of `size_bytes` between its units beats.

    Direct and star are exact. A ring leaves each member by its best link at best, and comes by its best
    (`simulate.collective`: the formulas and their sources).
    """
    units = member.shape[1]
    rows = max(1, CELLS // max(1, units * units))
    least = [
        _of_groups(size_bytes, member[first : first + rows], seconds_per_byte, latency_s)
        for first in range(0, len(member), rows)
    ]
    return np.concatenate([np.empty(0), *least]) * ROUNDING


def _of_groups(size: float, member: Bools, seconds_per_byte: Floats, latency: Floats) -> Floats:
    count = member.sum(axis=1)
    pair = member[:, :, None] & member[:, None, :] & ~np.eye(member.shape[1], dtype=bool)

    def most(matrix: Floats, axis: int) -> Floats:
        return np.asarray(np.where(pair, matrix, 0.0).max(axis=axis))

    def least(matrix: Floats) -> Floats:
        """The slowest of what each member's best link out, and in, takes."""
        best = [np.where(pair, matrix, np.inf).min(axis=axis) for axis in (1, 2)]
        return np.asarray(np.where(member, np.maximum(*best), 0.0).max(axis=1))

    slowest = most(np.maximum(seconds_per_byte, seconds_per_byte.T), 2)
    rate = np.where(member, 1 / np.maximum(slowest, 1e-30), 0.0)
    is_joined = np.isfinite(slowest).all(axis=1)
    direct = 2 * (size / np.where(is_joined, rate.sum(axis=1), 1.0) + most(latency, 2).max(axis=1))
    message = size * seconds_per_byte + latency
    star = np.where(member, most(message, 1) + most(message, 2), np.inf).min(axis=1)
    ring = 2 * (count - 1) * (size / count * least(seconds_per_byte) + least(latency))
    return np.asarray(np.minimum(np.where(is_joined, direct, np.inf), np.minimum(star, ring)))


def least_of_any_s(size_bytes: float, seconds_per_byte: Floats, latency_s: Floats) -> Floats:
    """Return for D = 2..U members what no sum of `size_bytes` between any D of the units beats [U - 1].

    Direct: member i's chunk goes over its slowest link to D - 1 others, no faster than its (D-1)-th best; so the
    rates add up to no more than the D largest of those, and the longest latency is no less than the D-th least
    of the (D-1)-th least. Star: the hub's (D-1)-th best message in, then out. Ring: each of D members has a best
    link out, a best one in, and, from three members on, two different neighbours.
    """
    units = len(latency_s)
    if units < 2:
        return np.empty(0)
    here = np.arange(units - 1)
    count = here + 2.0
    away = np.where(np.eye(units, dtype=bool), np.inf, 0.0)  # a unit itself comes last
    both_ways = np.sort(np.maximum(seconds_per_byte, seconds_per_byte.T) + away, axis=1)
    # [unit, D - 2]: the (D-1)-th best; of the units, the D best.
    rate = np.sort(1 / np.maximum(both_ways[:, :-1], 1e-30), axis=0)[::-1].cumsum(axis=0)[here + 1, here]
    late = np.sort(np.sort(np.maximum(latency_s, latency_s.T) + away, axis=1)[:, :-1], axis=0)[here + 1, here]
    with np.errstate(divide="ignore"):
        direct = 2 * (size_bytes / rate + late)
    message = size_bytes * seconds_per_byte + latency_s + away
    star = (np.sort(message, axis=0)[:-1].T + np.sort(message, axis=1)[:, :-1]).min(axis=0)

    def passing(matrix: Floats) -> Floats:
        """The slowest (or longest) link of a ring: the D-th least of what its members have."""
        ends = np.maximum((matrix + away).min(axis=0), (matrix + away).min(axis=1))
        second = np.sort(np.minimum(matrix, matrix.T) + away, axis=1)[:, min(1, units - 2)]
        two, more = np.sort(ends), np.sort(np.maximum(ends, second))
        return np.asarray(np.where(count > 2, more[here + 1], two[here + 1]))

    ring = 2 * (count - 1) * (size_bytes / count * passing(seconds_per_byte) + passing(latency_s))
    return np.asarray(np.minimum(direct, np.minimum(star, ring)) * ROUNDING)
