"""One claim on every node of an index: where it fits, what a pod is worth there, and the choice for the gang.

`evaluate` is what the controller, single pods, Kueue's checks, scheduler extenders and `explain` all ask, so that
none of them judges a node otherwise than the others. What is not asked for is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import PodDemand, Refusal, demands
from strata.cluster.scheduling.eligibility import open_rows
from strata.cluster.scheduling.fraction import fraction_values, place_fractions
from strata.cluster.scheduling.gang import split_gang
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.scoring import LEVEL_BYTES_PER_S, NEARNESS, W_FIT, W_NEAR, values
from strata.cluster.scheduling.shape import bits
from strata.cluster.scheduling.snapshot import Placement, PodPlace

FITS: Final = ""
TOKENS: Final = (FITS, "devices-busy", "node-resources-busy", "node-closed", "no-profile", "no-devices")
"""What a node is to one pod, the best first: of a node with several models the best counts."""


_FARTHEST: Final = {"": "any", "node": "node", "rdma": "rdma", "rack": "rack"}


@dataclass(frozen=True, slots=True)
class Choice:
    """placement: where the gang goes. offer: where it could go on other cards, if the job consents.

    demand: what its pods take. demands, refusals: of all models of the cluster.
    """

    placement: Placement | None
    demand: PodDemand | None
    offer: Placement | None
    demands: tuple[PodDemand, ...]
    refusals: tuple[Refusal, ...]


class Fit(NamedTuple):
    """One demand on the rows of its model [r]. is_open: its pods may go there.

    devices, capacity: how many pods have room by devices, and by what else they request; pods: by both.
    score: of one pod, as of a gang in one node; -inf for no devices.
    """

    rows: Ints
    devices: Ints
    capacity: Ints
    score: Floats
    is_open: Bools

    @property
    def pods(self) -> Ints:
        """How many pods have room."""
        return np.minimum(self.devices, self.capacity)


class NodeScores(NamedTuple):
    """Per node of the index [N]: a number of `TOKENS`, and the score of one pod there, 0 where it does not fit."""

    token: Ints
    score: Floats


@dataclass(frozen=True)
class Evaluation:
    """known: the choice, where it was made before on an index with at least as much room."""

    index: Index
    claim: Claim
    profiles: Sequence[RuntimeProfile]
    demands: tuple[PodDemand, ...]
    refusals: tuple[Refusal, ...]
    known: Choice | None
    _fits: dict[str, Fit] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def choice(self) -> Choice:
        """The best placement of the gang: the card the job was written for first, then by score."""
        if self.known is not None:
            return self.known
        if not self.claim.pods:
            return Choice(None, None, None, self.demands, self.refusals)
        placement = chosen = None
        for is_substitute in (False, True):
            for demand in self.demands:
                if demand.is_substitute is not is_substitute:
                    continue
                candidate = _place(self.index, self.claim, demand)
                if candidate is not None and (placement is None or candidate.score > placement.score + 1e-12):
                    placement, chosen = candidate, demand
            if placement is not None:
                break
        offer = None
        if chosen is not None and chosen.is_substitute and self.claim.substitution == "ask":
            placement, offer = None, placement
        return Choice(placement, chosen, offer, self.demands, self.refusals)

    def fit(self, demand: PodDemand) -> Fit:
        """Return where one pod fits on the cards of one model, and how well."""
        if demand.model not in self._fits:
            self._fits[demand.model] = _fit(self.index, self.claim, demand)
        return self._fits[demand.model]

    @cached_property
    def nodes(self) -> NodeScores:
        """Which nodes have room for one pod, and how good they are.

        Cards that stand in for the one asked for count only where they may without asking, and only if no node has
        room on the one asked for.
        """
        own = self._node_scores([demand for demand in self.demands if not demand.is_substitute])
        if (own.token == 0).any() or self.claim.substitution != "allow":
            return own
        return self._node_scores(self.demands)

    def _node_scores(self, some: Sequence[PodDemand]) -> NodeScores:
        count = len(self.index.nodes)
        token, score = np.full(count, TOKENS.index("no-devices")), np.zeros(count)
        node = self.index.groups["node"]
        token[node] = TOKENS.index("no-profile")
        for demand in some:
            fit = self.fit(demand)
            has_room = fit.pods > 0
            lack = np.where(fit.devices > 0, TOKENS.index("node-resources-busy"), TOKENS.index("devices-busy"))
            full = np.where(has_room, TOKENS.index(FITS), lack)
            verdict = np.where(fit.is_open, full, TOKENS.index("node-closed"))
            # A node has one row a model, so no node is written twice here.
            here = node[fit.rows]
            token[here] = np.minimum(token[here], verdict)
            score[here] = np.maximum(score[here], np.where(has_room & fit.is_open, fit.score, 0.0))
        return NodeScores(token, score)


def evaluate(
    index: Index, claim: Claim, profiles: Sequence[RuntimeProfile], *, known: Choice | None = None
) -> Evaluation:
    """Return what a claim comes to on an index. known: the choice, where it was made before."""
    if known is not None:
        return Evaluation(index, claim, profiles, known.demands, known.refusals, known)
    answers = list(demands(index, claim, profiles))
    possible = tuple(answer for answer in answers if isinstance(answer, PodDemand))
    refusals = tuple(answer for answer in answers if isinstance(answer, Refusal))
    return Evaluation(index, claim, profiles, possible, refusals, None)


def _fit(index: Index, claim: Claim, demand: PodDemand) -> Fit:
    rows = index.rows_of_model[demand.model]
    if demand.memory_bytes is None:
        value = values(index, demand.devices)[index.kind[rows]]  # [r, pods + 1]
        pods = np.isfinite(value[:, 1:]).sum(axis=1)
        worth = value[:, 1] if value.shape[1] > 1 else np.full(len(rows), -np.inf)
    else:
        share = demand.cores_share or 0.0
        value = fraction_values(index, rows, memory_bytes=demand.memory_bytes, cores_share=share)  # [r, devices]
        pods, worth = np.isfinite(value).sum(axis=1), value.max(axis=1)
    left = index.capacity(rows, demand.requests)
    is_open = open_rows(index, rows, demand.profile, claim)
    return Fit(rows, pods, left, W_NEAR + worth + W_FIT * demand.fit, is_open)


def _place(index: Index, claim: Claim, demand: PodDemand) -> Placement | None:
    """Return the best placement on cards of one model, or None where the gang does not fit."""
    rows = index.rows_of_model[demand.model]
    rows = rows[open_rows(index, rows, demand.profile, claim)]
    farthest, does_mind = _FARTHEST[claim.group_level], claim.topology != "none"
    if demand.memory_bytes is not None:
        return _fractions(index, rows, claim, demand, farthest=farthest)
    split = split_gang(
        index,
        rows,
        count=demand.devices,
        pods=claim.pods,
        farthest=farthest,
        does_mind=does_mind,
        requests=demand.requests,
    )
    if split is None:
        return None
    pods, slowest, can_p2p = [], float("inf"), True
    for row, many in split.pods:
        kind = index.kinds.kinds[index.kind[row]]
        shape = index.kinds.shapes[kind.shape]
        cut = shape.cut(kind.free, demand.devices, many)
        assert cut is not None, "the split fits its rows"
        devices = index.rows[row].devices
        pods += [_pod_place(index, row, tuple(devices[i] for i in bits(subset))) for subset in cut.subsets]
        slowest = min(slowest, shape.slowest(sum(cut.subsets)))
        can_p2p = can_p2p and shape.can_p2p
    level = index.level_of([row for row, _ in split.pods])
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
        requests=demand.requests,
    )


def _fractions(index: Index, rows: Ints, claim: Claim, demand: PodDemand, *, farthest: str) -> Placement | None:
    assert demand.memory_bytes is not None, "only fractions come here"
    share = demand.cores_share or 0.0
    spots = place_fractions(
        index,
        rows,
        memory_bytes=demand.memory_bytes,
        cores_share=share,
        pods=claim.pods,
        farthest=farthest,
        requests=demand.requests,
    )
    if spots is None:
        return None
    pods = [
        _pod_place(index, spot.row, (index.rows[spot.row].devices[spot.device],), demand.memory_bytes)
        for spot in spots.spots
    ]
    # Pods that share devices are not expected to talk: nearness does not matter, so it counts in full.
    return Placement(
        demand.profile.name,
        tuple(pods),
        1,
        float("inf"),
        model=demand.model,
        level=index.level_of([spot.row for spot in spots.spots]),
        cores_share=share,
        score=W_NEAR + spots.value / claim.pods + W_FIT * demand.fit,
        requests=demand.requests,
    )


def _pod_place(index: Index, row: int, devices: tuple[int, ...], memory_bytes: float | None = None) -> PodPlace:
    node = index.nodes[index.rows[row].node]
    numbers = tuple(node.fingerprint.devices[i].index for i in devices)
    return PodPlace(node.name, devices, memory_bytes, () if numbers == devices else numbers)
