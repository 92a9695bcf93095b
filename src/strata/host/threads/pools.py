"""The nine pools of threads of a training job and the four layers they belong to (seed 004, pages 10 and 12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Pool = Literal[
    "kernel-launch",
    "accelerator-monitor",
    "comms-monitor",
    "openmp",
    "transforms",
    "loading",
    "checkpoint",
    "rpc",
    "routing",
]
LayerName = Literal["critical", "pipeline", "support", "rest"]


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool: what it is, how much its latency matters (5 most), its layer, and labels that name it."""

    text: str
    importance: int
    layer: LayerName
    labels: tuple[str, ...]


POOLS: Final[Mapping[Pool, PoolFacts]] = {
    "kernel-launch": PoolFacts("launches kernels", 5, "critical", ("train", "launch")),
    "accelerator-monitor": PoolFacts("watches accelerators", 4, "critical", ("watch", "accel")),
    "comms-monitor": PoolFacts("watches collectives", 4, "critical", ("comms", "nccl")),
    # "May be on the critical path" (page 10), but tens run at once: in front they would crowd out the launch.
    "openmp": PoolFacts("computes in parallel regions", 3, "pipeline", ("omp", "compute")),
    "transforms": PoolFacts("transforms data", 2, "pipeline", ("transform", "decode")),
    "loading": PoolFacts("loads data", 2, "pipeline", ("load", "data")),
    "checkpoint": PoolFacts("writes checkpoints", 1, "support", ("ckpt", "save")),
    "rpc": PoolFacts("answers remote calls", 1, "support", ("rpc", "serve")),
    "routing": PoolFacts("routes requests", 1, "support", ("route", "proxy")),
}

LAYERS: Final[Mapping[LayerName, str]] = {
    "critical": "Latency critical threads and watchers of communication: few preemptions, warm caches, fast CPUs.",
    "pipeline": "The data pipeline: a number of CPUs that follows its load, bounded memory bandwidth.",
    "support": "Supporting frameworks: a fixed number of CPUs, enough not to stall.",
    "rest": "Everything else: what is left.",
}
