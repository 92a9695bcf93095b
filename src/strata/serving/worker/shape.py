"""The small transformer that workers host, as far as it is known without torch: its shape, sizes and digest.

A byte a token: 256 is the start of a text, 257 its end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from strata.errors import UsageError
from strata.workload.model import ModelSpec

BOS: Final = 256
EOS: Final = 257
VOCAB_SIZE: Final = 258
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
            raise UsageError(f"a hidden size of {self.hidden_size} cannot be cut into {self.num_heads} heads")

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

    def weight_bytes(self, first: int, end: int) -> int:
        """Return the bytes of layers [first, end), the embedding and the head with those they go with."""
        params = self.spec.params_per_layer
        total = sum(params[first + 1 : end + 1])
        total += params[0] if first == 0 else 0
        total += params[-1] if end == self.num_layers else 0
        return total * ELEMENT_BYTES

    def kv_bytes_per_token(self, first: int, end: int) -> int:
        """Return the bytes layers [first, end) keep for one token."""
        return 2 * (end - first) * self.hidden_size * ELEMENT_BYTES
