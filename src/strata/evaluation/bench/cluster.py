"""How fast pods and gangs are placed, and how well beside other policies."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

import numpy as np

from strata.cluster.api.client import connect
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.scheduling.index import Index
from strata.evaluation.bench.real_cluster import measure_real
from strata.evaluation.placement.loopback import round_trips
from strata.evaluation.placement.quality import policies, replay
from strata.evaluation.placement.rate import pace
from strata.evaluation.placement.synthetic import synthetic_cluster, synthetic_trace
from strata.progress import Progress, silent
from strata.tables import Shown, rows

SIZES: Final = (500, 1000, 5000)
BUSY: Final = 0.5
HTTP_QUESTIONS: Final = 300
TRACE_NODES: Final = 48
TRACE_GANGS: Final = 300
RATES_PER_S: Final = (0.05, 0.1)
"""Gangs a second on the trace's nodes: about half full, and more than they hold."""
TRACES: Final = 5
PEERS: Final = {
    "extender_full_nodes_5000_ms": 2200.0,
    "extender_pods_per_s_at_500": 111.0,
    "trust": "measured",
}
"""5000 full nodes parsed in an HTTP extender, by us before; kube-scheduler-wasm-extension#63 on its extender."""


def measure_on(kubeconfig: str, *, nodes: int, pods: int, seed: int) -> dict[str, Any]:
    """Return what a real cluster that runs strata did with gangs, as `real`."""
    with closing(connect(kubeconfig=kubeconfig)) as api:
        return {"real": measure_real(api, nodes=nodes, pods=pods, seed=seed)}


