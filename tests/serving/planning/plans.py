"""Serving plans in one line each."""

from __future__ import annotations

from typing import Any

from strata.decision import Trust
from strata.files import API_VERSION
from strata.serving.planning.goal import Goal
from strata.serving.planning.planfile import (
    PlannedFleet,
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
            nodes.append(
                PlannedNode(
                    id=node, domain=node.partition("/")[0], accelerator="A100-SXM4-80GB", num_devices=devices
                )
            )
            stages.append(
                PlannedStage(
                    node=node,
                    first=first,
                    end=first + layers,
                    stage_s=0.004 * layers,
                    slots=40 - len(stages),
                )
            )
            first += layers
        slots = min(stage.slots for stage in stages)
        made.append(
            PlannedPipeline(
                stages=tuple(stages),
                slots=slots,
                tokens_per_s=100.0,
                requests_per_s=0.4,
                goodput_per_s=0.3,
                decode_s=0.5,
                ttft_s=2.0,
                trust=Trust.ANALYTIC,
            )
        )
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
        apiVersion=API_VERSION,
        kind="ServingPlan",
        name="job on fleet",
        strategy="auto",
        goal=Goal.BOTH,
        routing="auto",
        pipelines=tuple(made),
        fleet=PlannedFleet(name="fleet", nodes=tuple(nodes)),
        job=PlannedService(name="job", model=service.pop("model", "llama"), num_layers=layers, **service),
        inputs={"fleet": "fleet.yaml", "job": "job.yaml"},
    )
