"""A published run as the product describes it: its machines, its job, and the layout it ran with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from strata.evaluation.published_benchmarks.published_run import PublishedRun
from strata.evaluation.published_benchmarks.published_software import software_of
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.pipeline import classic_warmup
from strata.simulate.report import StepReport
from strata.workload.job import Limits, Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import layers_of

_PLACE: Final = "here"
_INTRA_LATENCY_S: Final = 5e-6
_NETWORK_LATENCY_S: Final = 10e-6
"""Latencies nobody publishes: a fleet file's own defaults."""

_TORCHTITAN_BYTES_PER_S: Final = 2.4e12
"""Memory bandwidth of torchtitan's H100s, which are none that is sold (96 GB of HBM2e; its
benchmarks/llama3_h100_202412_torchtitan.md)."""

_RACK: Final = 72
"""Devices that NVLink joins in one rack of GB200 or GB300, whose trays hold four."""

_MOST_MICROBATCH: Final = 64

_ABOUT_FITS: Final = 1.15
"""Of a card's memory: a layout that this much is predicted to take may have been the one that ran, as the memory
model is not better than that."""


FRAGMENTS: Final = 1.1
"""PyTorch's allocator over what is in use: torchtitan publishes the most that it reserved. Assumed."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A run's layout with what was not published filled in, and what the cost model says of it.

    fragments: what the allocator keeps over what is needed.
    """

    plan: TrainingPlan
    report: StepReport
    fragments: float = 1.0

    @property
    def memory_bytes(self) -> float:
        """What the fullest device needs."""
        return max(stage.memory_bytes for stage in self.report.stages)

    @property
    def reserved_bytes(self) -> float:
        """What the allocator of the fullest device keeps for that, as peaks are published."""
        return self.memory_bytes * self.fragments


def evaluate(run: PublishedRun) -> LayoutChoice:
    """Return the fastest layout the row leaves open that about fits; where none does, the one of least memory.

    Experts of a row that spreads them over no devices, and so does not fit, are over as few as do, or as have
    what else is there outweigh them: the run ran.
    """
    fleet, job = fleet_of(run), job_of(run)
    plans = list(layouts(run))
    fragments = FRAGMENTS if job.software.transformer_engine is False else 1.0
    reports = StepModel(fleet, job).reports(plans)
    choices = [LayoutChoice(plan, report, fragments) for plan, report in zip(plans, reports, strict=True)]
    room = run.accelerator.memory_bytes * _ABOUT_FITS
    fitting = [choice for choice in choices if choice.memory_bytes <= room]
    if fitting:
        return min(fitting, key=lambda choice: choice.report.step_time_s)
    least = min(choices, key=lambda choice: choice.memory_bytes)
    if run.spec.experts is None or run.expert_parallel > 1:
        return least
    most = gcd(run.spec.experts.num_experts, run.data_parallel)
    spread = [evaluate(replace(run, expert_parallel=n)) for n in _powers(most)[1:] if most % n == 0]
    enough = max(room, 1.1 * min(choice.memory_bytes for choice in [least, *spread]))
    return next(choice for choice in [least, *spread] if choice.memory_bytes <= enough)


def fleet_of(run: PublishedRun) -> Fleet:
    """Return the machines of a run as one domain."""
    card = run.accelerator
    if run.source.casefold().startswith("torchtitan") and card.name.startswith("H100"):
        card = replace(card, memory_bandwidth_bytes_per_s=_TORCHTITAN_BYTES_PER_S)
    assert card.interconnect_bytes_per_s is not None, "refused when the row was read"
    node = run.gpus_per_node
    if card.interconnect.endswith("-rack"):
        node = max(count for count in range(1, _RACK + 1) if run.num_gpus % count == 0)
    here = Domain(
        name=_PLACE,
        accelerator=card,
        num_devices=run.num_gpus,
        devices_per_node=node,
        intra_bandwidth_bytes_per_s=card.interconnect_bytes_per_s / 2,
        intra_latency_s=_INTRA_LATENCY_S,
        network_bandwidth_bytes_per_s=run.node_network_bytes_per_s * node / run.gpus_per_node,
        network_latency_s=_NETWORK_LATENCY_S,
    )
    return Fleet("published", (here,), {})


def job_of(run: PublishedRun) -> TrainingJob:
    """Return what a run trained. All memory of a card counts: a run that was published ran."""
    software = software_of(run)
    return TrainingJob(
        name=run.name,
        model_name=run.spec.name,
        spec=run.spec,
        layers=layers_of(run.spec, run.sequence_length, precision=run.precision, software=software),
        sequence_length=run.sequence_length,
        num_heads=run.spec.divided_heads,
        global_batch=run.global_batch,
        precision=run.precision,
        software=software,
        limits=Limits(memory_headroom=0.0),
    )


def layouts(run: PublishedRun) -> Iterator[TrainingPlan]:
    """Yield every plan that agrees with a row: one, unless microbatch or virtual stages are free."""
    each = run.global_batch // run.data_parallel
    sizes = [run.microbatch] if run.microbatch else [n for n in _powers(_MOST_MICROBATCH) if each % n == 0]
    if run.pipeline_parallel > 1 and run.source.casefold().startswith("torchtitan"):
        # As many microbatches as stages where none is stated, and shards that are fetched and summed once a step.
        sizes = sizes if run.microbatch else [max(1, each // run.pipeline_parallel)]
        run = replace(run, zero_stage=min(run.zero_stage, 1))
    deepest = -(-run.spec.num_layers // run.pipeline_parallel)
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
        stages.append(
            Stage(_PLACE, first, layers, run.tensor_parallel, min(warmup, count - 1), run.context_parallel)
        )
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
        # Experts are spread over tensor ranks first, whole; a plan shards each of them there, which is as many.
        expert_parallel=gcd(
            max(1, run.expert_parallel // run.tensor_parallel), run.data_parallel * run.context_parallel
        ),
    )


def _blocks(run: PublishedRun) -> list[int]:
    """Return the blocks of each stage: as even as they go, the first and last stage the first to have one less."""
    each, more = divmod(run.spec.num_layers, run.pipeline_parallel)
    inner = [*range(1, run.pipeline_parallel - 1), 0, run.pipeline_parallel - 1][:more]
    return [each + (index in inner) for index in range(run.pipeline_parallel)]
