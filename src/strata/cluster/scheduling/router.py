"""The router on the cards of one model: which nodes and which devices a whole gang gets, or none.

`evaluation` asks it for every model, and chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.cluster.api.affinity import unmet
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import Demand
from strata.cluster.scheduling.fraction import place_fractions
from strata.cluster.scheduling.gang import split_gang
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.scoring import LEVEL_BYTES_PER_S, NEARNESS, W_FIT, W_NEAR
from strata.cluster.scheduling.shape import bits
from strata.cluster.scheduling.snapshot import NodeState, Placement, PodPlace

_FARTHEST: Final = {"": "any", "node": "node", "rdma": "rdma", "rack": "rack"}


def place(index: Index, claim: Claim, demand: Demand) -> Placement | None:
    """Return the best placement on cards of one model, or None where the gang does not fit."""
    rows = index.rows_of_model[demand.model]
    rows = rows[open_rows(index, rows, demand.profile, claim)]
    farthest, does_mind = _FARTHEST[claim.group_level], claim.topology != "none"
    if demand.memory_bytes is not None:
        return _fractions(index, rows, claim, demand, farthest=farthest)
    split = split_gang(index, rows, count=demand.devices, pods=claim.pods, farthest=farthest, does_mind=does_mind)
    if split is None:
        return None
    pods, slowest, can_p2p = [], float("inf"), True
    for row, many in split.pods:
        kind = index.kinds.kinds[index.kind[row]]
        shape = index.kinds.shapes[kind.shape]
        cut = shape.cut(kind.free, demand.devices, many)
        assert cut is not None, "the split fits its rows"
        devices = index.rows[row].devices
        pods += [_place(index, row, tuple(devices[i] for i in bits(subset))) for subset in cut.subsets]
        slowest = min(slowest, shape.slowest(sum(cut.subsets)))
        can_p2p = can_p2p and shape.can_p2p
    level = index.level_of(row for row, _ in split.pods)
    near = NEARNESS[level] if does_mind else 1.0
    return Placement(
        demand.profile.name,
        tuple(pods),
        demand.devices,
        min(slowest, LEVEL_BYTES_PER_S.get(level, float("inf"))),
        model=demand.model,
        level=level,
        can_p2p=can_p2p,
        score=W_NEAR * near + split.value / claim.pods + W_FIT * demand.fit,
    )


def _fractions(index: Index, rows: Ints, claim: Claim, demand: Demand, *, farthest: str) -> Placement | None:
    assert demand.memory_bytes is not None, "only fractions come here"
    share = demand.cores_share or 0.0
    spots = place_fractions(
        index, rows, memory_bytes=demand.memory_bytes, cores_share=share, pods=claim.pods, farthest=farthest
    )
    if spots is None:
        return None
    pods = [
        _place(index, spot.row, (index.rows[spot.row].devices[spot.device],), demand.memory_bytes)
        for spot in spots.spots
    ]
    # Pods that share devices are not expected to talk: nearness is no part of the choice, so it counts in full.
    return Placement(
        demand.profile.name,
        tuple(pods),
        1,
        float("inf"),
        model=demand.model,
        level=index.level_of(spot.row for spot in spots.spots),
        cores_share=share,
        score=W_NEAR + spots.value / claim.pods + W_FIT * demand.fit,
    )


def _place(index: Index, row: int, devices: tuple[int, ...], memory_bytes: float | None = None) -> PodPlace:
    node = index.nodes[index.rows[row].node]
    numbers = tuple(node.fingerprint.devices[i].index for i in devices)
    return PodPlace(node.name, devices, memory_bytes, () if numbers == devices else numbers)


def open_rows(
    index: Index, rows: Ints, profile: RuntimeProfile, claim: Claim
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows a claim's pods may go to: schedulable, taints tolerated, labels as asked."""
    tolerations = (*profile.tolerations, *claim.where.tolerations)
    tolerated = np.array([untolerated(taints, tolerations) == "" for taints in index.taint_sets] or [True])
    is_open: np.ndarray[tuple[int], np.dtype[np.bool_]] = index.is_open[rows] & tolerated[index.taint_set[rows]]
    if profile.node_selector or claim.where.selector or claim.where.terms:
        nodes = (index.nodes[index.rows[row].node] for row in rows)
        is_open &= np.array([unlabelled(node, profile, claim) == "" for node in nodes], dtype=bool)
    return is_open


def unlabelled(node: NodeState, profile: RuntimeProfile, claim: Claim) -> str:
    """Return the first label a node lacks that the profile or the pod's own spec asks for; empty for none."""
    for key, value in profile.node_selector.items():
        if node.labels.get(key) != value:
            return f"{key}={value}"
    return unmet(claim.where, node.name, node.labels)


def untolerated(taints: Sequence[str], tolerations: Sequence[Mapping[str, str]]) -> str:
    """Return the first taint (`key=value:effect`) that keeps pods away; empty where there is none."""
    for taint in taints:
        pair, _, effect = taint.rpartition(":")
        key, _, value = pair.partition("=")
        if effect == "PreferNoSchedule":
            continue
        for toleration in tolerations:
            if (toleration.get("effect") or effect) != effect or (toleration.get("key") or key) != key:
                continue
            if toleration.get("operator", "Equal") == "Exists" or (toleration.get("value") or "") == value:
                break
        else:
            return taint
    return ""
