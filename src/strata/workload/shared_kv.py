"""Blocks that attend to the keys and values of an earlier block, and have none of their own (Gemma 3n, Gemma 4).

Sources: `kv_sharing_modes` and the modeling classes of Hugging Face transformers (gemma3n, gemma4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strata.workload.config_keys import ConfigKeys

SHARES_KV: Final = ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
"""Model types whose configs say how many blocks share keys and values, and how wide embeddings of layers are."""


@dataclass(frozen=True, slots=True)
class SharedKv:
    """The blocks from `first` on take keys and values from the last block before it of their type.

    owners: the blocks that they are taken from, each with the last one that takes them. mlp_factor: how many times
    as wide as others' the MLP of a block that takes them is.
    """

    first: int
    owners: tuple[tuple[int, int], ...]
    mlp_factor: int = 1

    def crossing(self, block: int) -> list[int]:
        """Return the blocks up to `block`, it included, whose keys and values later ones take."""
        return [owner for owner, last in self.owners if owner <= block < last]


def shared_kv(keys: ConfigKeys, windows: tuple[int, ...], layers: int) -> SharedKv | None:
    """Return which blocks share, None where none does. Their type is whether they slide. Notes faults."""
    count = keys.size("num_kv_shared_layers", least=0)
    if not count:
        return None
    first = layers - count
    slides = [bool(window) for window in windows] or [False] * layers
    last = {slides[block]: block for block in range(first)}
    if not set(slides) <= set(last):
        kinds = "sliding and of full attention" if len(set(slides)) > 1 else "with keys and values of its own"
        keys.fault("num_kv_shared_layers", f"{count} of {layers} layers leave no block {kinds} before them")
        return None
    factor = 2 if keys.flag("use_double_wide_mlp", default=False) else 1
    takers = {last[does]: block for block, does in enumerate(slides) if block >= first}
    return SharedKv(first, tuple(sorted(takers.items())), factor)
