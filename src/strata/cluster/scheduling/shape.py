"""How one node's devices hang together, shared by all nodes built alike, and the best ways to cut pods from it.

A set of devices is the bits of an integer: bit i is device i of the row (`index.py`). The shape remembers its
answers, since a cluster has few shapes and few patterns of free devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats
from strata.fleet.fingerprint import LINK_BYTES_PER_S
from strata.fleet.topology import best_subset

W_BEST: Final = 0.5
W_FAST: Final = 0.3
W_BOARD: Final = 0.1
W_NUMA: Final = 0.1
"""What a pod's devices are worth: their slowest pair as a share of the best of such a node, and of the fastest
link there is; boards not torn apart; one NUMA node. A single device has nothing to wait for.
"""

_FASTEST: Final = max(LINK_BYTES_PER_S.values())

_EXACT_DEVICES: Final = 8
"""Free devices few enough that all ways to cut several pods are compared; past it, one pod after the other."""


class Cut(NamedTuple):
    """Devices of pods cut one after the other from one node, and the sum of what they are worth."""

    subsets: tuple[int, ...]
    worth: float


@dataclass(frozen=True, eq=False)
class Shape:
    """bandwidth: bytes/s [n, n]. boards, numa: of each device, empty or -1 where not known."""

    bandwidth: Floats
    boards: tuple[str, ...]
    numa: tuple[int, ...]
    can_p2p: bool = True
    _best: dict[int, float] = field(default_factory=dict)
    _cuts: dict[tuple[int, int, int], Cut | None] = field(default_factory=dict)
    _worths: dict[tuple[int, int], float] = field(default_factory=dict)

    @staticmethod
    def of(bandwidth: Floats, *, boards: tuple[str, ...], numa: tuple[int, ...], can_p2p: bool) -> Shape:
        """Build a shape. Devices that cannot reach each other talk through the host's memory, at its pace.

        A bandwidth that is none (NaN, zero) is taken for the slowest link's.
        """
        bandwidth = np.where(bandwidth > 0, bandwidth, LINK_BYTES_PER_S["sys"])
        if not can_p2p:
            near = np.asarray(numa)[:, None] == np.asarray(numa)[None, :]
            host = np.where(near, LINK_BYTES_PER_S["node"], LINK_BYTES_PER_S["sys"])
            bandwidth = np.minimum(bandwidth, host)
            np.fill_diagonal(bandwidth, np.inf)
        return Shape(bandwidth, boards, numa, can_p2p)

    def slowest(self, subset: int) -> float:
        """Return the bandwidth of a set's slowest pair [bytes/s]; infinite for one device."""
        chosen = bits(subset)
        if len(chosen) == 1:
            return float("inf")
        return float(self.bandwidth[np.ix_(chosen, chosen)].min())

    def worth(self, subset: int, mask: int) -> float:
        """Return what a pod's devices are worth, in [0, 1], when cut from the free devices of `mask`."""
        key = (subset, mask if any(self.boards) else 0)
        if (known := self._worths.get(key)) is None:
            known = self._worths[key] = self._worth(subset, mask)
        return known

    def _worth(self, subset: int, mask: int) -> float:
        chosen = bits(subset)
        slowest, of_best, of_fastest = self.slowest(subset), 1.0, 1.0
        if len(chosen) > 1:
            of_best = min(slowest / self._reachable(len(chosen)), 1.0)
            of_fastest = min(slowest / _FASTEST, 1.0)
        # A board is torn where one of its dies is taken and another, still free, is left.
        left = {self.boards[i] for i in bits(mask & ~subset)} - {""}
        torn = len({self.boards[i] for i in chosen} & left)
        aligned = len({self.numa[i] for i in chosen}) == 1
        return W_BEST * of_best + W_FAST * of_fastest + W_BOARD / (1 + torn) + W_NUMA * aligned

    def _reachable(self, count: int) -> float:
        """Return the slowest pair of the best `count` devices, were all free [bytes/s]."""
        if count not in self._best:
            best = best_subset(self.bandwidth, range(len(self.numa)), count)
            assert best is not None, "a shape has as many devices as its masks"
            self._best[count] = best.worst_pair_bandwidth
        return self._best[count]

    def cut(self, mask: int, count: int, pods: int) -> Cut | None:
        """Return the best `pods` sets of `count` free devices, or None where there are not so many.

        Exact (the largest sum of `worth`) on small nodes; one after the other on larger ones.
        """
        if pods == 0:
            return Cut((), 0.0)
        key = (mask, count, pods)
        if key not in self._cuts:
            self._cuts[key] = self._cut(mask, count, pods)
        return self._cuts[key]

    def _cut(self, mask: int, count: int, pods: int) -> Cut | None:
        free = mask.bit_count()
        if free < count * pods:
            return None
        if free > _EXACT_DEVICES:
            subset = self._preferred(mask, count)
            rest = self.cut(mask & ~subset, count, pods - 1)
            assert rest is not None, "what is left suffices for the others"
            return Cut((subset, *rest.subsets), self.worth(subset, mask) + rest.worth)
        best: Cut | None = None
        for chosen in combinations(bits(mask), count):
            subset = sum(1 << i for i in chosen)
            rest = self.cut(mask & ~subset, count, pods - 1)
            if rest is None:
                continue
            worth = self.worth(subset, mask) + rest.worth
            if best is None or worth > best.worth + 1e-12:
                best = Cut((subset, *rest.subsets), worth)
        return best

    def _preferred(self, mask: int, count: int) -> int:
        """Return one good set of a large node: whole boards, then the slowest pair, then one NUMA node."""
        boards: dict[str, list[int]] = {}
        for i in bits(mask):
            boards.setdefault(self.boards[i] or f"#{i}", []).append(i)
        size = max(self.boards.count(board) if board in self.boards else 1 for board in boards)
        whole = [dies for dies in boards.values() if len(dies) == size]
        numa = np.asarray(self.numa)
        liking = np.where(numa[:, None] == numa[None, :], 1 + 1e-6, 1.0) * self.bandwidth
        np.fill_diagonal(liking, np.inf)
        if size == 1 or count % size or len(whole) < count // size:
            # Halves of torn boards first, where they alone suffice.
            halves = [i for dies in boards.values() if len(dies) < size for i in dies]
            among = halves if len(halves) >= count else bits(mask)
            subset = best_subset(liking, among, count)
            assert subset is not None, "the mask has enough devices"
            return sum(1 << i for i in subset.devices)
        between = np.array([[liking[np.ix_(a, b)].min() for b in whole] for a in whole])
        subset = best_subset(between, range(len(whole)), count // size)
        assert subset is not None, "there are enough whole boards"
        return sum(1 << die for board in subset.devices for die in whole[board])


def bits(mask: int) -> list[int]:
    """Return the devices of a set, ascending."""
    devices = []
    while mask:
        low = mask & -mask
        devices.append(low.bit_length() - 1)
        mask ^= low
    return devices
