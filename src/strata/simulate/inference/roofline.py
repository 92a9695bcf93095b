"""Seconds of decoder layers by the roofline: the slower of computing and of reading memory, layer by layer.

Figures come by *part*: the L layers, then the head, shape [..., L + 1], where ... are nodes. Layers [first, end)
take the sum of their parts, and the last layer brings the head with it (`parts_of`).

References
----------
Williams, Waterman, Patterson: Roofline, CACM 52 (2009). Bytes and FLOPs of a part: `workload/inference.py`.
Bytes are weights and KV memory; activations inside a layer and the embedding's rows are left out. All-reduces of
tensor parallelism come on top, as many and as long as in training (`simulate/compute.py`); the embedding's is left
out, for all layers to stay alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from strata.arrays import Floats, Ints
from strata.simulate.collective import tensor_parallel_s
from strata.simulate.compute import REDUCTIONS, REDUCTIONS_OF_A_BLOCK
from strata.workload.inference import ModelInfo


class Rates(NamedTuple):
    """What nodes reach, shares of their peaks: FLOP/s and memory bytes/s, one number or many [...].

    A rate of 0 is one that is not known: that side of the roof is then left out. matrix_speedup: how many times
    faster the layers' own matrices multiply (in FP8), attention and head not among them;
    attention_speedup: the same of attention to other tokens. ranks: devices of each
    node that share every layer; intra_bandwidth_bytes_per_s: of one of them to the others, one direction,
    intra_latency_s one-way.
    """

    flops_per_s: float | Floats
    bytes_per_s: float | Floats
    matrix_speedup: float | Floats = 1.0
    attention_speedup: float | Floats = 1.0
    ranks: int | Ints = 1
    intra_bandwidth_bytes_per_s: float | Floats = np.inf
    intra_latency_s: float | Floats = 0.0


class Terms(NamedTuple):
    """Parts as fixed_s + per_unit_s * units + per_unit_context_s * units * context, each [..., L + 1].

    Units are sequences of a decode step or tokens of a prompt. Exact at `units` and `context`, the reference.
    """

    fixed_s: Floats
    per_unit_s: Floats
    per_unit_context_s: Floats
    units: float
    context: float

    def at(self, units: float, context: float) -> Floats:
        """Return the seconds of each part [..., L + 1]."""
        seconds = self.fixed_s + self.per_unit_s * units + self.per_unit_context_s * (units * context)
        return np.asarray(seconds)


def parts_of(num_layers: int, first: int, end: int) -> slice:
    """Return which parts belong to layers [first, end): the head goes with the last layer."""
    return slice(first, end + 1 if end == num_layers else end)


def decode_s(model: ModelInfo, rates: Rates, *, batch: float, context: float) -> Floats:
    """Return the seconds of one decode step of `batch` sequences with `context` cached tokens each."""
    kv_bytes = batch * model.kv_read_bytes(context)
    seen = np.minimum(context, model.windows)
    flops = batch * model.flops_per_token, batch * seen * model.flops_per_token_per_context
    head = batch * model.head_flops_per_token, model.head_bytes
    parts_s = _parts(rates, flops, model.read_bytes(batch) + kv_bytes, head)
    return parts_s + _reductions_s(model, rates, batch, batch)


def prefill_s(model: ModelInfo, rates: Rates, *, tokens: float, context: float = 0.0) -> Floats:
    """Return the seconds of reading `tokens` of a prompt after `context` cached ones; the head takes one token."""
    seen = model.attended(tokens, context)
    kv_bytes = model.kv_read_bytes(context) + tokens * model.kv_bytes_per_token
    flops = tokens * model.flops_per_token, tokens * seen * model.prefill_flops_per_token_per_context
    head = model.head_flops_per_token, model.head_bytes
    parts_s = _parts(rates, flops, model.read_bytes(tokens) + kv_bytes, head)
    return parts_s + _reductions_s(model, rates, tokens, 1)


def decode_terms(model: ModelInfo, rates: Rates, *, batch: float, context: float) -> Terms:
    """Return decode steps as terms, exact for `batch` sequences with `context` cached tokens each."""
    batch, context = max(batch, 1.0), max(context, 1.0)
    return _terms(lambda units, cached: decode_s(model, rates, batch=units, context=cached), batch, context)


def prefill_terms(model: ModelInfo, rates: Rates, *, tokens: float) -> Terms:
    """Return prefills as terms, exact for a prompt of so many tokens, and after as many cached ones."""
    tokens = max(tokens, 1.0)
    return _terms(lambda units, cached: prefill_s(model, rates, tokens=units, context=cached), tokens, tokens)


def _parts(rates: Rates, flops: tuple[Floats, Floats], read_bytes: Floats, head: tuple[float, float]) -> Floats:
    """Return the slower side of the roof of each part; flops: of the layers' matrices and of their attention."""
    faster, attention = (
        np.asarray(each, dtype=float)[..., np.newaxis] for each in (rates.matrix_speedup, rates.attention_speedup)
    )
    layers = flops[0] / faster + flops[1] / attention
    whole = np.concatenate([layers, np.full((*layers.shape[:-1], 1), head[0])], axis=-1)
    computing_s = _over(whole, rates.flops_per_s)
    reading_s = _over(np.append(read_bytes, head[1]), rates.bytes_per_s)
    return np.asarray(np.maximum(computing_s, reading_s))


def _reductions_s(model: ModelInfo, rates: Rates, tokens: float, head_tokens: float) -> Floats:
    """Return the all-reduces of each part [..., L + 1]: of the hidden states of so many tokens."""
    once = [
        tensor_parallel_s(
            count * model.hidden_bytes,
            ranks=rates.ranks,
            bandwidth_bytes_per_s=rates.intra_bandwidth_bytes_per_s,
            latency_s=rates.intra_latency_s,
        )
        for count in (tokens, head_tokens)
    ]
    kinds = model.kinds or ("dense",) * model.num_layers
    layers = [REDUCTIONS.get(kind, REDUCTIONS_OF_A_BLOCK) * once[0] for kind in kinds]
    return np.stack([*layers, REDUCTIONS["head"] * once[1]], axis=-1)


def _over(amount: Floats, rate: float | Floats) -> Floats:
    rates = np.asarray(rate, dtype=float)[..., np.newaxis]
    zeros = np.zeros(np.broadcast_shapes(amount.shape, rates.shape))
    return np.asarray(np.divide(amount, rates, out=zeros, where=rates > 0))


def _terms(step: Callable[[float, float], Floats], units: float, context: float) -> Terms:
    """Draw the lines: from one unit to the reference without context, and from there to its context.

    A step never takes more than its units one by one, so what is left of one unit as the fixed part is not
    negative; but for prompts so long that attention to themselves outweighs everything, hence the floor.
    """
    first, more = step(1.0, 0.0), max(units, 2.0)
    slope = np.maximum(0.0, step(more, 0.0) - first) / (more - 1.0)
    fixed = np.maximum(0.0, first - slope)
    empty = step(units, 0.0)
    deeper = np.maximum(0.0, step(units, context) - empty)
    return Terms(fixed, np.maximum(0.0, empty - fixed) / units, deeper / (units * context), units, context)
