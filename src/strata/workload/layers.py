"""What the cost model needs of a model: one row per layer, whatever the architecture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strata.arrays import Floats
from strata.workload.kernels import LayerKernels


@dataclass(frozen=True)
class LayerTable:
    """Per-layer figures of one model at one sequence length; layer 0 is the embedding, the last the head.

    All arrays have shape [L]. FLOPs, activations and boundary are per *sample* (one sequence), unsharded.
    `forward_flops` counts a multiply-add as 2. `params` are all that are stored (all experts),
    `activation_bytes` what a layer keeps for its backward without recomputation,
    `checkpoint_bytes` what it keeps with full recomputation (its input),
    `boundary_bytes` what it sends to the next layer (16-bit).
    `kernels` are what each layer computes for a token, empty where only the FLOPs are known.
    """

    kinds: tuple[str, ...]
    forward_flops: Floats
    params: Floats
    activation_bytes: Floats
    checkpoint_bytes: Floats
    boundary_bytes: Floats
    kernels: tuple[LayerKernels, ...] = ()

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def params_before(self) -> Floats:
        """Prefix sums of parameters, shape [L + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.params)])

    @cached_property
    def activation_before(self) -> Floats:
        """Prefix sums of activation bytes, shape [L + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.activation_bytes)])

    @cached_property
    def checkpoint_before(self) -> Floats:
        """Prefix sums of checkpoint bytes, shape [L + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.checkpoint_bytes)])
