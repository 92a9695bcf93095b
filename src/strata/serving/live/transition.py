"""What serves while one plan becomes the next: the rollout itself, run ahead in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from strata.serving.live.rollout import LivePipeline, PipelinePhase, Rollout
from strata.serving.node import Node
from strata.serving.planning.allocation import Pipeline
from strata.workload.inference import ModelInfo

DRAIN_S: Final = 30.0
"""Requests on a pipeline that must make room are interrupted, and go on elsewhere, after so long."""
MOST_WEIGHTS: Final = 0.9
"""Share of a node's memory that weights may take while old and new layers are both held."""


def fits_both(model: ModelInfo, node: Node, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether a node can hold several ranges at once, layers they share once, beside some KV memory."""
    layers = sorted({layer for first, end in ranges for layer in range(first, end)})
    weights = float(model.weight_bytes[layers].sum())
    weights += model.embedding_bytes * (layers[0] == 0)
    weights += model.head_bytes * (layers[-1] == model.num_layers - 1)
    return weights <= MOST_WEIGHTS * node.memory_bytes


def load_s(
    model: ModelInfo, first: int, end: int, held: Iterable[tuple[int, int]] = (), *, bytes_per_s: float
) -> float:
    """Return how long a node reads layers [first, end) beside ranges that it holds, embedding and head too [s]."""
    new = sorted({*range(first, end)}.difference(*(range(*there) for there in held)))
    if not new:
        return 0.0
    ends_bytes = model.ends_bytes(new[0], new[-1] + 1)
    return (float(model.weight_bytes[new].sum()) + ends_bytes) / bytes_per_s


def transition(
    current: Mapping[Pipeline, float], plan: Sequence[Pipeline], *, nodes: Mapping[str, Node], model: ModelInfo,
    reload_bytes_per_s: float, horizon_s: float,
) -> list[tuple[float, tuple[Pipeline, ...]]]:  # fmt: skip
    """Return for how long which pipelines take requests, from the moment that a plan is adopted to the horizon.

    current: pipelines that serve, and how long what runs there still takes [s].
    """

    def fits(name: str, ranges: list[tuple[int, int]]) -> bool:
        return name in nodes and fits_both(model, nodes[name], ranges)

    rollout, runs_s, due_s = Rollout(fits), dict[int, float](), dict[int, float]()
    for stages, left_s in current.items():
        old = rollout.serve(stages, 0.0)
        runs_s[old.version] = min(left_s, DRAIN_S)
        old.running = {"request"} if left_s > 0 else set()
    rollout.adopt(plan, 0.0)
    now_s, spans = 0.0, list[tuple[float, tuple[Pipeline, ...]]]()
    while now_s < horizon_s:
        for pipeline in rollout.in_phase(PipelinePhase.LOADING, PipelinePhase.DRAINING):
            if pipeline.version in due_s:
                continue
            takes_s = runs_s.get(pipeline.version, 0.0)
            if pipeline.phase is PipelinePhase.LOADING:
                takes_s = _loads_s(rollout, pipeline, model, reload_bytes_per_s)
            due_s[pipeline.version] = now_s + takes_s
        until_s = min([horizon_s, *due_s.values()])
        serving = tuple(pipeline.stages for pipeline in rollout.in_phase(PipelinePhase.SERVING))
        if spans and spans[-1][1] == serving:
            spans[-1] = (spans[-1][0] + until_s - now_s, serving)
        elif until_s > now_s:
            spans.append((until_s - now_s, serving))
        now_s = until_s
        for version in [version for version, at_s in due_s.items() if at_s <= now_s]:
            del due_s[version]
            rollout[version].missing.clear()
            rollout[version].running.clear()
        rollout.advance(now_s)
    return spans


def _loads_s(rollout: Rollout, pipeline: LivePipeline, model: ModelInfo, bytes_per_s: float) -> float:
    """Return how long the slowest node of a pipeline reads the layers that it does not hold."""
    return max(
        load_s(
            model, stage.first, stage.end,
            [(first, end) for other, first, end in rollout.desired(stage.node_id) if other != pipeline.version],
            bytes_per_s=bytes_per_s,
        )
        for stage in pipeline.stages
    )  # fmt: skip
