"""The nine pools of threads of a training job, the four layers they belong to, and the names that tell of them.

References
----------
Pools and layers: seed 004, pages 10 and 12. Names: pytorch (c10::setThreadName, pt_* by
torch.multiprocessing._set_thread_name), NCCL (ncclSetThreadName, with NCCL_SET_THREAD_NAME=1), the CUDA driver
(cuda-EvtHandlr), torch_npu (acl_thread hands operators to the device, release_thread frees behind it), grpc,
folly, ray. Names are cut to 15 bytes.
"""

from __future__ import annotations

import re
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


_Rule = tuple[Pool, re.Pattern[str], float]


def _rule(pool: Pool, pattern: str, weight: float) -> _Rule:
    return pool, re.compile(pattern, re.IGNORECASE), weight


_WITHIN: Final = r"(?:.*[^a-z])?"
"""Before words that people choose themselves: `late_loader`, `my-ckpt`."""
THREADS: Final[tuple[_Rule, ...]] = (
    _rule("kernel-launch", r"pt_autograd_\d+$", 0.95),
    _rule("kernel-launch", r"acl_thread|release_thread", 0.9),
    _rule("kernel-launch", r"trainer(_main)?$|train_main|megatron", 0.8),
    _rule("accelerator-monitor", r"cuda-EvtHandlr|cuda0|nvidia-smi|nv-hostengine|dcgm|nvidia-persiste", 0.9),
    _rule("accelerator-monitor", r"npu-smi|rocm-smi|amd-smi|dynolog|hy-smi|mthreads-gmi|cnmon", 0.9),
    _rule("comms-monitor", r"pt_(nccl|hccl|gloo|mccl|mpi|rccl)|pt_watchdog", 0.95),
    _rule("comms-monitor", r"[NRH]CCL[ _]|hccl|gloo_", 0.95),
    _rule("openmp", r"(lib)?[gik]?omp([^a-z]|$)|OpenBLAS|mkl_|tbb|pt_thread_pool", 0.8),
    _rule("transforms", rf"{_WITHIN}(transform|decod|augment|dali|tokeniz|preproc|nvjpeg|resiz)", 0.8),
    _rule("loading", r"pt_data_(worker|pin)", 0.95),
    _rule("loading", rf"{_WITHIN}(data_?load|loader|prefetch|tf_data|QueueFeederThre|fetcher|reader)", 0.8),
    _rule("checkpoint", rf"{_WITHIN}(ckpt|checkpoint|orbax|async_save|dcp_)", 0.85),
    _rule("rpc", r"pt_tcpstore|pt_elastic|pt_workerserver|tensorpipe", 0.85),
    _rule("rpc", r"grpc|thrift|b?rpc|raylet|ray::|event_engine|resolver-exec|timer_manager|IOThreadPool", 0.8),
    _rule("rpc", r"lifeguard|CPUThreadPool|zmq|worker\.io|gcs_server", 0.6),
    _rule("routing", r"rout(er|ing)|proxy|envoy|haproxy|nginx|wrk:worker|traefik|gateway", 0.8),
)
"""Pool, what the thread's name begins with, and how much that says (1: everything)."""

CGROUPS: Final[tuple[_Rule, ...]] = (
    _rule("accelerator-monitor", r"dcgm|telemetry|gpu-?monitor|device-plugin", 0.6),
    _rule("checkpoint", r"checkpoint|ckpt", 0.6),
    _rule("loading", r"data-?load|data-?proc|dpp", 0.5),
    _rule("routing", r"ingress|router|envoy", 0.5),
)
"""Pool, what a cgroup's path contains, and how much that says."""


def of_thread(name: str) -> tuple[Pool, float] | None:
    """Return the pool a thread's name speaks for, and how much."""
    return next(((pool, weight) for pool, pattern, weight in THREADS if pattern.match(name)), None)


def of_cgroup(path: str) -> tuple[Pool, float] | None:
    """Return the pool a cgroup's path speaks for, and how much."""
    return next(((pool, weight) for pool, pattern, weight in CGROUPS if pattern.search(path)), None)


def stem(name: str) -> str:
    """Return a name without its number: what the threads of one pool share."""
    return re.sub(r"[\d\s_:/#-]+$", "", name) or name
