"""Which pipeline has read the beginning of a prompt before, by hashes of its blocks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.serving.planning.allocation import Pipeline

BLOCK_TOKENS: Final = 16
"""Tokens of a block, as engines keep their KV memory (vLLM's default)."""


def block_hashes(tokens: Sequence[int], most: int = 512) -> tuple[int, ...]:
    """Return the hashes of a prompt's leading full blocks, each of all tokens up to its end; `most` at most.

    Python hashes tuples of integers alike in every process. Two prompts of one hash would only be a bad guess.
    """
    hashes, last = [], 0
    for start in range(0, min(len(tokens) // BLOCK_TOKENS, most) * BLOCK_TOKENS, BLOCK_TOKENS):
        last = hash((last, *tokens[start : start + BLOCK_TOKENS]))
        hashes.append(last)
    return tuple(hashes)


def text_hashes(text: bytes, *, token_bytes: int, most: int = 512) -> tuple[int, ...]:
    """Return the same of a prompt that is no tokens yet, a block as long as they are taken to be."""
    hashes, last, size = [], 0, BLOCK_TOKENS * token_bytes
    for start in range(0, min(len(text) // size, most) * size, size):
        last = zlib.crc32(text[start : start + size], last)
        hashes.append(last)
    return tuple(hashes)


class PrefixIndex:
    """Block hash to the set of pipelines that read it, as bits of an integer.

    Two generations: what is touched is in the young one; every `ttl_s`, or when that has `limit` blocks, the
    old one is dropped and the young one grows old. So a block is forgotten between one and two `ttl_s` after its
    last use, at most 2 x `limit` are kept, and there is no clock on any of them.
    """

    def __init__(self, *, ttl_s: float = 300.0, limit: int = 100_000) -> None:
        self.ttl_s, self.limit = ttl_s, limit
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._turned_s: float | None = None
        self._bits: dict[Pipeline, int] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def arrange(self, pipelines: Sequence[Pipeline]) -> None:
        """Keep what is known of pipelines that stay, at their new places; forget the others."""
        kept = {pipeline: self._bits[pipeline] for pipeline in pipelines if pipeline in self._bits}
        if len(kept) < len(self._bits):
            alive = sum(1 << bit for bit in kept.values())
            for blocks in (self._young, self._old):
                for block in list(blocks):
                    blocks[block] &= alive
                    if not blocks[block]:
                        del blocks[block]
        used, bit = set(kept.values()), 0
        for pipeline in pipelines:
            if pipeline not in kept:
                while bit in used:
                    bit += 1
                kept[pipeline] = bit
                used.add(bit)
        self._bits, self._order = kept, [kept[pipeline] for pipeline in pipelines]

    def cached_blocks(self, blocks: Sequence[int], now_s: float) -> Floats:
        """Return how many leading blocks each pipeline has [P]."""
        self._turn(now_s)
        lengths = np.zeros(len(self._order))
        alive, young, old = -1, self._young, self._old
        for length, block in enumerate(blocks):
            have = alive & (young.get(block, 0) | old.get(block, 0))
            if have != alive and length:
                self._write(lengths, alive & ~have, length)
            alive = have
            if not alive:
                return lengths
        if blocks:
            self._write(lengths, alive, len(blocks))
        return lengths

    def touch(self, blocks: Sequence[int], pipeline: int, now_s: float) -> None:
        """Note that a pipeline reads these blocks."""
        self._turn(now_s)
        young, bit = self._young, 1 << self._order[pipeline]
        for block in blocks:
            young[block] = young.get(block, 0) | bit
        if len(young) > self.limit:
            self._turn(now_s, is_full=True)

    def _write(self, lengths: Floats, bits: int, length: int) -> None:
        for p, bit in enumerate(self._order):
            if bits >> bit & 1:
                lengths[p] = length

    def _turn(self, now_s: float, *, is_full: bool = False) -> None:
        if self._turned_s is None:
            self._turned_s = now_s
        idle_s = now_s - self._turned_s
        if is_full or idle_s >= self.ttl_s:
            self._old = {} if idle_s >= 2 * self.ttl_s else self._young
            self._young, self._turned_s = {}, now_s
