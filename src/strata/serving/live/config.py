"""The scheduler's settings, under seed 003's names and with its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How the scheduler decides.

    rebalance_threshold: load (booked share of slots or KV memory) above which a re-plan is considered.
    heartbeat_timeout, request_arrival_horizon: seconds (the seed's names have no unit): silence after which a
    node is out, and the window over which arrivals are counted and foreseen.
    heartbeat_interval_s: how often nodes are asked for a heartbeat. queue_limit: requests that wait at most.
    max_attempts: how often a request is sent before it is given up; attempts that a move ended do not count.
    share_stages: whether nodes left idle may serve a stage beside another node (`planning/shared_stages.py`).
    reload_bytes_per_s: how fast a node reads new weights, for the cost of moving layers (assumed: one NVMe disk).
    """

    allocation_strategy: Literal["auto", "dp", "greedy"] = "dp"
    routing_strategy: Literal["auto", "dp", "rr"] = "rr"
    rebalance_threshold: float = 0.8
    heartbeat_timeout: float = 60.0
    request_arrival_horizon: float = 600.0
    heartbeat_interval_s: float = 5.0
    queue_limit: int = 10_000
    max_attempts: int = 5
    share_stages: bool = False
    reload_bytes_per_s: float = 2e9
