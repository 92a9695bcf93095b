"""How a replay went: waits and latencies with intervals, goodput, busy nodes, and what was turned away.

Intervals: the measured time is cut into blocks, which are redrawn whole (a bootstrap of blocks), because requests
near each other wait in the same queue and are not independent. Requests count where they arrived between the
marks; rates count what ended there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.decision import Reason, Trust
from strata.serving.replay.engine import Replay
from strata.serving.replay.record import OUTCOMES
from strata.stats import bootstrap
from strata.workload.serving_job import Demand

BLOCKS: Final = 20
RESAMPLES: Final = 200
"""Of quantiles; enough for the first digit of an interval's width, in a second for 100,000 requests."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
METRICS: Final = ("ttft_s", "tpot_s", "latency_s", "wait_s")


def report(replay: Replay, demand: Demand, *, seed: int) -> dict[str, Any]:
    """Return what a closed replay came to, with stable keys; every figure is analytic: times are a model's."""
    rng, record = np.random.default_rng(seed), replay.record
    first, last = replay.marks
    span_s = max(last.at_s - first.at_s, 1e-12)
    columns = {name: np.array(getattr(record, name), dtype=float) for name in METRICS}
    at_s, tokens = np.array(record.at_s), np.array(record.output_tokens)
    outcome = np.array(record.outcome, dtype=int)
    came = (at_s >= first.at_s) & (at_s < last.at_s)
    served = outcome == OUTCOMES.index("served")
    end_s = at_s + columns["latency_s"]
    ended = served & (end_s >= first.at_s) & (end_s < last.at_s)
    good = (columns["ttft_s"] <= demand.ttft_goal_s) & (columns["tpot_s"] <= demand.tpot_goal_s)
    blocks = _blocks(at_s, first.at_s, span_s)
    ends = _blocks(end_s, first.at_s, span_s)
    counts = {name: int((came & (outcome == i)).sum()) for i, name in enumerate(OUTCOMES)}
    interrupted = came & (np.array(record.interruptions) > 0)
    return {
        "window_s": [first.at_s, last.at_s],
        "requests": {
            "offered": int(came.sum()),
            **counts,
            "interrupted": int(interrupted.sum()),
            "resumed": int((interrupted & served).sum()),
        },
        "reasons": [reason.to_dict() for reason in _smallest(replay.batch_cuts)],
        "rejected_by_reason": dict(sorted(Counter(reason.token for reason in replay.refusals).items())),
        "rejected_first": {reason.token: str(reason) for reason in reversed(replay.refusals)},
        "offered_per_s": float(came.sum()) / span_s,
        "served_per_s": _rate(ended, ends, span_s, rng),
        "goodput_per_s": _rate(ended & good, ends, span_s, rng),
        "goals": {
            "ttft_s": _finite(demand.ttft_goal_s),
            "tpot_s": _finite(demand.tpot_goal_s),
            "met_share": _finite(float((came & served & good).sum() / max(came.sum(), 1))),
        },
        "tokens_per_s": float(tokens[ended].sum()) / span_s,
        **{name: _quantiles(columns[name], came & served, blocks, rng) for name in METRICS},
        **_nodes(replay, span_s),
        "cluster": {
            "plans": replay.num_plans,
            "loads_while_serving": replay.num_loads,
            "evicted": replay.num_evicted,
        },
        "trust": Trust.ANALYTIC.value,
    }


def _smallest(cuts: Sequence[Reason]) -> list[Reason]:
    """Return what was said of the smallest batch that plans were made for, where it was not the demanded one."""
    return sorted(cuts, key=lambda reason: int(reason.data["batch"]))[:1]


def _nodes(replay: Replay, span_s: float) -> dict[str, Any]:
    """Return how busy nodes and pipelines were, how even that was, and what the network had of it.

    busy_share: of the time, in which a node computed; load: sequences it decoded as a share of its slots (mean).
    """
    first, last = replay.marks
    busy = {name: (s - first.busy_s.get(name, 0.0)) / span_s for name, s in sorted(last.busy_s.items())}
    load, pipelines, decode_s, hop_s = dict.fromkeys(busy, 0.0), [], 0.0, 0.0
    for stages, after in sorted(last.paths.items()):
        before = first.paths.get(stages, (0.0, 0.0, 0.0))
        passed, running_s, hopping_s = (b - a for a, b in zip(before, after, strict=True))
        path = replay.service.paths[stages]
        hops = len(stages) if len(stages) > 1 else 0
        pipelines.append(
            {
                "stages": [list(stage) for stage in stages],
                "running": running_s / span_s,
                "tokens_passed_per_s": passed / span_s,
                "link_busy_share": passed * path.ring.per_unit_s / hops / span_s if hops else 0.0,
            }
        )
        for server in path.servers:
            load[server.node_id] += running_s / span_s / max(server.slots, 1)
        decode_s, hop_s = decode_s + running_s, hop_s + hopping_s
    loads = np.array([load[name] for name, share in busy.items() if share > 0])
    return {
        "nodes": [{"id": name, "busy_share": min(1.0, share), "load": load[name]} for name, share in busy.items()],
        "pipelines": pipelines,
        "balance": {
            "jain": float(loads.sum() ** 2 / (len(loads) * (loads**2).sum())) if loads.any() else None,
            "coefficient_of_variation": float(loads.std() / loads.mean()) if loads.any() else None,
        },
        "network": {"share_of_decode": hop_s / decode_s if decode_s > 0 else None},
    }


def _blocks(at_s: Floats, start_s: float, span_s: float) -> Ints:
    return np.clip((at_s - start_s) / span_s * BLOCKS, 0, BLOCKS - 1).astype(np.int64)


def _rate(chosen: Bools, blocks: Ints, span_s: float, rng: np.random.Generator) -> dict[str, float]:
    """Return how many a second, with its interval."""
    per_s = np.bincount(blocks[chosen], minlength=BLOCKS) * (BLOCKS / span_s)
    interval = bootstrap(lambda values: float(np.mean(values)), per_s, rng=rng)
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high}


def _quantiles(values: Floats, chosen: Bools, blocks: Ints, rng: np.random.Generator) -> dict[str, Any] | None:
    """Return mean and quantiles with their intervals; None where there is nothing."""
    parts = [values[chosen & (blocks == block)] for block in range(BLOCKS)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return None
    summary = {"mean": _interval(parts, lambda drawn: float(drawn.mean()), rng)}
    for name, q in QUANTILES.items():
        summary[name] = _interval(parts, lambda drawn, q=q: float(np.quantile(drawn, q)), rng)
    return summary


def _interval(
    parts: list[Floats], statistic: Callable[..., float], rng: np.random.Generator
) -> dict[str, float | None]:
    everything = statistic(np.concatenate(parts))
    if len(parts) < 2:
        return {"estimate": everything, "low": None, "high": None}

    def of_blocks(which: Floats) -> float:
        return statistic(np.concatenate([parts[int(i)] for i in which]))

    interval = bootstrap(of_blocks, np.arange(len(parts)), rng=rng, resamples=RESAMPLES)
    return {"estimate": everything, "low": interval.low, "high": interval.high}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
