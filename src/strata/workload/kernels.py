"""What one layer computes for a token: its matrix products, its attention, and what only passes through memory.

`ModelSpec` makes them; a cost model sees by them how large each matrix is on one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """Tokens [rows, inputs] times a weight [inputs, outputs].

    split: which side tensor parallelism shards. copies: of each token (the experts it is sent to). groups: weights
    of this shape that share those copies evenly (the experts).
    """

    inputs: int
    outputs: int
    split: Literal["inputs", "outputs", "none"]
    copies: int = 1
    groups: int = 1

    @property
    def params(self) -> int:
        """Elements of all weights."""
        return self.inputs * self.outputs * self.groups

    @property
    def active_params(self) -> int:
        """Elements one token is multiplied with."""
        return self.inputs * self.outputs * self.copies


@dataclass(frozen=True, slots=True)
class LayerKernels:
    """What one token costs forward in one layer.

    pair_flops: attention of one token to one other in all `num_heads`, as `ModelSpec.attention_flops`. window:
    tokens it looks back at, 0 for all.
    streamed_elements: read or written by what is no matrix product (norms, residual sums, activation functions,
    logits). routed_elements: the same of what sorts tokens by expert and back. num_kernels: launched.
    linear: attention is linear, `window` what costs the same; no scores of all tokens are ever written.
    is_block: neither embedding nor head.
    """

    products: tuple[MatrixProduct, ...]
    pair_flops: float
    window: int
    num_heads: int
    streamed_elements: float
    routed_elements: float
    num_kernels: int
    linear: bool = False
    is_block: bool = True
