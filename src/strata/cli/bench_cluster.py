"""`strata bench cluster`: how fast pods and gangs are placed, and how well beside other policies."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, progress, rows
from strata.errors import install


@click.command()
@click.option(
    "--decisions", default=1000, type=click.IntRange(min=1), help="Decisions timed for each cluster size."
)
@click.option("--seed", default=0, help="Random seed of the clusters and traces.")
@output_option
def cluster(decisions: int, seed: int, output: str) -> None:
    """Time the router on nodes of eight devices, and compare its placements on traces.

    A decision filters and scores every node for one pod as a scheduler extender does, from JSON to JSON, on a
    made-up cluster half of whose nodes are begun; then its gang is placed whole and the index updated. The same
    questions go over HTTP on loopback as well, with names only and, the peers' way, with whole nodes. The traces
    are of gangs that come and go in virtual time.
    """
    from strata.evaluation.bench import cluster as body

    if not body.is_server_installed():
        click.echo(f"without HTTP, whose server is not installed: {install('cluster')}", err=True)
    data = body.measure(decisions=decisions, seed=seed, progress=progress)
    emit(data, output, _show(data))


def _figures(row: dict[str, Any], *keys: str) -> list[str]:
    return [f"{row[key]:,.2f}" if key.endswith("_ms") else str(row[key]) for key in keys]


def _show(data: dict[str, Any]) -> Shown:
    from strata.evaluation.bench.cluster import TRACE_GANGS, TRACE_NODES, TRACES

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
