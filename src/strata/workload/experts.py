"""A mixture of experts, in place of the MLP of blocks or beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.decision import UNHASHED


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in every layer but `dense_layers`.

    intermediate_size: of one routed expert; shared_intermediate_size: of all shared experts together, 0 for none;
    shared_gate: the shared expert's output is gated per token (Qwen2-MoE); bias: experts and router have biases
    (gpt-oss); scales: each expert's output is multiplied by a number of its own (Gemma 4); latent_size: of
    what routed experts work on, projected from the hidden state and back; 0: on that itself (Nemotron 3);
    zero_experts: which a router may choose and which compute nothing, so that `experts_per_token` is a mean
    (LongCat-Flash).
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    bias: bool = False
    scales: bool = False
    latent_size: int = 0
    dense_layers: frozenset[int] = frozenset()
    groups: tuple[int, int] = (1, 1)
    zero_experts: int = field(default=0, metadata={UNHASHED: True})
