"""`strata bench cluster`: how fast pods and gangs are placed, and how well beside other policies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from rich.console import Console

SIZES: Final = (500, 1000, 5000)
BUSY: Final = 0.5
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
"""Parsing 5000 full nodes in an HTTP extender, by us; kube-scheduler-wasm-extension#63 on its extender."""


@click.command()
@click.option(
    "--decisions", default=1000, show_default=True, type=click.IntRange(min=1), help="Timed for each size."
)
@click.option("--seed", default=0, show_default=True, help="Of clusters and traces.")
@output_option
def cluster(decisions: int, seed: int, output: str) -> None:
    """Time the router on nodes of eight devices, and compare its placements on traces.

    A decision filters and scores every node for one pod, in CPU time, on a made-up cluster half of whose nodes are
    begun; then its gang is placed whole and the index updated. The traces are of gangs that come and go in
    virtual time. HTTP and JSON are not in these times.
    """
    import numpy as np

    from strata.cluster.index import Index
    from strata.cluster.pace import pace
    from strata.cluster.quality import policies, replay
    from strata.cluster.schema import bundled_profiles
    from strata.cluster.synthetic import synthetic_cluster, synthetic_trace

    profiles = bundled_profiles()
    extender: list[dict[str, Any]] = []
    gangs_per_s: dict[str, float] = {}
    runs: dict[str, dict[str, list[Any]]] = {f"{rate:g}": {} for rate in RATES_PER_S}
    with progress("cluster", total=len(SIZES) + TRACES * len(RATES_PER_S)) as advance:
        for done, nodes in enumerate(SIZES):
            rng = np.random.default_rng(seed)
            index = Index.of(synthetic_cluster(nodes, rng, busy=BUSY))
            claims = [gang.claim for gang in synthetic_trace(decisions, rng, rate_per_s=1.0)]
            found = pace(index, claims, profiles, clock=time.process_time)
            p50, p99 = 1e3 * np.quantile(found.extender_s, (0.5, 0.99))
            extender.append({"nodes": nodes, "p50_ms": float(p50), "p99_ms": float(p99), "trust": "measured"})
            gangs_per_s[str(nodes)] = len(claims) / sum(found.gang_s)
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


def _mean(answers: list[Any]) -> dict[str, Any]:
    keys = ("fragmentation", "bandwidth", "stranded_acu", "wait_s")
    means = {key: sum(getattr(one, key) for one in answers) / len(answers) for key in keys}
    return {**means, "trust": "assumed"}


def _show(console: Console, answer: dict[str, Any]) -> None:
    body = [
        [
            str(row["nodes"]),
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{answer['gangs_per_s'][str(row['nodes'])]:,.0f}",
        ]
        for row in answer["extender"]
    ]
    console.print(rows(["nodes", "one pod p50 ms", "p99 ms", "gangs/s"], body, right=[0, 1, 2, 3]))
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
