"""One serving node as the scheduler sees it: what it is, and how busy it was when it was looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.decision import Trust
from strata.serving.request import RequestSignal
from strata.simulate.kernel_rates import UNKNOWN_CARD, InferenceShares


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that can hold a range of layers; all devices of it work as one.

    compute_capability: dense FP16 rate of all its devices together [FLOP/s], fp8_capability the FP8 rate, 0 where
    there is none. num_devices: how many, which share every layer; intra_bandwidth_bytes_per_s: of one to the
    others, one direction, intra_latency_s one-way. fixed_bytes: of memory_bytes what contexts and buffers take.
    url: where it listens; empty in simulations. hop_s: measured one-way latency to other nodes [s];
    bandwidth_bytes_per_s: what a message to them sees. Neither need name all nodes (`observe.py`).
    shares: of its rates what kernels reach. accelerator: the name of its devices, where a fleet says it.
    step_sequences: most that it decodes in one step; those beyond have a step of their own.
    model: of a whole pipeline behind one address (vLLM, SGLang) the name it serves; such a node is never cut.
    running, slots, kv_tokens_used, kv_tokens, decode_s, prefill_s_per_token: as of the snapshot, 0 where it
    serves nothing.
    """

    node_id: str
    compute_capability: float
    memory_bytes: float = 0.0
    memory_bandwidth_bytes_per_s: float = 0.0
    region: str = ""
    url: str = ""
    hop_s: Mapping[str, float] = field(default_factory=dict)
    model: str = ""
    trust: Trust = Trust.ASSUMED
    running: int = 0
    slots: int = 0
    kv_tokens_used: int = 0
    kv_tokens: int = 0
    decode_s: float = 0.0
    prefill_s_per_token: float = 0.0
    bandwidth_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    fp8_capability: float = 0.0
    fixed_bytes: float = 0.0
    num_devices: int = 1
    intra_bandwidth_bytes_per_s: float = math.inf
    intra_latency_s: float = 0.0
    shares: InferenceShares = UNKNOWN_CARD
    accelerator: str = ""
    step_sequences: float = math.inf

    def usable_bytes(self, headroom: float) -> float:
        """Return what is there for weights and KV memory, with a share of all memory left free, as in training."""
        return max(0.0, self.memory_bytes * (1 - headroom) - self.fixed_bytes)

    def get_current_load(self) -> float:
        """Return the busier of slots and KV memory, 0 to 1; 1 for a node that serves nothing."""
        if not self.slots or not self.kv_tokens:
            return 1.0
        return max(self.running / self.slots, self.kv_tokens_used / self.kv_tokens)

    def can_handle_request(self, request: RequestSignal) -> bool:
        """Return whether a slot and the KV memory of the whole request are free."""
        return self.running < self.slots and self.kv_tokens_used + request.kv_tokens <= self.kv_tokens

    def get_latency_estimate(self, request: RequestSignal) -> float:
        """Return this node's own part of the request's time, the queue left out [s]."""
        return request.prompt_tokens * self.prefill_s_per_token + request.max_tokens * self.decode_s
