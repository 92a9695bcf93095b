"""How long the kernels of a layer take on one device: matrix products, attention, memory passes, launches.

A matrix product takes its FLOPs at the rate a large one reaches and, beside that, its operands' way through
memory: the smooth roofline, whose two times add up instead of hiding each other entirely. Small matrices (few
tokens, hidden size over many tensor-parallel ranks, an expert's few rows) so reach less without a constant of
their own.

Sources: roofline: Williams, Waterman & Patterson 2009; products of a block: Narayanan et al. 2021 (arXiv
2104.04473), appendix; flash attention does half of the causal square forward and 2.5 times as much backward (Dao
2023, arXiv 2307.08691, §4.1); every other operation's backward is two of its kind. The rates are in
`kernel_rates.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from strata.simulate.kernel_rates import KernelRates
from strata.workload.kernels import LayerKernels, MatrixProduct

Scores = Literal["fused", "kept", "recomputed"]

_SCORE_BYTES: Final = 13.0
"""Read and written per attention score where attention is not one kernel, forward: written by the first product,
read and written by the softmax and by dropout (with its mask), read by the second (arXiv 2205.05198, §4.1 lists
them)."""


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What one device works on: `rows` tokens of a microbatch, attending to sequences of `sequence_length`.

    scores: attention is one kernel that has none (fused), or its scores go through memory and are kept for the
    backward or computed again in it.
    """

    rows: float
    sequence_length: int
    tensor_parallel: int
    expert_parallel: int = 1
    scores: Scores = "fused"


def kernel_seconds(layer: LayerKernels, shape: KernelShape, rates: KernelRates) -> tuple[float, float]:
    """Return forward and backward of one layer and microbatch on one device, communication left out [s]."""
    ranks = shape.tensor_parallel
    products = sum(_product_s(each, shape, rates, in_head=not layer.pair_flops) for each in layer.products)
    streamed = layer.streamed_elements + layer.routed_elements
    streamed += rates.cast_elements * _operands(layer.products, ranks) * ranks
    streamed_s = streamed * rates.element_bytes * shape.rows / ranks / rates.memory_bytes_per_s
    rest_s, host_s = products + streamed_s, layer.num_kernels * rates.launch_s
    sequence, rows = shape.sequence_length, shape.rows / ranks
    if shape.scores == "fused":
        attention_s = layer.pair_flops * rows * _causal(sequence, layer.window) / rates.attention_flops
        attention_back_s = 2.5 * attention_s
    else:
        attention_s = layer.pair_flops * rows * sequence / rates.wide_matmul_flops
        attention_s += _SCORE_BYTES * layer.num_heads * rows * sequence / rates.memory_bytes_per_s
        attention_back_s = (3 if shape.scores == "recomputed" else 2) * attention_s
    return max(rest_s + attention_s, host_s), max(2 * rest_s + attention_back_s, 2 * host_s)


def _causal(sequence_length: int, window: int) -> float:
    """Return how many tokens one looks back at on average: half of all, or a band that is cut off at the start."""
    if not 0 < window < sequence_length:
        return sequence_length / 2
    return window - window**2 / (2 * sequence_length)


def _product_s(product: MatrixProduct, shape: KernelShape, rates: KernelRates, *, in_head: bool) -> float:
    k, n = _sharded(product, shape.tensor_parallel)
    rows, groups = shape.rows * product.copies, max(1.0, product.groups / shape.expert_parallel)
    elements = rows * (k + n) + groups * k * n
    rate = rates.wide_matmul_flops if in_head else rates.matmul_flops
    return 2 * rows * k * n / rate + elements * rates.element_bytes / rates.memory_bytes_per_s


def _sharded(product: MatrixProduct, ranks: int) -> tuple[float, float]:
    """Return inputs and outputs of the part one device holds."""
    return (
        product.inputs / (ranks if product.split == "inputs" else 1),
        product.outputs / (ranks if product.split == "outputs" else 1),
    )


def _operands(products: Sequence[MatrixProduct], ranks: int) -> float:
    """Return the input elements of one token that all products read on one device."""
    return sum(_sharded(product, ranks)[0] * product.copies for product in products)
