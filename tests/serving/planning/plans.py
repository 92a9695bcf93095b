"""Serving plans in one line each."""

from __future__ import annotations

from typing import Any

from strata.decision import Trust
from strata.serving.planning.planfile import (
    PlannedNode,
    PlannedPipeline,
    PlannedService,
    PlannedStage,
    ServingPlan,
)


def planned(*pipelines: tuple[tuple[str, int, int], ...], heads: int = 64, **job: Any) -> ServingPlan:
    """A plan of pipelines, each of (node, its devices, its layers)."""
    nodes, made = [], []
    for pipeline in pipelines:
        first, stages = 0, []
        for node, devices, layers in pipeline:
            nodes.append(PlannedNode(node, node.partition("/")[0], "A100-SXM4-80GB", devices))
            stages.append(PlannedStage(node, first, first + layers, 0.004 * layers, 40 - len(stages)))
            first += layers
        slots = min(stage.slots for stage in stages)
        made.append(PlannedPipeline(tuple(stages), slots, 100.0, 0.4, 0.3, 0.5, 2.0, Trust.ANALYTIC))
    layers = max((pipeline.stages[-1].end for pipeline in made), default=10)
    service = {
        "prompt_tokens": 1024,
        "output_tokens": 256,
        "weights": "bf16",
        "kv": "bf16",
        "memory_headroom": 0.08,
        "num_heads": heads,
        **job,
    }
    return ServingPlan(
        name="job on fleet",
        strategy="auto",
        goal="both",
        routing="auto",
        pipelines=tuple(made),
        fleet="fleet",
        nodes=tuple(nodes),
        job=PlannedService("job", service.pop("model", "llama"), layers, **service),
        inputs={"fleet": "fleet.yaml", "job": "job.yaml"},
    )
