"""What is known of a request when it is scheduled."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestSignal:
    """One request. Seed 003's `source_node`, `target_node` and `layer_range` are its route: see `Dispatch`.

    max_tokens: most that it may generate; what is reserved. priority: larger goes first, and grows with waiting.
    blocks: hashes of the prompt's leading blocks, each of all tokens up to its end (`routing/prefix.py`).
    generated: tokens it already has, of an interrupted attempt; they are part of the prompt of the next.
    waited_s: since it came, by which `ttft_goal_s` is less than it was.
    """

    request_id: str
    prompt_tokens: int = 1
    max_tokens: int = 1
    priority: int = 0
    blocks: tuple[int, ...] = ()
    ttft_goal_s: float = math.inf
    tpot_goal_s: float = math.inf
    generated: int = 0
    waited_s: float = 0.0

    @property
    def kv_tokens(self) -> int:
        """Tokens it may keep in KV memory on every node of its route."""
        return self.prompt_tokens + self.max_tokens

    @property
    def steps_left(self) -> int:
        """Decode steps at most: its first token comes out of reading the prompt."""
        return max(self.max_tokens - self.generated - 1, 0)

    @property
    def prefill_tokens(self) -> int:
        """Tokens the next attempt has to read, none of them cached."""
        return self.prompt_tokens + self.generated
