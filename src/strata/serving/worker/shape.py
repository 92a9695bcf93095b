"""The small transformer that workers host, as far as it is known without torch: its shape, sizes and digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from strata.errors import UsageError
from strata.serving.hosted import HostedModel
from strata.serving.tokens import VOCAB_SIZE
from strata.workload.inference import ModelInfo
from strata.workload.model import ModelSpec

ELEMENT_BYTES: Final = 4
"""float32, weights and keys and values alike."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the model is; its weights follow from it, layer by layer, however it is cut.

    Raises UsageError where there is no such model.
    """

    num_layers: int = 12
    hidden_size: int = 128
    num_heads: int = 4
    max_positions: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.num_layers, self.hidden_size, self.num_heads, self.max_positions) < 1:
            raise UsageError("a model has at least one layer, one head, one position and a hidden size")
        if self.hidden_size % self.num_heads:
            raise UsageError(f"a hidden size of {self.hidden_size} is not divisible by {self.num_heads} heads")

    @property
    def fingerprint(self) -> str:
        """Digest of shape and seed: equal for equal weights."""
        parts = (self.num_layers, self.hidden_size, self.num_heads, self.max_positions, VOCAB_SIZE, self.seed)
        return hashlib.sha256(f"tiny {parts}".encode()).hexdigest()[:16]

    @property
    def spec(self) -> ModelSpec:
        """The model as planners see it."""
        return ModelSpec(
            name="tiny",
            model_type="tiny",
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            vocab_size=VOCAB_SIZE,
            intermediate_size=4 * self.hidden_size,
            embedding_size=self.hidden_size,
            gated_mlp=False,
            num_positions=self.max_positions,
            max_sequence_length=self.max_positions,
        )

    @property
    def hosted(self) -> HostedModel:
        """The model as the gateway and workers know it."""
        info = ModelInfo.of(self.spec, weight_bytes_per_param=ELEMENT_BYTES, kv_element_bytes=ELEMENT_BYTES)
        return HostedModel(
            info=replace(info, hidden_bytes=float(ELEMENT_BYTES * self.hidden_size)),
            vocab_size=VOCAB_SIZE,
            max_positions=self.max_positions,
            fingerprint=self.fingerprint,
        )
