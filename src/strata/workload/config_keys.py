"""The keys of a model's config, under their several names, with faults collected rather than raised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from strata.errors import Fault

MAX_LAYERS: Final = 10_000

_MAX_SIZE: Final = 10**9

_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden_size": ("n_embd", "d_model", "n_embed"),
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("num_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "num_attention_groups"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "moe_top_k", "top_k_experts", "num_experts_per_token"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "first_k_dense_replace": ("num_dense_layers",),
    "max_position_embeddings": ("n_positions",),
}

GUESS: Final = "sizes are never guessed"


class ConfigKeys:
    """The keys of one config, read with their aliases; faults are collected, not raised."""

    def __init__(self, data: Mapping[str, Any], path: str, where: str) -> None:
        self.data, self.path, self.where = data, path, where
        self.faults: list[Fault] = []

    def fault(self, key: str, message: str) -> None:
        """Note a fault at a key of this config."""
        self.faults.append(Fault(self.path, message, where=f"{self.where}.{key}" if self.where else key))

    def given(self, key: str) -> str | None:
        """Return the name under which a key is present and not null."""
        return next((name for name in (key, *_ALIASES.get(key, ())) if self.data.get(name) is not None), None)

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = _MAX_SIZE) -> int:
        """Return a whole number; without it the default, and without a default a fault (and 1)."""
        name = self.given(key)
        if name is None:
            if default is not None:
                return default
            aliases = _ALIASES.get(key, ())
            also = f" (also read as {', '.join(aliases)})" if aliases else ""
            self.fault(key, f"required key is missing{also}; {GUESS}")
            return 1
        value = self.data[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fault(name, f"{value!r} is not a whole number from {least} to {most}")
            return max(1, least)
        return value

    def same(self, *keys: str) -> None:
        """Take a list of one number for each layer as that number, which `size` then reads."""
        for key in keys:
            listed = self.data.get(key)
            if isinstance(listed, list) and listed:
                if any(value != listed[0] for value in listed):
                    self.fault(key, "says other numbers for other layers, which is not supported")
                self.data = {**self.data, key: listed[0]}

    def each_layer(self, key: str, layers: int, known: Collection[str]) -> list[str]:
        """Return what a list says of each layer, nothing where it is not there or says anything unknown."""
        listed = self.data.get(key) or []
        fits = isinstance(listed, list) and len(listed) in (0, layers) and set(map(str, listed)) <= set(known)
        if not fits:
            self.fault(key, f"must be a list of {' or '.join(known)} for each of {layers} layers")
            return []
        return list(listed)

    def flag(self, key: str, default: bool | None) -> bool:
        """Return a boolean; without it the default, and without a default a fault (and False)."""
        value = self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.fault(key, "required key is missing" if value is None else f"{value!r} is not true or false")
            return False
        return value
