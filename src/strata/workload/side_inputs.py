"""What flows beside the hidden state of small Gemma models: embeddings of each layer, alternating updates.

Sources: Gemma 3n and Gemma 4 (E2B, E4B) as transformers runs them (gemma3n, gemma4); AltUp: arXiv 2301.13310;
LAuReL: arXiv 2411.07501.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strata.workload.config_keys import ConfigKeys
from strata.workload.kernels import MatrixProduct


@dataclass(frozen=True, slots=True)
class LayerEmbeddings:
    """Embeddings of each layer: a second table of `rows` tokens gives `size` numbers to each of `layers` blocks.

    A projection of the token's embedding is added to them; a block takes its own by a gate of its hidden state.
    """

    rows: int
    size: int
    layers: int
    norms: ClassVar[int] = 1
    """Of a hidden state, in a block."""

    @property
    def width(self) -> int:
        """Numbers of a token for all blocks together."""
        return self.size * self.layers

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: the gate, and back to the hidden state."""
        return MatrixProduct(hidden_size, self.size, "none"), MatrixProduct(self.size, hidden_size, "none")

    def kept_elements(self, hidden_size: int) -> int:
        """Numbers that a token leaves in a block: what the gate reads, the gate twice, what it multiplies, the
        product, and what the norm reads.
        """
        return 2 * hidden_size + 4 * self.size

    def streamed_elements(self, hidden_size: int) -> float:
        """Numbers that pass through memory in a block: of the gate, of a norm and a residual sum."""
        return 5.0 * hidden_size + 4.0 * self.size


@dataclass(frozen=True, slots=True)
class AltUp:
    """Alternating updates: a token has `num_inputs` hidden states; a block works on the first and corrects all.

    laurel_rank: of a product of low rank beside attention (LAuReL).
    """

    num_inputs: int
    laurel_rank: int
    norms: ClassVar[int] = 3
    """As wide as a hidden state, in a block: of the router, of LAuReL, and a scale."""

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: router, prediction, correction; LAuReL's two."""
        n, rank = self.num_inputs, self.laurel_rank
        return (
            MatrixProduct(hidden_size, n, "none"),
            MatrixProduct(n, n * n, "none"),
            MatrixProduct(n, n, "none"),
            MatrixProduct(hidden_size, rank, "none"),
            MatrixProduct(rank, hidden_size, "none"),
        )

    def projections(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return what makes the further hidden states of the embedding, and what folds them before the head."""
        more = self.num_inputs - 1
        return (MatrixProduct(hidden_size, hidden_size, "outputs", more, more),) if more else ()

    def mixing_flops(self, hidden_size: int) -> float:
        """FLOPs of a token that are none of weights read once: the sum over all hidden states that predicts each,
        and the router again, before the correction.
        """
        return 2.0 * hidden_size * self.num_inputs * (self.num_inputs + 1)

    def kept_elements(self, hidden_size: int) -> int:
        """Numbers that a token leaves in a block: all hidden states as they came and as predicted, what the router
        read twice, what was corrected, and LAuReL's latent and output.
        """
        return (2 * self.num_inputs + 4) * hidden_size + self.laurel_rank

    def streamed_elements(self, hidden_size: int) -> float:
        """Numbers that pass through memory in a block: all hidden states read and written to be predicted, to be
        corrected, and for the embedding of the layer; norms and a sum.
        """
        return (6.0 * self.num_inputs + 9.0) * hidden_size


def layer_embeddings(keys: ConfigKeys, layers: int) -> LayerEmbeddings | None:
    """Return the embeddings of each layer of a Gemma, None where there are none. Notes faults in `keys`."""
    size = keys.size("hidden_size_per_layer_input", least=0)
    return LayerEmbeddings(keys.size("vocab_size_per_layer_input"), size, layers) if size else None


def alternating_updates(keys: ConfigKeys) -> AltUp:
    """Return what Gemma 3n has of them. Notes faults in `keys`."""
    return AltUp(keys.size("altup_num_inputs", most=1_000), keys.size("laurel_rank"))
