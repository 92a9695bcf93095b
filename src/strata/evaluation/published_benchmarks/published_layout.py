"""A published run told to the product's own cost model: its machines, its job, and the layout it ran with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Final

from strata.evaluation.published_benchmarks.published_run import PublishedRun
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.pipeline import classic_warmup
from strata.simulate.report import StepReport
from strata.workload.job import Limits, Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan

_PLACE: Final = "here"
_INTRA_LATENCY_S: Final = 5e-6
_NETWORK_LATENCY_S: Final = 10e-6
"""Latencies nobody publishes: a fleet file's own defaults."""

_BEFORE_FLASH_ATTENTION: Final = ("Megatron21", "Korth22", "BLOOM")
"""Sources whose software wrote the attention scores to memory: flash attention is of May 2022 (arXiv
2205.14135)."""

_MOST_MICROBATCH: Final = 64


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A run's layout with what was not published filled in, and what the cost model says of it."""

    plan: TrainingPlan
    report: StepReport


def evaluate(run: PublishedRun) -> LayoutChoice:
    """Return the fastest layout the row leaves open that fits; where none fits, the one of least memory."""
    fleet, job = fleet_of(run), job_of(run)
    plans = list(layouts(run))
    choices = [LayoutChoice(*pair) for pair in zip(plans, StepModel(fleet, job).reports(plans), strict=True)]
    fitting = [choice for choice in choices if choice.report.fits_memory]
    if fitting:
        return min(fitting, key=lambda choice: choice.report.step_time_s)
    return min(choices, key=lambda choice: max(stage.memory_bytes for stage in choice.report.stages))


def fleet_of(run: PublishedRun) -> Fleet:
    """Return the machines of a run as one domain."""
    card = run.accelerator
    assert card.interconnect_bytes_per_s is not None, "refused when the row was read"
    here = Domain(
        name=_PLACE,
        accelerator=card,
        num_devices=run.num_gpus,
        devices_per_node=run.gpus_per_node,
        intra_bandwidth_bytes_per_s=card.interconnect_bytes_per_s / 2,
        intra_latency_s=_INTRA_LATENCY_S,
        network_bandwidth_bytes_per_s=run.node_network_bytes_per_s,
        network_latency_s=_NETWORK_LATENCY_S,
    )
    return Fleet("published", (here,), {})


def job_of(run: PublishedRun) -> TrainingJob:
    """Return what a run trained. All memory of a card counts: a run that was published ran."""
    return TrainingJob(
        name=run.name,
        model_name=run.spec.name,
        spec=run.spec,
        layers=run.spec.layer_table(run.sequence_length),
        sequence_length=run.sequence_length,
        num_heads=run.spec.num_heads,
        global_batch=run.global_batch,
        precision=run.precision,
        fused_attention=run.source not in _BEFORE_FLASH_ATTENTION,
        limits=Limits(memory_headroom=0.0),
    )


def layouts(run: PublishedRun) -> Iterator[TrainingPlan]:
    """Yield every plan that agrees with a row: one, unless microbatch or virtual stages are free."""
    each = run.global_batch // run.data_parallel
    sizes = [run.microbatch] if run.microbatch else [n for n in _powers(_MOST_MICROBATCH) if each % n == 0]
    deepest = run.spec.num_layers // run.pipeline_parallel
    for size in sizes:
        count = -(-each // size)
        if run.virtual_stages:
            chunks = [run.virtual_stages]
        elif run.pipeline_parallel == 1 or count % run.pipeline_parallel:
            chunks = [1]
        else:
            chunks = [n for n in range(1, deepest + 1) if deepest % n == 0]
        for virtual in chunks:
            yield _plan(run, size, count, virtual if run.pipeline_parallel > 1 else 1)


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(most.bit_length())]


def _plan(run: PublishedRun, microbatch: int, count: int, virtual: int) -> TrainingPlan:
    depth = run.pipeline_parallel
    stages, first = [], 0
    for index, (layers, warmup) in enumerate(zip(_blocks(run), classic_warmup(depth), strict=True)):
        # The embedding runs on the first stage and the head on the last, as Megatron-LM has it.
        layers += (index == 0) + (index == depth - 1)
        stages.append(Stage(_PLACE, first, layers, run.tensor_parallel, min(warmup, count - 1)))
        first += layers
    schedule = Schedule.INTERLEAVED if virtual > 1 else Schedule.ONE_F_ONE_B
    if virtual > 1 and count % depth:
        # Interleaving takes microbatches in groups of the stages; who runs others hides the bubble in another way.
        schedule, virtual = Schedule.ZERO_BUBBLE, 1
    return TrainingPlan(
        pipelines=(Pipeline(tuple(stages), run.data_parallel, count),),
        microbatch_size=microbatch,
        schedule=schedule,
        recompute=run.recompute,
        zero_stage=run.zero_stage,
        virtual_stages=virtual,
        # Megatron-LM may spread experts over tensor ranks, too; a plan shards each of them there.
        expert_parallel=gcd(run.expert_parallel, run.data_parallel),
    )


def _blocks(run: PublishedRun) -> list[int]:
    """Return the blocks of each stage: as even as they go, the first and last stage the first to have one less."""
    each, more = divmod(run.spec.num_layers, run.pipeline_parallel)
    inner = [*range(1, run.pipeline_parallel - 1), 0, run.pipeline_parallel - 1][:more]
    return [each + (index in inner) for index in range(run.pipeline_parallel)]
