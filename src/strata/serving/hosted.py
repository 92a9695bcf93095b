"""What the gateway and its workers know of the model they serve, without torch: its sizes and its digest."""

from __future__ import annotations

from dataclasses import dataclass

from strata.workload.inference import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedModel:
    """A model whose layers workers hold. info: as planners see it, its bytes those of the worker's own precision.

    max_positions: tokens that a sequence may have, prompt and answer together. vocab_size: every token is below.
    fingerprint: equal for equal weights; a worker whose model has another one must not join.
    """

    info: ModelInfo
    vocab_size: int
    max_positions: int
    fingerprint: str

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        return self.info.model_name

    @property
    def num_layers(self) -> int:
        """Blocks, without embedding and head."""
        return self.info.num_layers

    def layer_numbers(self, first: int, end: int) -> range:
        """Return what goes with blocks [first, end), as `workload.tiny` counts: embedding 0, blocks, head."""
        return range(first + (first > 0), end + 1 + (end == self.num_layers))

    def weight_bytes(self, first: int, end: int) -> int:
        """Return the bytes of blocks [first, end), of embedding and head too where they go with them."""
        before = self.info.weight_bytes_before
        return round(float(before[end] - before[first]) + self.info.ends_bytes(first, end))

    def kv_bytes(self, first: int, end: int, *, tokens: int) -> int:
        """Return the bytes that layers [first, end) keep for so many tokens; a window keeps its own at most."""
        return round(float(self.info.kv_bytes(tokens)[first:end].sum()))
