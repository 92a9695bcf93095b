"""The keys of ASTRA-sim's system.json that the closed forms read, and the collectives it knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GROUP_ENDPOINT_DELAY_NS: Final = 10
"""Communicator groups smaller than the world ignore endpoint-delay and take this."""


class Collective(StrEnum):
    """The collectives ASTRA-sim implements."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


class Algorithm(StrEnum):
    """Its native algorithms that have a closed form here (doubleBinaryTree has none)."""

    RING = "ring"
    DIRECT = "direct"
    HALVING_DOUBLING = "halvingDoubling"


@dataclass(frozen=True, slots=True)
class System:
    """What a system.json says; the defaults are those of the reference runs.

    splits: preferred-dataset-splits, chunks of one collective; active_chunks: active-chunks-per-dimension;
    queues: num-queues-per-dim; is_bandwidth_aware: collective-optimization localBWAware, else baseline.
    """

    endpoint_delay_ns: int = 10
    local_memory_gb_per_s: float = 1600.0
    splits: int = 1
    active_chunks: int = 1
    queues: int = 1
    is_bandwidth_aware: bool = True

    @property
    def chunks_per_queue(self) -> int:
        """How many chunks a queue serves at a time."""
        return math.ceil(self.active_chunks / self.queues)

    @property
    def chunks_at_once(self) -> int:
        """How many chunks of an all_reduce are on one dimension at a time: it uses half of the queues."""
        return self.chunks_per_queue * (max(1, self.queues // 2) if self.is_bandwidth_aware else self.queues)

    def reduction_ns(self, size_bytes: int) -> int:
        """Return what adding one received message costs: two reads and a write."""
        return 3 * int(size_bytes / self.local_memory_gb_per_s)
