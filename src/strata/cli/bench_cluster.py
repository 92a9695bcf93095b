"""`strata bench cluster`: how fast pods and gangs are placed, and how well beside other policies."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from rich.console import Console

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


@click.command()
@click.option(
    "--decisions", default=1000, show_default=True, type=click.IntRange(min=1), help="Timed for each size."
)
@click.option("--seed", default=0, show_default=True, help="Of clusters and traces.")
@output_option
def cluster(decisions: int, seed: int, output: str) -> None:
    """Time the router on nodes of eight devices, and compare its placements on traces.

    A decision filters and scores every node for one pod as a scheduler extender does, from JSON to JSON, on a
    made-up cluster half of whose nodes are begun; then its gang is placed whole and the index updated. The same
    questions go over HTTP on loopback as well, with names only and, the peers' way, with whole nodes. The traces
    are of gangs that come and go in virtual time.
    """
    import numpy as np

    from strata.cluster.index import Index
    from strata.cluster.schema import bundled_profiles
    from strata.evaluation.placement.loopback import round_trips
    from strata.evaluation.placement.quality import policies, replay
    from strata.evaluation.placement.rate import pace
    from strata.evaluation.placement.synthetic import synthetic_cluster, synthetic_trace

    profiles = bundled_profiles()
    has_server = all(map(find_spec, ("starlette", "uvicorn")))
    if not has_server:
        click.echo("without HTTP: pip install 'strata-compute[cluster]' brings its server", err=True)
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
            found = pace(index, claims, profiles, cpu=time.process_time, wall=time.perf_counter)
            row = {"nodes": nodes, **_quantiles("", found.extender_cpu_s)}
            extender.append({**row, **_quantiles("wall_", found.extender_wall_s), "trust": "measured"})
            gangs_per_s[str(nodes)] = len(claims) / sum(found.gang_s)
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
                    answer = replay(empty, trace, profiles, policy=policy)
                    runs[f"{rate:g}"].setdefault(name, []).append(answer)
                done += 1
                advance(done)
    by_rate = {rate: {name: _mean(some) for name, some in of.items()} for rate, of in runs.items()}
    answer_ = {
        "extender": extender,
        "gangs_per_s": gangs_per_s,
        "quality": by_rate[f"{RATES_PER_S[0]:g}"],
        "quality_overloaded": by_rate[f"{RATES_PER_S[1]:g}"],
        "peers": PEERS,
    }
    emit(answer_, output, lambda console: _show(console, answer_))


def _quantiles(prefix: str, seconds: Sequence[float]) -> dict[str, float]:
    import numpy as np

    p50, p99 = 1e3 * np.quantile(seconds, (0.5, 0.99))
    return {f"{prefix}p50_ms": float(p50), f"{prefix}p99_ms": float(p99)}


def _mean(answers: list[Any]) -> dict[str, Any]:
    keys = ("fragmentation", "bandwidth", "stranded_acu", "wait_s")
    means = {key: sum(getattr(one, key) for one in answers) / len(answers) for key in keys}
    return {**means, "trust": "assumed"}


def _figures(row: dict[str, Any], *keys: str) -> list[str]:
    return [f"{row[key]:,.2f}" if key.endswith("_ms") else str(row[key]) for key in keys]


def _show(console: Console, answer: dict[str, Any]) -> None:
    console.print("filter and prioritize for one pod, from JSON to JSON [ms]; gangs a second:")
    body = [
        [*_figures(row, "nodes", "p50_ms", "p99_ms", "wall_p50_ms", "wall_p99_ms"), f"{gangs:,.0f}"]
        for row, gangs in zip(answer["extender"], answer["gangs_per_s"].values(), strict=True)
    ]
    console.print(rows(["nodes", "CPU p50", "p99", "wall p50", "p99", "gangs/s"], body, right=range(6)))
    if "http_p50_ms" in answer["extender"][0]:
        console.print("over HTTP; and filter alone sent whole nodes, without HTTP and over it [ms]:")
        body = [
            [
                *_figures(row, "nodes", "http_p50_ms", "http_p99_ms"),
                f"{row['full_bytes'] / 1e6:,.1f}",
                *_figures(row, "full_ms", "http_full_ms"),
            ]
            for row in answer["extender"]
        ]
        heads = ["nodes", "names p50", "p99", "whole MB", "decided", "over HTTP"]
        console.print(rows(heads, body, right=range(6)))
    for key, title in (("quality", "half full"), ("quality_overloaded", "overloaded")):
        console.print(f"{TRACES} traces of {TRACE_GANGS} gangs on {TRACE_NODES} nodes, {title}:")
        body = [
            [
                name,
                f"{one['fragmentation']:.3f}",
                f"{one['bandwidth']:.3f}",
                f"{one['stranded_acu']:,.0f}",
                f"{one['wait_s']:.1f}",
            ]
            for name, one in answer[key].items()
        ]
        heads = ["policy", "fragmentation", "bandwidth", "stranded ACU", "wait s"]
        console.print(rows(heads, body, right=[1, 2, 3, 4]))
    console.print(
        f"peers: {PEERS['extender_full_nodes_5000_ms']:.0f} ms to parse 5000 full nodes in an HTTP extender; "
        f"{PEERS['extender_pods_per_s_at_500']:.0f} pods/s with an extender at 500 nodes"
    )
