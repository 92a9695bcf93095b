"""Every node for one pod at once: what a scheduler extender's filter and prioritize answer with, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats, Ints
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import Demand, demands
from strata.cluster.scheduling.fraction import fraction_values
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.router import open_rows
from strata.cluster.scheduling.scoring import W_FIT, W_NEAR, values

FITS: Final = ""
TOKENS: Final = (FITS, "devices-busy", "node-closed", "no-profile", "no-devices")
"""What may be said of a node, the best first: of a node with several models the best counts."""


class Appraisal(NamedTuple):
    """Per node of the index [N]: a number of `TOKENS`, and the score of one pod there, 0 where it does not fit."""

    token: Ints
    score: Floats


def appraise(index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]) -> Appraisal:
    """Return which nodes have room for one pod of a claim, and how good they are.

    Cards that stand in for the one asked for count only where they may without asking, and only if no node has
    room on the one asked for.
    """
    found = [one for one in demands(index, claim, profiles) if isinstance(one, Demand)]
    own = _of(index, claim, [one for one in found if not one.is_substitute])
    if (own.token == 0).any() or claim.substitution != "allow":
        return own
    return _of(index, claim, found)


def _of(index: Index, claim: Claim, demands_: Sequence[Demand]) -> Appraisal:
    count = len(index.nodes)
    token, score = np.full(count, TOKENS.index("no-devices")), np.zeros(count)
    node = index.groups["node"]
    token[node] = TOKENS.index("no-profile")
    for demand in demands_:
        rows = index.rows_of_model[demand.model]
        if demand.memory_bytes is None:
            value = values(index, demand.devices)
            one = value[index.kind[rows], 1] if value.shape[1] > 1 else np.full(len(rows), -np.inf)
        else:
            share = demand.cores_share or 0.0
            one = fraction_values(index, rows, memory_bytes=demand.memory_bytes, cores_share=share).max(axis=1)
        fits = one > -np.inf
        is_open = open_rows(index, rows, demand.profile, claim)
        said = np.where(is_open, np.where(fits, 0, TOKENS.index("devices-busy")), TOKENS.index("node-closed"))
        worth = np.where(fits & is_open, W_NEAR + one + W_FIT * demand.fit, 0.0)
        # A node has one row a model, so no node is written twice here.
        token[node[rows]] = np.minimum(token[node[rows]], said)
        score[node[rows]] = np.maximum(score[node[rows]], worth)
    return Appraisal(token, score)
