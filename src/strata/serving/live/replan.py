"""The answer to a `Replan`: keep what serves, mend what is broken, or lay everything out anew.

Mending moves only nodes that serve nothing, so it is always worth it. A whole new layout must earn, over the
horizon, more tokens than it costs: those not served while nodes run dry to make room and layers load, and those of
requests that are interrupted and begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from strata.decision import Reason
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.events import Planned
from strata.serving.live.instructions import Replan
from strata.serving.live.transition import DRAIN_S, transition
from strata.serving.node import Node
from strata.serving.observe import pool_of
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Pipeline, faults, goodput, pipeline_of, score
from strata.serving.planning.goal import Goal
from strata.serving.planning.pool import NodePool, why_not_held
from strata.serving.planning.service import SPARE
from strata.serving.planning.split import best_split
from strata.units import show_bytes
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

LATENCY_WEIGHT = 0.25
"""Per cent of tokens/s that one per cent of decode latency is worth, as in `goal.Goal.BOTH`."""
LEAST_GAIN = 1.05
"""Times what mending is worth that a whole new layout must be: forecasts err, and moving makes requests wait."""


def answer(plan: Replan, model: ModelInfo, demand: Demand, config: SchedulerConfig) -> Planned:
    """Return the pipelines to move to. Never raises for odd nodes: no pipelines then, and the reasons."""
    planned = _planned(plan, model, demand, config)
    return replace(planned, reasons=(*plan.causes, *planned.reasons))


def _planned(plan: Replan, model: ModelInfo, demand: Demand, config: SchedulerConfig) -> Planned:
    nodes = [node for node in plan.nodes if not node.model]
    if not nodes:  # whole engines serve as they are, and suspects serve nothing
        return Planned(plan.version, ())
    laid_out = (*plan.current, *plan.broken)
    held = {stage.node_id: (stage.first, stage.end) for pipeline in laid_out for stage in pipeline}
    if plan.wanted_tokens_per_s < math.inf:
        demand = replace(demand, rate_per_s=plan.wanted_tokens_per_s / max(demand.output_tokens, 1))
    known = {node.node_id for node in nodes}
    pool = _pool(plan, nodes, model, demand, held)
    is_cut = pool.batch < demand.batch
    remarks = [Reason("batch-cut", data={"asked": demand.batch, "batch": pool.batch})] if is_cut else []
    remarks += _too_small(pool, nodes, model, demand)
    whole = [p for p in laid_out if known.issuperset(s.node_id for s in p) and not faults(pool, [p])]
    broken = [p for p in laid_out if p not in whole]
    fresh = allocate(pool, config.allocation_strategy, goal=Goal.GOODPUT, share_stages=config.share_stages)
    if not whole and not broken:
        return Planned(plan.version, fresh.pipelines, (*fresh.reasons, *remarks))
    worth = partial(horizon_tokens, plan, pool, model=model, demand=demand, config=config)
    extensions: tuple[list[Pipeline], ...] = ([], _extended(pool, broken))
    mended = max((whole + _mended(pool, whole, extended, config) for extended in extensions), key=worth)
    new = list(fresh.pipelines)
    # What serves is not dissolved for latency alone where that leaves fewer tokens/s, whatever is idle.
    keeps_rate = score(pool, new).tokens_per_s >= score(pool, mended).tokens_per_s
    if keeps_rate and worth(new) > LEAST_GAIN * worth(mended):
        return Planned(plan.version, tuple(new), (*fresh.reasons, *remarks))
    if not mended:
        return Planned(plan.version, (), (*fresh.reasons, *remarks))
    kept = [Reason("plan-kept", data={"pipelines": len(whole)})] if whole else []
    return Planned(plan.version, tuple(mended), (*kept, *remarks))


def _pool(
    plan: Replan, nodes: Sequence[Node], model: ModelInfo, demand: Demand, held: Mapping[str, tuple[int, int]]
) -> NodePool:
    """Return the pool for the demanded batch, or the largest half of it that leaves room for the model at all, and
    for what serves: that more is asked for is no reason to take it down.
    """
    known, batch = {node.node_id for node in nodes}, demand.batch
    here = [pipeline for pipeline in plan.current if known.issuperset(stage.node_id for stage in pipeline)]
    first: NodePool | None = None
    while batch:
        pool = pool_of(nodes, model, replace(demand, batch=batch), calibration=plan.calibration, held=held)
        if not why_not_held(pool) and not any(faults(pool, [pipeline]) for pipeline in here):
            return pool
        first, batch = first or pool, batch // 2
    assert first is not None, "a batch has a sequence"
    return first


def _too_small(pool: NodePool, nodes: Sequence[Node], model: ModelInfo, demand: Demand) -> list[Reason]:
    """Name the nodes that stay without work, as not even the smallest layer has room beside its sequences, or not
    all of a model whose layers stay together.
    """
    need = model.weight_bytes + pool.batch * model.kv_bytes(demand.kv_tokens)
    least = need.sum() + model.ends_bytes(0, model.num_layers) if model.is_whole else need.min()
    small = {node.id for node in pool.nodes if not any(node.capacity)}
    data = {"need": show_bytes(float(least)), "batch": pool.batch}
    token = "holds-not-all" if model.is_whole else "holds-no-layer"
    return [
        Reason(token, subject=node.node_id, data=data | {"have": show_bytes(node.memory_bytes)})
        for node in nodes
        if node.node_id in small
    ]


def _extended(pool: NodePool, broken: Sequence[Pipeline]) -> list[Pipeline]:
    """Let survivors of a broken pipeline take over its lost layers, in their order, where they have room."""
    extended: list[Pipeline] = []
    for stages in broken:
        members = [pool.index[s.node_id] for s in stages if s.node_id in pool.index]
        counts = best_split(pool, members) if members else None
        if counts:
            extended.append(pipeline_of(pool, members, counts))
    return extended


def _mended(
    pool: NodePool, whole: list[Pipeline], extended: list[Pipeline], config: SchedulerConfig
) -> list[Pipeline]:
    """Lay the model out on what neither serves nor has been extended."""
    used = {s.node_id for p in (*whole, *extended) for s in p}
    free = [i for i, node in enumerate(pool.nodes) if node.id not in used]
    return extended + list(allocate(pool.only(free), config.allocation_strategy, goal=Goal.GOODPUT).pipelines)


def horizon_tokens(
    plan: Replan, pool: NodePool, pipelines: Sequence[Pipeline], *, model: ModelInfo, demand: Demand,
    config: SchedulerConfig,
) -> float:  # fmt: skip
    """Return the useful tokens of the horizon, what moving there costs taken off; latency counts a little.

    What a gap leaves unserved is not made up later: who waited for it is late. A pipeline that must make room
    takes as long to run dry as the request that began last; what is interrupted before is served anew.
    """
    if not pipelines:
        return 0.0
    reserved: dict[Pipeline, int] = dict.fromkeys(plan.current, 0)
    reserved |= zip(plan.current, plan.reserved_tokens, strict=False)
    runs_s = {
        stages: demand.output_tokens * score(pool, [stages]).decode_s if tokens else 0.0
        for stages, tokens in reserved.items()
        if all(stage.node_id in pool.index for stage in stages)
    }
    spans = transition(
        runs_s, pipelines, nodes={node.node_id: node for node in plan.nodes}, model=model,
        reload_bytes_per_s=config.reload_bytes_per_s, horizon_s=plan.horizon_s,
    )  # fmt: skip
    useful_per_s = SPARE * plan.wanted_tokens_per_s
    useful = sum(span_s * min(_rate(pool, serving), useful_per_s) for span_s, serving in spans)
    again = sum(
        reserved[stages] * max(0.0, 1 - DRAIN_S / left_s)
        for stages, left_s in runs_s.items()
        if left_s and stages not in pipelines
    )
    useful -= again * demand.output_tokens / demand.kv_tokens
    return float(useful * score(pool, pipelines).decode_s ** -LATENCY_WEIGHT)


def _rate(pool: NodePool, pipelines: Sequence[Pipeline]) -> float:
    """Return the tokens/s within goals; pipelines that share a node give way to each other."""
    alone = [score(pool, [pipeline]).tokens_per_s for pipeline in pipelines]
    if not any(alone):  # nothing serves, or what does has no room for a sequence of this length
        return 0.0
    share = score(pool, pipelines).tokens_per_s / sum(alone)
    within_goals = (goodput(pool, [pipeline]) for pipeline in pipelines)
    return share * sum(most if kept is None else kept for most, kept in zip(alone, within_goals, strict=True))