def measure(*, decisions: int, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Time `decisions` decisions on clusters of every size, then replay traces of gangs under every policy.

    Without an HTTP server the figures over HTTP are left out.
    """
    profiles = bundled_profiles()
    has_server = is_server_installed()
    extender: list[dict[str, Any]] = []
    gangs_per_s: dict[str, float] = {}
    runs: dict[str, dict[str, list[Any]]] = {f"{rate:g}": {} for rate in RATES_PER_S}
    with progress("cluster", total=len(SIZES) + TRACES * len(RATES_PER_S)) as advance:
        for done, nodes in enumerate(SIZES):
            rng = np.random.default_rng(seed)
            index = Index.of(synthetic_cluster(nodes, rng, busy=BUSY))
            claims = [gang.claim for gang in synthetic_trace(decisions, rng, rate_per_s=1.0)]
            gc.collect()
            gc.freeze()  # as the extender does with what it has listed
            times = pace(index, claims, profiles, cpu=time.process_time, wall=time.perf_counter)
            row = {"nodes": nodes, **_quantiles("", times.extender_cpu_s)}
            extender.append({**row, **_quantiles("wall_", times.extender_wall_s), "trust": "measured"})
            gangs_per_s[str(nodes)] = len(claims) / sum(times.gang_s)
            if has_server:
                trips = round_trips(index, claims[:HTTP_QUESTIONS], profiles, clock=time.perf_counter)
                extender[-1] |= _quantiles("http_", trips.names_s)
                full = {"full_bytes": trips.full_bytes, "full_ms": 1e3 * median(trips.full_decide_s)}
                extender[-1] |= {**full, "http_full_ms": 1e3 * median(trips.full_s)}
            gc.unfreeze()
            advance(done + 1)
        done = len(SIZES)
        for rate in RATES_PER_S:
            for number in range(TRACES):
                rng = np.random.default_rng([seed, number])
                empty = Index.of(synthetic_cluster(TRACE_NODES, rng))
                trace = synthetic_trace(TRACE_GANGS, rng, rate_per_s=rate)
                for name, policy in policies().items():
                    quality = replay(empty, trace, profiles, policy=policy)
                    runs[f"{rate:g}"].setdefault(name, []).append(quality)
                done += 1
                advance(done)
    by_rate = {rate: {name: _mean(some) for name, some in of.items()} for rate, of in runs.items()}
    return {
        "extender": extender,
        "gangs_per_s": gangs_per_s,
        "quality": by_rate[f"{RATES_PER_S[0]:g}"],
        "quality_overloaded": by_rate[f"{RATES_PER_S[1]:g}"],
        "peers": PEERS,
    }


def is_server_installed() -> bool:
    """Return whether the extender's HTTP server can run here."""
    return all(map(find_spec, ("starlette", "uvicorn")))


_REAL: Final = {
    **dict.fromkeys(("placed_per_s", "gangs_per_s", "p50_s", "p99_s", "api_calls_per_pod"), 1.0),
    **dict.fromkeys(("api_written_bytes_per_pod", "api_watched_bytes_per_pod"), 1e-3),
    "api_cpu_s_per_pod": 1e3,
}


def _quantiles(prefix: str, seconds: Sequence[float]) -> dict[str, float]:
    p50, p99 = 1e3 * np.quantile(seconds, (0.5, 0.99))
    return {f"{prefix}p50_ms": float(p50), f"{prefix}p99_ms": float(p99)}


def _mean(outcomes: list[Any]) -> dict[str, Any]:
    keys = ("fragmentation", "bandwidth", "stranded_acu", "wait_s")
    means = {key: sum(getattr(outcome, key) for outcome in outcomes) / len(outcomes) for key in keys}
    return {**means, "trust": "assumed"}


def _figures(row: dict[str, Any], *keys: str) -> list[str]:
    return [f"{row[key]:,.2f}" if key.endswith("_ms") else str(row[key]) for key in keys]


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    if real := data.get("real"):
        yield f"{real['gangs']} gangs of {real['pods']} pods on {real['nodes']} nodes of a real cluster:"
        body = [
            [name, *(f"{run[key] * unit:.1f}" for key, unit in _REAL.items())]
            for name, run in (("strata", real), *real["peers"].items())
        ]
        heads = ["placed by", "pods/s", "gangs/s", "p50 s", "p99 s", "calls/pod", "kB/pod written", "watched"]
        yield rows([*heads, "API CPU ms/pod"], body, right=range(1, 9))
    yield "filter and prioritize for one pod, from JSON to JSON [ms]; gangs a second:"
    body = [
        [*_figures(row, "nodes", "p50_ms", "p99_ms", "wall_p50_ms", "wall_p99_ms"), f"{gangs:,.0f}"]
        for row, gangs in zip(data["extender"], data["gangs_per_s"].values(), strict=True)
    ]
    yield rows(["nodes", "CPU p50", "p99", "wall p50", "p99", "gangs/s"], body, right=range(6))
    if "http_p50_ms" in data["extender"][0]:
        yield "over HTTP; and filter alone sent whole nodes, without HTTP and over it [ms]:"
        body = [
            [
                *_figures(row, "nodes", "http_p50_ms", "http_p99_ms"),
                f"{row['full_bytes'] / 1e6:,.1f}",
                *_figures(row, "full_ms", "http_full_ms"),
            ]
            for row in data["extender"]
        ]
        heads = ["nodes", "names p50", "p99", "whole MB", "decided", "over HTTP"]
        yield rows(heads, body, right=range(6))
    for key, title in (("quality", "half full"), ("quality_overloaded", "overloaded")):
        yield f"{TRACES} traces of {TRACE_GANGS} gangs on {TRACE_NODES} nodes, {title}:"
        body = [
            [
                name,
                f"{quality['fragmentation']:.3f}",
                f"{quality['bandwidth']:.3f}",
                f"{quality['stranded_acu']:,.0f}",
                f"{quality['wait_s']:.1f}",
            ]
            for name, quality in data[key].items()
        ]
        heads = ["policy", "fragmentation", "bandwidth", "stranded ACU", "wait s"]
        yield rows(heads, body, right=[1, 2, 3, 4])
    peers = data["peers"]
    yield (
        f"peers: {peers['extender_full_nodes_5000_ms']:.0f} ms to parse 5000 full nodes in an HTTP extender; "
        f"{peers['extender_pods_per_s_at_500']:.0f} pods/s with an extender at 500 nodes"
    )
