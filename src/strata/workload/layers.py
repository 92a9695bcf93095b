"""What the cost model needs of a model: one row per layer, whatever the architecture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.decision import UNHASHED
from strata.workload.kernels import LayerKernels


@dataclass(frozen=True)
class LayerExchanges:
    """What only some layouts ask of layers, arrays [L]; per sample, unsharded, in compute precision.

    kv_bytes: keys and values. query_bytes: queries, as large as attention's output. attention_flops: those of the
    attention square. expert_params: of routed experts. routed_bytes: what tokens take to their experts, one way.
    routed_flops: of routed experts. recomputed_bytes: results of norms and activation functions, and of
    latent attention's up-projections.
    expert_groups: of experts, and how many of them one token's are in.
    """

    kv_bytes: Floats
    query_bytes: Floats
    attention_flops: Floats
    expert_params: Floats
    routed_bytes: Floats
    routed_flops: Floats
    recomputed_bytes: Floats
    expert_groups: tuple[int, int] = (1, 1)

    @classmethod
    def none(cls, count: int) -> LayerExchanges:
        """Return those of layers that have neither attention nor experts."""
        nothing = np.zeros(count)
        return cls(nothing, nothing, nothing, nothing, nothing, nothing, nothing)


@dataclass(frozen=True)
class LayerTable:
    """Per-layer figures of one model at one sequence length; layer 0 is the embedding, the last the head.

    All arrays have shape [L]. FLOPs, activations and boundary are per *sample* (one sequence), unsharded.
    `forward_flops` counts a multiply-add as 2. `params` are all that are stored (all experts),
    `activation_bytes` what a layer keeps for its backward without recomputation,
    `checkpoint_bytes` what it keeps with full recomputation (its input),
    `boundary_bytes` what it sends to the next layer (16-bit).
    `only_some`: what only some layouts ask, None where it is not known and taken as nothing.
    `tied_params`: what a tied head shares with the embedding, which counts it; 0 elsewhere, None: untied.
    `only_hidden`: the bytes of a hidden state, None where a boundary is nothing else (Gemma 3n sends keys, too).
    `kernels` are what each layer computes for a token, empty where only the FLOPs are known.
    """

    kinds: tuple[str, ...]
    forward_flops: Floats
    params: Floats
    activation_bytes: Floats
    checkpoint_bytes: Floats
    boundary_bytes: Floats
    kernels: tuple[LayerKernels, ...] = ()
    only_some: LayerExchanges | None = None
    tied_params: Floats | None = None
    only_hidden: Floats | None = field(default=None, metadata={UNHASHED: True})

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def hidden_bytes(self) -> Floats:
        """Bytes of the hidden state that a layer puts out, which tensor parallelism gathers and sums [L]."""
        return self.boundary_bytes if self.only_hidden is None else self.only_hidden

    @cached_property
    def exchanges(self) -> LayerExchanges:
        """What only some layouts ask, nothing where it is not known."""
        return LayerExchanges.none(len(self)) if self.only_some is None else self.only_some

    @cached_property
    def unlike_kernels(self) -> tuple[tuple[LayerKernels, ...], Ints]:
        """What layers compute that is not alike, and which of it each computes [L]."""
        unlike = tuple(dict.fromkeys(self.kernels))
        place = {kernels: number for number, kernels in enumerate(unlike)}
        return unlike, np.array([place[kernels] for kernels in self.kernels], dtype=np.int64)

    @cached_property
    def is_head(self) -> Bools:
        """Which layers are a head [L]."""
        return np.array([kind == "head" for kind in self.kinds])

    @cached_property
    def is_even(self) -> bool:
        """Whether all layers between embedding and head are alike, as far as memory goes."""
        return len({*zip(self.kinds[1:-1], self.params[1:-1], self.activation_bytes[1:-1], strict=True)}) < 2

    @cached_property
    def untied(self) -> LayerTable:
        """The layers where embedding and head lie apart: a head that is tied has a copy of the table."""
        if self.tied_params is None:
            return self
        return replace(self, params=self.params + self.tied_params, tied_params=None)

    @property
    def table_params(self) -> float:
        """Parameters of the copy of the table that a tied head has apart from the embedding; 0: it is not tied."""
        return 0.0 if self.tied_params is None else float(self.tied_params[-1])

    @cached_property
    def params_before(self) -> Floats:
        """Prefix sums of parameters, shape [L + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.params)])
