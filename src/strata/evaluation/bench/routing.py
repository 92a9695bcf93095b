"""Decisions a second of the routers by number of nodes, and a pool close to its limit."""

from __future__ import annotations

import time
from typing import Any, Final, get_args

import numpy as np

from strata.evaluation.bench.routing_overload import overload
from strata.evaluation.bench.routing_rate import decision_times, random_layout
from strata.progress import Progress, silent
from strata.serving.routing.make import RoutingStrategy, make_router
from strata.tables import Shown, rows
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo

SIZES: Final = ((4, 2), (16, 4), (64, 4), (256, 4))
"""Nodes, and how many of them make a pipeline."""
MODEL: Final = "llama-3.1-8b"
OFFERED_PER_S: Final = 28.0
PEER: Final = {
    "decision_ms_at_256_nodes": [120.0, 305.0],
    "decisions_per_s_over_http": 18.0,
    "served_per_s": 6.4,
    "p99_wait_s": 80.0,
    "trust": "measured",
}
"""Parallax at commit 162354a on a like machine: its DP router, its request path, its counts under this load."""


def measure(*, decisions: int, horizon_s: float, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Time every router on layouts of every size, then load a pool for so long in virtual time."""
    rates: list[dict[str, Any]] = []
    with progress("routing", total=3 * len(SIZES)) as advance:
        for nodes, stages in SIZES:
            layout = random_layout(nodes // stages, stages, np.random.default_rng(seed))
            for strategy in get_args(RoutingStrategy):
                rng = np.random.default_rng(seed)
                router = make_router(strategy)
                times = decision_times(router, layout, count=decisions, rng=rng, clock_ns=time.thread_time_ns)
                p50, p99 = np.quantile(times, (0.5, 0.99)) / 1e3
                rates.append(
                    {
                        "strategy": strategy,
                        "nodes": nodes,
                        "replicas": nodes // stages,
                        "decisions_per_s": 1e9 * decisions / sum(times),
                        "p50_us": float(p50),
                        "p99_us": float(p99),
                        "trust": "measured",
                    }
                )
                advance(len(rates))
    rng = np.random.default_rng(seed)
    load = overload(ModelInfo.of(model(MODEL)), "auto", rate_per_s=OFFERED_PER_S, horizon_s=horizon_s, rng=rng)
    return {"rows": rates, "overload": {**load._asdict(), "strategy": "auto", "trust": "analytic"}, "peer": PEER}


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
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
