"""What copies exchange after the microbatches, as `copies.copy_exchange` says, of every run of layers at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain
from strata.simulate.copies import CONTENTION, SharedWeights


def exposed_s(
    domain: Domain,
    forward_s: Floats,
    backward_s: Floats,
    weights: Sequence[SharedWeights],
    *,
    zero_stage: int,
    prefetched: bool = True,
    hidden: bool = True,
    gradient_ratio: float = 1.0,
) -> Floats:
    """Return `sum_s + gather_s` of a stage that holds the layers from a row to a column [L + 1, L + 1].

    Arguments are as there, of all layers [L]; shards lie over all copies. What is not a run is 0.
    """
    shared = [part for part in weights if part.members > 1]
    count = len(forward_s)
    if not shared or (zero_stage == 3 and not prefetched):
        return np.zeros((count + 1, count + 1))
    back_s = _runs(backward_s)
    if zero_stage == 0:
        sums_s = gradient_ratio * np.sum([_rings_s(part, domain) for part in shared], axis=0)
        return np.triu(np.maximum(0.0, sums_s - back_s * hidden), 1)
    each = sum((part.half_rings_s(domain, None) for part in shared), np.zeros(count))
    halves_s = _runs(each)
    if zero_stage == 1 and not hidden:
        return np.triu(halves_s * (1 + gradient_ratio), 1)
    gathered_s = _after(each, forward_s) - _runs(forward_s)
    if zero_stage == 1:
        return np.triu(np.maximum(0.0, halves_s - back_s) + gathered_s, 1)
    longer_s = backward_s + CONTENTION * np.minimum(backward_s, each * (2 if zero_stage > 2 else 1))
    if zero_stage == 2:
        busy_s = np.maximum(_runs(longer_s), halves_s)
        return np.triu(np.maximum(0.0, _after(each, longer_s) - busy_s) + gathered_s, 1)
    fetched_s = _after(longer_s, each)
    first_s = np.append(each, 0.0)[:, None]
    return np.triu(np.maximum(0.0, fetched_s + first_s - np.maximum(fetched_s, 2 * halves_s)), 1)


def _runs(each_s: Floats) -> Floats:
    """Return what layers from a row to a column take together [L + 1, L + 1]."""
    until = np.concatenate([[0.0], np.cumsum(each_s)])
    return np.asarray(until[None, :] - until[:, None])


def _rings_s(part: SharedWeights, domain: Domain) -> Floats:
    """Return the all-reduce of the layers of each run, in one piece."""
    bandwidth, latency_s = part.wire(domain)
    size = _runs(part.size_bytes)
    ring_s = 2 * (part.members - 1) * (size / part.members / bandwidth + latency_s)
    return np.where(_runs((part.size_bytes > 0).astype(float)) > 0, ring_s, 0.0)


def _after(first_s: Floats, then_s: Floats) -> Floats:
    """Return when two machines in turn are done with each run (`copies._after`), layers in either direction.

    max_k (Σ_{a<=l<=k} first_l + Σ_{k<=l<z} then_l) over the layers k from row a to column z.
    """
    count = len(first_s)
    first, then = (np.concatenate([[0.0], np.cumsum(each)]) for each in (first_s, then_s))
    at = np.arange(count)
    apart = np.where(at >= np.arange(count + 1)[:, None], first[1:] - then[:-1], -np.inf)
    most = np.maximum.accumulate(apart, axis=1)
    most = np.concatenate([np.full((count + 1, 1), -np.inf), most], axis=1)
    return np.asarray(then[None, :] - first[:, None] + most)
