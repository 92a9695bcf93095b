"""How others place: pod by pod, by a score of the node alone. For comparison, on the same index.

* binpack: the fullest node that fits, its first free devices (kube-scheduler's MostAllocated)
* spread: the emptiest node, its first free devices (kube-scheduler's LeastAllocated, its default)
* hami-like: the node fullest in proportion, and there the emptiest devices (HAMi 2.10's defaults: nodes by
  binpack, devices by spread)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np

from strata.arrays import Floats, Ints
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import PodDemand, demands
from strata.cluster.scheduling.eligibility import open_rows
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.scoring import LEVEL_BYTES_PER_S
from strata.cluster.scheduling.shape import bits
from strata.cluster.scheduling.snapshot import Placement, PodPlace

Baseline = Literal["binpack", "spread", "hami-like"]
BASELINES: Final[tuple[Baseline, ...]] = get_args(Baseline)


def choose_like(
    baseline: Baseline, index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]
) -> Placement | None:
    """Return where a baseline puts a gang: the card asked for first, then the first other that has room."""
    possible = [demand for demand in demands(index, claim, profiles) if isinstance(demand, PodDemand)]
    for demand in sorted(possible, key=lambda candidate: candidate.is_substitute):
        placement = _place(baseline, index, claim, demand)
        if placement is not None:
            return placement
    return None


def _place(baseline: Baseline, index: Index, claim: Claim, demand: PodDemand) -> Placement | None:
    rows = index.rows_of_model[demand.model]
    rows = rows[open_rows(index, rows, demand.profile, claim)]
    if not len(rows):
        return None
    free_share, free_bytes = index.free_share[rows].copy(), index.free_bytes[rows].copy()
    whole = demand.memory_bytes is None
    taken: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(claim.pods):
        if whole:
            fits = free_share >= 1
        else:
            fits = (free_share >= (demand.cores_share or 0.0)) & (free_bytes >= (demand.memory_bytes or 0.0))
        able = np.flatnonzero(fits.sum(axis=1) >= demand.devices)
        if not len(able):
            return None
        row = able[_best_node(baseline, free_share[able])]
        order = np.flatnonzero(fits[row])
        if baseline != "binpack" and not whole:
            order = order[np.argsort(-free_share[row, order], kind="stable")]
        chosen = tuple(int(device) for device in order[: demand.devices])
        taken.append((int(rows[row]), chosen))
        for device in chosen:
            free_share[row, device] -= 1 if whole else demand.cores_share or 0.0
            free_bytes[row, device] -= index.sizes[rows[row], device] if whole else demand.memory_bytes
    return _placement(index, demand, taken)


def _best_node(baseline: Baseline, free_share: Floats) -> int:
    there = free_share >= 0
    free = np.where(there, free_share, 0).sum(axis=1)
    if baseline == "spread":
        return int(np.argmax(free))
    return int(np.argmin(free / there.sum(axis=1) if baseline == "hami-like" else free))


def _placement(index: Index, demand: PodDemand, taken: list[tuple[int, tuple[int, ...]]]) -> Placement:
    by_row: dict[int, int] = {}
    for row, chosen in taken:
        by_row[row] = by_row.get(row, 0) | sum(1 << device for device in chosen)
    level = index.level_of(by_row)
    return Placement(
        demand.profile.name,
        tuple(
            PodPlace(
                index.nodes[index.rows[row].node].name,
                tuple(index.rows[row].devices[device] for device in chosen),
                demand.memory_bytes,
            )
            for row, chosen in taken
        ),
        demand.devices,
        min(slowest(index, by_row), LEVEL_BYTES_PER_S.get(level, float("inf"))),
        model=demand.model,
        level=level,
        cores_share=demand.cores_share,
    )


def slowest(index: Index, by_row: dict[int, int]) -> float:
    """Return the slowest pair within the nodes of some devices [bytes/s], by row the bits of its devices."""
    shapes, kinds = index.kinds.shapes, index.kinds.kinds
    bytes_per_s: float = min(shapes[kinds[index.kind[row]].shape].slowest(some) for row, some in by_row.items())
    return bytes_per_s


def free_whole(index: Index) -> tuple[Ints, Ints]:
    """Return of each row how many devices nobody uses, and how many are well [R]."""
    kinds = [index.kinds.kinds[number] for number in index.kind]
    return (
        np.array([len(bits(kind.free)) for kind in kinds], dtype=np.int64),
        np.array([len(bits(kind.usable)) for kind in kinds], dtype=np.int64),
    )
