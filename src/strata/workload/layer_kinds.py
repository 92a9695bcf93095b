"""What the kind of a layer says: whether it has attention, linear attention, an MLP, experts, keys of its own."""

from __future__ import annotations

from typing import Final

LONE_KINDS: Final = ("attention", "linear", "mlp-dense", "mlp-moe")
"""Of blocks that are attention or an MLP alone."""


def is_sparse(kind: str) -> bool:
    """Return whether a kind of layer has experts."""
    return kind.endswith("moe")


def is_linear(kind: str) -> bool:
    """Return whether a kind of layer has linear attention."""
    return kind.startswith("linear")


def shares_kv(kind: str) -> bool:
    """Return whether a kind of block attends to the keys and values of an earlier one."""
    return "shared-" in kind


def has_attention(kind: str) -> bool:
    """Return whether a kind of block attends or has linear attention: all do but those that are an MLP alone."""
    return not kind.startswith("mlp-")


def has_mlp(kind: str) -> bool:
    """Return whether a kind of block has an MLP or experts: all do but those that are attention alone."""
    return kind not in ("attention", "linear")
