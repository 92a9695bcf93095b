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
from strata.cluster.scheduling.conversion import Demand, Refusal, demands
from strata.cluster.scheduling.fraction import fraction_values
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.router import open_rows, place
from strata.cluster.scheduling.scoring import W_FIT, W_NEAR, values
from strata.cluster.scheduling.snapshot import Placement

FITS: Final = ""
TOKENS: Final = (FITS, "devices-busy", "node-closed", "no-profile", "no-devices")
"""What a node is to one pod, the best first: of a node with several models the best counts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """placement: where the gang goes. offer: where it could go on other cards, if the job consents.

    demand: what its pods take. demands, refusals: of all models of the cluster.
    """

    placement: Placement | None
    demand: Demand | None
    offer: Placement | None
    demands: tuple[Demand, ...]
    refusals: tuple[Refusal, ...]


class Fit(NamedTuple):
    """One demand on the rows of its model [r]. is_open: its pods may go there.

    pods: how many have room, by devices alone. score: of one pod, as of a gang in one node; -inf for no room.
    """

    rows: Ints
    pods: Ints
    score: Floats
    is_open: Bools


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
    demands: tuple[Demand, ...]
    refusals: tuple[Refusal, ...]
    known: Choice | None = None
    _fits: dict[str, Fit] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def choice(self) -> Choice:
        """The best placement of the gang: the card the job was written for first, then by score."""
        if self.known is not None:
            return self.known
        placement = chosen = None
        for is_substitute in (False, True):
            for demand in self.demands:
                if demand.is_substitute is not is_substitute:
                    continue
                candidate = place(self.index, self.claim, demand)
                if candidate is not None and (placement is None or candidate.score > placement.score + 1e-12):
                    placement, chosen = candidate, demand
            if placement is not None:
                break
        offer = None
        if chosen is not None and chosen.is_substitute and self.claim.substitution == "ask":
            placement, offer = None, placement
        return Choice(placement, chosen, offer, self.demands, self.refusals)

    def fit(self, demand: Demand) -> Fit:
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

    def _node_scores(self, some: Sequence[Demand]) -> NodeScores:
        count = len(self.index.nodes)
        token, score = np.full(count, TOKENS.index("no-devices")), np.zeros(count)
        node = self.index.groups["node"]
        token[node] = TOKENS.index("no-profile")
        for demand in some:
            fit = self.fit(demand)
            has_room = fit.pods > 0
            full = np.where(has_room, TOKENS.index(FITS), TOKENS.index("devices-busy"))
            verdict = np.where(fit.is_open, full, TOKENS.index("node-closed"))
            # A node has one row a model, so no node is written twice here.
            here = node[fit.rows]
            token[here] = np.minimum(token[here], verdict)
            score[here] = np.maximum(score[here], np.where(has_room & fit.is_open, fit.score, 0.0))
        return NodeScores(token, score)


def evaluate(index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]) -> Evaluation:
    """Return what a claim comes to on an index."""
    possible: list[Demand] = []
    refusals: list[Refusal] = []
    for answer in demands(index, claim, profiles):
        if isinstance(answer, Refusal):
            refusals.append(answer)
        else:
            possible.append(answer)
    return Evaluation(index, claim, profiles, tuple(possible), tuple(refusals))


def _fit(index: Index, claim: Claim, demand: Demand) -> Fit:
    rows = index.rows_of_model[demand.model]
    if demand.memory_bytes is None:
        value = values(index, demand.devices)[index.kind[rows]]  # [r, pods + 1]
        pods = np.isfinite(value[:, 1:]).sum(axis=1)
        worth = value[:, 1] if value.shape[1] > 1 else np.full(len(rows), -np.inf)
    else:
        share = demand.cores_share or 0.0
        value = fraction_values(index, rows, memory_bytes=demand.memory_bytes, cores_share=share)  # [r, devices]
        pods, worth = np.isfinite(value).sum(axis=1), value.max(axis=1)
    return Fit(rows, pods, W_NEAR + worth + W_FIT * demand.fit, open_rows(index, rows, demand.profile, claim))
