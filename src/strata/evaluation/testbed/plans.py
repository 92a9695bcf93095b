"""What a testbed trains and by which plans: fp32, one process a domain, the same batch for every plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.simulate.pipeline import classic_warmup
from strata.workload.job import TrainingJob
from strata.workload.layers import LayerTable
from strata.workload.plan import Pipeline, Stage, TrainingPlan

MICROBATCH_SIZE: Final = 2
PLANS: Final = ("pp", "dp")


@dataclass(frozen=True, slots=True)
class TestbedModel:
    """Shape of the transformer, as `workload.tiny.Size` wants it; that needs torch, this does not."""

    num_layers: int = 10
    hidden_size: int = 256
    num_heads: int = 4
    vocab_size: int = 64
    sequence_length: int = 32

    def layers(self) -> LayerTable:
        """Return the layers as the cost model sees them: the parameters of `workload.tiny`, fp32 boundaries."""
        D, V, T = self.hidden_size, self.vocab_size, self.sequence_length
        blocks = self.num_layers - 2
        block_flops = 2 * T * 12 * D * D + 4 * T * T * D  # weights, then scores and values
        boundary = np.full(self.num_layers, 4.0 * T * D)
        return LayerTable(
            kinds=("embedding", *["block"] * blocks, "head"),
            forward_flops=np.array([0.0, *[block_flops] * blocks, 2 * T * V * D], dtype=float),
            params=np.array([V * D + T * D, *[12 * D * D + 2 * D] * blocks, V * D + D], dtype=float),
            activation_bytes=np.array([1.0, *[34.0] * blocks, 2.0]) * boundary,
            checkpoint_bytes=boundary,
            boundary_bytes=boundary,
        )


MODEL: Final = TestbedModel()


def domain_names(domains: int) -> tuple[str, ...]:
    """Return the names of a testbed's domains."""
    return tuple(f"domain-{index}" for index in range(domains))


def microbatches(domains: int) -> int:
    """Return the microbatches of a step: four a domain keep a pipeline busy, and every copy gets as many."""
    return 4 * domains


def build_plan(kind: str, domains: int) -> TrainingPlan:
    """Return plan `pp` (the model cut into one stage a domain) or `dp` (a copy in every domain)."""
    names, total = domain_names(domains), microbatches(domains)
    if kind == "dp":
        whole = Stage("", 0, MODEL.num_layers, 1)
        copies = (Pipeline((replace(whole, domain=name),), 1, total // domains) for name in names)
        return TrainingPlan(tuple(copies), MICROBATCH_SIZE)
    assert kind == "pp", f"plan is one of {PLANS}"
    cuts = [math.floor(MODEL.num_layers * index / domains) for index in range(domains + 1)]
    stages = tuple(
        Stage(name, first, end - first, 1, warmup)
        for name, first, end, warmup in zip(names, cuts, cuts[1:], classic_warmup(domains), strict=False)
    )
    return TrainingPlan((Pipeline(stages, 1, total),), MICROBATCH_SIZE)


def build_job(domains: int) -> TrainingJob:
    """Return the job that every plan of a testbed trains."""
    return TrainingJob(
        name="testbed",
        layers=MODEL.layers(),
        sequence_length=MODEL.sequence_length,
        num_heads=MODEL.num_heads,
        global_batch=microbatches(domains) * MICROBATCH_SIZE,
        precision="fp32",
        optimizer="adam",
    )
