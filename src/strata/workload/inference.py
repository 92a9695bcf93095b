"""What the serving cost model needs of a model: weights, KV memory and FLOPs of every decoder layer.

Bytes and FLOPs follow from a `ModelSpec`: layers may differ (dense ones before a mixture of experts), KV memory is
that of the attention's kind (latent attention caches latents, a sliding window its last tokens, linear attention
a state), shared experts are read by every token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from strata.arrays import Floats
from strata.decision import UNHASHED
from strata.workload.model import ModelSpec
from strata.workload.precision import ELEMENT_BYTES


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """A model as it is served: L decoder layers between an embedding and a head; `ModelInfo` of design brief 003.

    Arrays have shape [L]. A multiply-add counts as 2 FLOPs.

    num_attention_heads: those that ranks divide, with heads and groups of linear layers (`served_heads`).
    max_position_embeddings: rows of a learned position table, 0 where positions are computed.
    context_limit: tokens that the model takes according to its config; 0 where that says nothing.
    weight_bytes: stored by each layer, all experts included; routed_bytes: those of the routed experts in it.
    kv_bytes_per_token: what a layer caches for one token; windows: how many of a sequence's last tokens it caches
    and looks at, infinite for all.
    flops_per_token: of one token, attention to others left out; the first layer has the embedding's products, too.
    flops_per_token_per_context: of its attention to one cached token; prefill_flops_per_token_per_context: to one
    token of the same prompt.
    kv_read_bytes_per_token: what a layer reads of a cached token; None: what it caches of it.
    kv_heads: of layers; each number divides the ranks of tensor parallelism or is divided by them.
    is_whole: layers need more of earlier ones than a hidden state: all are on one node.
    kinds: of the layers, as in `ModelSpec.kinds`; empty: all alike.
    weights: the precision in which the layers' weights are stored.
    embedding_bytes, head_bytes: what the node of the first and of the last layer stores besides; tied_bytes: what
    one node with both stores only once. hidden_bytes: of one token between two layers.
    """

    model_name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    weight_bytes: Floats
    routed_bytes: Floats
    kv_bytes_per_token: Floats
    flops_per_token: Floats
    flops_per_token_per_context: Floats
    prefill_flops_per_token_per_context: Floats
    embedding_bytes: float
    head_bytes: float
    tied_bytes: float
    head_flops_per_token: float
    hidden_bytes: float
    num_experts: int = 0
    experts_per_token: int = 0
    context_limit: int = field(default=0, metadata={UNHASHED: True})
    windows: Floats = field(default_factory=lambda: np.array(np.inf))
    kinds: tuple[str, ...] = field(default=(), metadata={UNHASHED: True})
    weights: str = field(default="bf16", metadata={UNHASHED: True})
    notes: tuple[str, ...] = field(default=(), metadata={UNHASHED: True})
    is_whole: bool = field(default=False, metadata={UNHASHED: True})
    kv_heads: tuple[int, ...] = field(default=(), metadata={UNHASHED: True})
    kv_read_bytes_per_token: Floats | None = field(default=None, metadata={UNHASHED: True})

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        *,
        weight_bytes_per_param: float = ELEMENT_BYTES["bf16"],
        kv_element_bytes: float = ELEMENT_BYTES["bf16"],
    ) -> ModelInfo:
        """Return a model stored at so many bytes a parameter; hidden states are passed on in 16 bits."""
        kinds, params, width = spec.kinds[1:-1], spec.params_per_layer, weight_bytes_per_param
        table = spec.vocab_size * spec.embedding_size if spec.tied_embeddings else 0
        flops = np.array([spec.token_flops(kind) for kind in kinds])
        flops[0] += spec.token_flops("embedding")
        reads = np.array([spec.seen_elements(kind) for kind in kinds]) * kv_element_bytes
        return cls(
            model_name=spec.name,
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            num_attention_heads=spec.served_heads,
            intermediate_size=spec.intermediate_size,
            max_position_embeddings=spec.max_sequence_length or 0,
            weight_bytes=np.array(params[1:-1]) * width,
            routed_bytes=np.array([spec.routed_params(kind) for kind in kinds]) * width,
            kv_bytes_per_token=np.array([spec.kv_elements(kind) for kind in kinds]) * kv_element_bytes,
            flops_per_token=flops,
            flops_per_token_per_context=np.array([spec.attention_flops(kind, is_cached=True) for kind in kinds]),
            prefill_flops_per_token_per_context=np.array([spec.attention_flops(kind) for kind in kinds]),
            embedding_bytes=params[0] * width,
            head_bytes=(params[-1] + table) * width,
            tied_bytes=table * width,
            head_flops_per_token=spec.token_flops("head"),
            hidden_bytes=spec.hidden_size * ELEMENT_BYTES["bf16"],
            num_experts=spec.experts.num_experts if spec.experts else 0,
            experts_per_token=spec.experts.experts_per_token if spec.experts else 0,
            context_limit=spec.context_limit or 0,
            kinds=kinds,
            windows=np.array([spec.window(layer) or np.inf for layer in range(1, spec.num_layers + 1)]),
            notes=spec.notes,
            is_whole=spec.is_whole,
            kv_heads=spec.kv_heads,
            kv_read_bytes_per_token=None if spec.shared is None else reads,
        )

    def read_bytes(self, tokens: float) -> Floats:
        """Return the weights each layer reads in a step over so many tokens [L].

        Of E routed experts, k a token, E (1 - (1 - k/E)^tokens) are expected to be read: tokens choose evenly
        and on their own, which is what a balanced router tends to.
        """
        if not self.num_experts:
            return self.weight_bytes
        share = 1.0 - (1.0 - self.experts_per_token / self.num_experts) ** tokens
        return np.asarray(self.weight_bytes - self.routed_bytes * (1.0 - share))

    def kv_bytes(self, tokens: float) -> Floats:
        """Return what each layer caches for a sequence of so many tokens [L]: of a window at most."""
        return np.asarray(self.kv_bytes_per_token * np.minimum(tokens, self.windows))

    def kv_read_bytes(self, tokens: float) -> Floats:
        """Return what each layer reads of the cache for a token after so many [L], of a window at most."""
        each = self.kv_bytes_per_token if self.kv_read_bytes_per_token is None else self.kv_read_bytes_per_token
        return np.asarray(each * np.minimum(tokens, self.windows))

    def attended(self, tokens: float, context: float) -> Floats:
        """Return how many tokens one of `tokens` new ones after `context` cached ones looks at, the mean [L].

        Attention is causal: a token looks at the cached ones and on average at half of the others, in its window.
        """
        most = np.minimum(self.windows, context + tokens)
        growing = np.clip(most - context, 0.0, tokens)
        return np.asarray((growing * (context + growing / 2) + (tokens - growing) * most) / tokens)

    def ends_bytes(self, first: int, end: int) -> float:
        """Return what a node with layers [first, end) stores for embedding and head."""
        is_first, is_last = first == 0, end == self.num_layers
        shared = self.tied_bytes if is_first and is_last else 0.0
        return self.embedding_bytes * is_first + self.head_bytes * is_last - shared

    @cached_property
    def weight_bytes_before(self) -> Floats:
        """Prefix sums of stored weights [L + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.weight_bytes)])
