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
from dataclasses import dataclass, replace
from typing import Final, Literal

from strata.simulate.kernel_rates import KernelRates
from strata.workload.kernels import LayerKernels, MatrixProduct
from strata.workload.software import PLAIN, Software

Scores = Literal["fused", "kept", "recomputed"]

_SCORE_BYTES: Final = 13.0
"""Read and written per attention score where attention is not one kernel, forward: written by the first product,
read and written by the softmax and by dropout (with its mask), read by the second (arXiv 2205.05198, §4.1 lists
them)."""


_UNFUSED_NORMS: Final = 3.1
"""What passes through memory beside products, over what it is with a kernel for each norm, rotation and activation
function: norms of six kernels in 32 bit move 18 elements for each of the hidden state instead of 2, rotations 10
instead of 2, SwiGLU 5 instead of 3; counted for Llama 3.1 8B."""

_UNFUSED_ELEMENTS: Final = 32
"""More elements moved forward for each that the last product of an expert reads, where its activation function is
no one kernel: biases added (6) and summed up backward (3), both halves clamped (4), scaled sigmoid multiplied in
(7), offset (2), product of the halves (3), weight of the expert multiplied in in 32 bit (10), less the 3 of one
kernel."""

DROPPED_SORT: Final = 0.2
"""Of `sort_s`, where experts take fixed numbers of tokens, whose places are known: fitted."""

TILE_ROWS: Final = 128
"""Rows that a product works on together: the last ones of each expert leave half of it empty in the mean."""


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What one device works on: `rows` tokens of a microbatch, attending to sequences of `sequence_length`.

    scores: attention is one kernel that has none (fused), or its scores go through memory and are kept for the
    backward or computed again in it. software: what runs it.
    """

    rows: float
    sequence_length: int
    tensor_parallel: int
    expert_parallel: int = 1
    scores: Scores = "fused"
    software: Software = PLAIN


def kernel_seconds(layer: LayerKernels, shape: KernelShape, rates: KernelRates) -> tuple[float, float]:
    """Return forward and backward of one layer and microbatch on one device, communication left out [s]."""
    ranks = shape.tensor_parallel
    products = sum(_product_s(each, shape, rates, in_head=not layer.is_block) for each in layer.products)
    software, copies = shape.software, _copies(layer)
    streamed = layer.streamed_elements * (1.0 if software.fused_norms or not layer.is_block else _UNFUSED_NORMS)
    streamed += layer.routed_elements + _activation_elements(layer, software)
    streamed += rates.cast_elements * _operands(layer.products, ranks) * ranks
    streamed_s = streamed * rates.element_bytes * shape.rows / ranks / rates.memory_bytes_per_s
    rest_s = products + streamed_s
    sort_s = rates.sort_s * (DROPPED_SORT if software.drops_tokens else 1.0)
    sorted_s = copies * shape.rows / ranks * sort_s if software.sorts_apart else 0.0
    host_s, waited_s = 0.0, 0.0
    if not software.cuda_graphs:
        host_s = _launched_s(layer, shape, rates)
        waited_s = 0.0 if software.drops_tokens else _expert_products(layer, shape) * rates.product_launch_s
    sequence, rows = shape.sequence_length, shape.rows / ranks
    if shape.scores == "fused" or layer.linear:
        attention_s = layer.pair_flops * rows * _causal(sequence, layer.window) / rates.attention_flops
        attention_back_s = 2.5 * attention_s
    else:
        attention_s = layer.pair_flops * rows * sequence / rates.wide_matmul_flops
        attention_s += _SCORE_BYTES * layer.num_heads * rows * sequence / rates.memory_bytes_per_s
        attention_back_s = (3 if shape.scores == "recomputed" else 2) * attention_s
    return (
        max(rest_s + attention_s, host_s) + sorted_s + waited_s,
        max(2 * rest_s + attention_back_s, 2 * host_s) + sorted_s + 2 * waited_s,
    )


def again_seconds(layer: LayerKernels, shape: KernelShape, rates: KernelRates) -> float:
    """Return what running half a block's products again takes, and all that is no product nor attention [s]."""
    if not layer.is_block:
        return 0.0
    forward_s, _ = kernel_seconds(layer, replace(shape, sequence_length=0), rates)
    return forward_s - sum(_product_s(each, shape, rates, in_head=False) for each in layer.products) / 2


def _causal(sequence_length: int, window: int) -> float:
    """Return how many tokens one looks back at on average: half of all, or a band that is cut off at the start."""
    if not 0 < window < sequence_length:
        return sequence_length / 2
    return window - window**2 / (2 * sequence_length)


def _product_s(product: MatrixProduct, shape: KernelShape, rates: KernelRates, *, in_head: bool) -> float:
    k, n = _sharded(product, shape.tensor_parallel)
    rows, groups = shape.rows * product.copies, _groups(product, shape)
    elements = rows * (k + n) + groups * k * n
    if product.groups > 1:
        rows += TILE_ROWS / 2 * min(groups, rows)
    rate = rates.wide_matmul_flops if in_head else rates.matmul_flops
    return 2 * rows * k * n / rate + elements * rates.element_bytes / rates.memory_bytes_per_s


def _groups(product: MatrixProduct, shape: KernelShape) -> float:
    """Return how many weights of a product's shape one device holds."""
    return max(1.0, product.groups / shape.expert_parallel)


def _launched_s(layer: LayerKernels, shape: KernelShape, rates: KernelRates) -> float:
    """Return what launching the kernels of a layer takes [s]: a product of experts is one for each of them."""
    products = sum(_groups(each, shape) for each in layer.products)
    return (layer.num_kernels - len(layer.products)) * rates.launch_s + products * rates.product_launch_s


def _expert_products(layer: LayerKernels, shape: KernelShape) -> float:
    """Return the products of experts, which the host launches when it knows how many rows each of them has."""
    return sum(_groups(each, shape) for each in layer.products if each.groups > 1)


def _copies(layer: LayerKernels) -> int:
    """Return the rows of a token that are sorted: before the first product of experts, after the last one."""
    return sum(each.copies for each in layer.products if each.groups > 1)


def _activation_elements(layer: LayerKernels, software: Software) -> float:
    """Return what more a token's experts move through memory than with one kernel for the activation function."""
    if software.expert_activation == "fused":
        return 0.0
    read = sum(each.inputs * each.copies for each in layer.products if each.groups > 1 and each.split == "inputs")
    return (
        _UNFUSED_ELEMENTS * read if software.expert_activation == "unfused" else -layer.routed_elements - 3 * read
    )


def _sharded(product: MatrixProduct, ranks: int) -> tuple[float, float]:
    """Return inputs and outputs of the part one device holds."""
    return (
        product.inputs / (ranks if product.split == "inputs" else 1),
        product.outputs / (ranks if product.split == "outputs" else 1),
    )


def _operands(products: Sequence[MatrixProduct], ranks: int) -> float:
    """Return the input elements of one token that all products read on one device."""
    return sum(_sharded(product, ranks)[0] * product.copies for product in products)
