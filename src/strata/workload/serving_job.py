"""A serving job: the model, what is asked of it, and what counts as good enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from strata.decision import UNHASHED, Trust, worst
from strata.workload.inference import ModelInfo
from strata.workload.precision import ELEMENT_BYTES, MEMORY_HEADROOM

Weights = Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
Kv = Literal["bf16", "fp8"]

MOST_SEQUENCES: Final = 256
"""Sequences that engines decode together at most where the job does not say (`max_num_seqs` of vLLM)."""
STEP_TOKENS: Final = 512
"""Tokens of prompts that ride along with one decode step (Sarathi-Serve's middle setting; assumed)."""


class ServingRatios(NamedTuple):
    """What engines on an accelerator were measured to take, over what is expected: `strata serve calibrate`.

    step: a decode step less what its cached tokens take; sequence: what each sequence adds to it, as a share of a
    step with one; context: cached tokens; prompt: tokens of prompts. request_s: what every request takes besides,
    to its first token, of nobody's time: the way through a gateway and a front end, however long it is.
    """

    step: float = 1.0
    sequence: float = 0.0
    context: float = 1.0
    prompt: float = 1.0
    request_s: float = 0.0


class Derating(NamedTuple):
    """What is reached of what is published: memory left free, shares of peaks until nodes are measured.

    None: what the kernels of each node's accelerator reach (`simulate.kernel_rates`). ratios: by accelerator, what
    was measured over either. sequences: that are decoded together at most, however much memory there is.
    """

    memory_headroom: float = MEMORY_HEADROOM
    flops_efficiency: float | None = None
    bandwidth_efficiency: float | None = None
    ratios: Mapping[str, ServingRatios] = MappingProxyType({})
    sequences: int = MOST_SEQUENCES


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked: `batch` sequences a decode step, each with so many tokens read and written (means).

    ttft_goal_s, tpot_goal_s: most time to the first token and per token after it; infinite for none.
    rate_per_s: requests arriving, 0 where it is not known.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    ttft_goal_s: float = math.inf
    tpot_goal_s: float = math.inf
    rate_per_s: float = 0.0

    @property
    def context(self) -> float:
        """Mean tokens a sequence has cached while it decodes."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def kv_tokens(self) -> int:
        """Tokens reserved for a sequence: all it may cache at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class ServingJob:
    """A model to be served. The efficiencies are shares of published peaks, used until nodes are measured; None:
    what kernels reach.

    weights, kv: the precisions that `model`'s bytes are of. strategy, routing: what plans and routes where a
    command does not say; see `serving.planning` and `serving.routing`. longest_tokens: of a request, 0 where it is
    not stated; plans are made for the means, so only launch scripts read it.
    """

    name: str
    model: ModelInfo
    demand: Demand
    memory_headroom: float = MEMORY_HEADROOM
    flops_efficiency: float | None = None
    bandwidth_efficiency: float | None = None
    weights: Weights = "bf16"
    kv: Kv = "bf16"
    strategy: Literal["auto", "dp", "greedy"] = "auto"
    routing: Literal["auto", "dp", "rr"] = "auto"
    longest_tokens: int = field(default=0, metadata={UNHASHED: True})
    calibration: Mapping[str, ServingRatios] = field(default_factory=dict)
    sequences: int = MOST_SEQUENCES
    step_tokens: int = STEP_TOKENS

    @property
    def derating(self) -> Derating:
        """Memory left free, the efficiencies and what was measured over them, together."""
        efficiencies = self.flops_efficiency, self.bandwidth_efficiency
        return Derating(self.memory_headroom, *efficiencies, self.calibration, self.sequences)

    def trust_of(self, accelerator: str, figures: Trust) -> Trust:
        """Return how good times on an accelerator are, whose own figures are to be trusted so much."""
        return Trust.CALIBRATED if accelerator in self.calibration else worst(self.efficiencies_trust, figures)

    @property
    def efficiencies_trust(self) -> Trust:
        """How good the efficiencies are: assumed where none are stated, as no serving was measured for them."""
        is_default = self.flops_efficiency is None or self.bandwidth_efficiency is None
        return Trust.ASSUMED if is_default else Trust.ANALYTIC

    @property
    def context_limit(self) -> int:
        """Most tokens of a request, as the job or else its model says; 0 where neither does."""
        return self.longest_tokens or self.model.context_limit

    def stored(self, *, weights: Weights | None = None, kv: Kv | None = None) -> ServingJob:
        """Return the job with its blocks' weights or its KV cache in other precisions.

        Embedding and head stay as they are: quantised checkpoints keep them in 16 bits. FP8 weights are multiplied
        in FP8 where a node can, other weights as 16-bit numbers.
        """
        weights, kv = weights or self.weights, kv or self.kv
        weight_ratio = ELEMENT_BYTES[weights] / ELEMENT_BYTES[self.weights]
        model = replace(
            self.model,
            weight_bytes=self.model.weight_bytes * weight_ratio,
            routed_bytes=self.model.routed_bytes * weight_ratio,
            kv_bytes_per_token=self.model.kv_bytes_per_token * (ELEMENT_BYTES[kv] / ELEMENT_BYTES[self.kv]),
            weights=weights,
        )
        return replace(self, model=model, weights=weights, kv=kv)
