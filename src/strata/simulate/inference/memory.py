"""What a node's memory holds: layers, the embedding or the head beside them, and KV memory for the rest.

Layers and KV memory are weighed together: tokens = (usable - weights - ends) / KV bytes a token, those of a
request of the expected length: a layer with a sliding window keeps no more than the window of each.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats, Ints
from strata.workload.inference import ModelInfo

UNBOUNDED_TOKENS: Final = 10**12
"""More than any node caches: no stage that caches nothing is the tightest."""


class Room(NamedTuple):
    """Most layers of each node by its place in a pipeline: first, between, last, or alone; each [N]."""

    first: Ints
    middle: Ints
    last: Ints
    only: Ints


def kv_tokens(model: ModelInfo, usable_bytes: float, first: int, end: int, *, request_tokens: float) -> int:
    """Return the tokens a node caches for its layers [first, end); 0 where not even the weights fit.

    They are of requests of so many tokens each: as many of these fit as the quotient says, whatever windows there
    are. Of longer ones fewer tokens are booked than windows would leave room for; of shorter ones no more fit than
    the same number of requests, which is what slots bound. Layers that cache nothing (an MLP alone) bound none:
    `UNBOUNDED_TOKENS`.
    """
    weights = float(model.weight_bytes_before[end] - model.weight_bytes_before[first])
    free = usable_bytes - weights - model.ends_bytes(first, end)
    per_token = float(model.kv_bytes(request_tokens)[first:end].sum()) / request_tokens
    if per_token <= 0:
        return UNBOUNDED_TOKENS if free >= 0 else 0
    return max(0, math.floor(free / per_token + 1e-9))


def room(model: ModelInfo, usable_bytes: Floats, *, batch: float, tokens: float) -> Room:
    """Return how many layers fit beside the KV memory of a batch of sequences of so many tokens each.

    A first stage takes layers from the front and a last one from the back. Between, any layers must fit: the
    largest of as many neighbours count, which is exact where layers are alike.
    """
    need = model.weight_bytes + batch * model.kv_bytes(tokens)
    before = np.concatenate([[0.0], np.cumsum(need)])
    after = np.concatenate([[0.0], np.cumsum(need[::-1])])
    counts = range(1, model.num_layers + 1)
    widest = np.array([0.0, *(float((before[k:] - before[:-k]).max()) for k in counts)])
    both = model.ends_bytes(0, model.num_layers)
    return Room(
        first=_most(before, usable_bytes - model.embedding_bytes),
        middle=_most(widest, usable_bytes),
        last=_most(after, usable_bytes - model.head_bytes),
        only=_most(before, usable_bytes - both),
    )


def _most(need: Floats, free: Floats) -> Ints:
    """Return the most layers whose need is not above what is free; rounding aside."""
    return np.maximum(0, np.searchsorted(need, free * (1 + 1e-12), side="right") - 1)
