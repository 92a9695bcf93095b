"""`strata bench routing`: decisions a second by number of nodes, and a pool close to its limit."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, progress, rows
from strata.cli.parameters import Finite


@click.command()
@click.option("--decisions", default=5000, type=click.IntRange(min=1), help="Decisions timed in each row.")
@click.option(
    "--horizon", default=1800.0, type=Finite(min=1), metavar="SECONDS", help="Virtual time of the load test."
)
@click.option("--seed", default=0, help="Random seed of the layouts and requests.")
@output_option
def routing(decisions: int, horizon: float, seed: int, output: str) -> None:
    """Time the routers on mixed nodes in five regions, and load a pool worth 32 requests a second with 28.

    A decision is a route and a release while half of the slots are taken, requests of all sizes; CPU time of the
    deciding thread. The load test goes through the live scheduler in virtual time: four pipelines of 16 slots,
    2 s a request, Poisson arrivals.
    """
    from strata.evaluation.bench.routing import measure

    data = measure(decisions=decisions, horizon_s=horizon, seed=seed, progress=progress)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    body = [
        [
            str(row["nodes"]),
            str(row["replicas"]),
            row["strategy"],
            f"{row['decisions_per_s']:,.0f}",
            f"{row['p50_us']:.0f}",
            f"{row['p99_us']:.0f}",
        ]
        for row in data["rows"]
    ]
    heads = ["nodes", "replicas", "router", "decisions/s", "p50 us", "p99 us"]
    yield rows(heads, body, right=[0, 1, 3, 4, 5])
    load, peer = data["overload"], data["peer"]
    low, high = peer["decision_ms_at_256_nodes"]
    rate = peer["decisions_per_s_over_http"]
    yield f"peer: {low:.0f}-{high:.0f} ms a decision at 256 nodes, {rate:.0f}/s over HTTP"
    yield (
        f"load: {load['served_per_s']:.1f}/s served of {load['offered_per_s']:.1f}/s, p99 waits "
        f"{load['p99_wait_s']:.2f} s (peer: {peer['served_per_s']}/s, {peer['p99_wait_s']:.0f} s)"
    )
