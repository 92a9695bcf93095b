"""Layouts as people write them, `kind: TrainingLayout`: a few degrees, made into a plan of the model's layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AliasChoices, BeforeValidator, Field

from strata.errors import BadFile, Fault
from strata.files import Document, FileModel, read_document
from strata.names import closest
from strata.simulate.analytic import StepModel
from strata.simulate.pipeline import classic_warmup, latency_aware_warmup
from strata.simulate.pipeline_times import stack
from strata.training.plan.legality import misfits
from strata.workload.job import ContextExchange, Recompute, Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan


def _listed(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, gt=0)]


class TrainingLayoutFile(FileModel):
    """`kind: TrainingLayout`. `data`: copies of the model in all; `pipeline`: stages of each pipeline.

    Several `domains` are one pipeline in their order, or one each (`across: data`). `stages`: of each domain;
    `layers`: transformer blocks of each stage (embedding and head go with the ends); equal where absent.
    """

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainingLayout"]
    name: str = ""
    model: Name | None = None
    domains: Annotated[list[Name], BeforeValidator(_listed), Field(min_length=1)] | None = Field(
        default=None, validation_alias=AliasChoices("domains", "domain")
    )
    across: Literal["pipeline", "data"] = "pipeline"
    tensor: Count = 1
    pipeline: Count = 1
    data: Count = 1
    microbatch: Count = 1
    microbatches: Count | None = None
    stages: list[Count] | None = None
    layers: list[Count] | None = None
    schedule: Schedule = Schedule.ONE_F_ONE_B
    virtual_stages: Count = 1
    recompute: Recompute = Recompute.NONE
    zero: Annotated[int, Field(strict=True, ge=0, le=3)] = 0
    shard_group: Count | None = None
    context: Count = 1
    context_exchange: ContextExchange = ContextExchange.RING
    expert: Count = 1
    recompute_layers: Count | None = None
    activation_offload: Annotated[float, Field(ge=0, le=1)] = 0.0


def load_layout(path: str | Path) -> TrainingLayoutFile:
    """Read a layout file by itself. Raises BadFile with every fault."""
    return read_document(path).check(TrainingLayoutFile)


def layout_plan(document: Document, model: StepModel) -> TrainingPlan:
    """Return the plan that a layout means for a job on a fleet. Raises BadFile with every fault."""
    file = document.check(TrainingLayoutFile)
    names = [domain.name for domain in model.fleet.domains]
    domains = file.domains or names
    faults = [*_faults(document, file, model.job, names)]
    if faults:
        raise BadFile(faults)
    separate = file.across == "data" and len(domains) > 1
    rows = [[name] for name in domains] if separate else [domains]
    copies = file.data // len(rows)
    count = file.microbatches or -(-model.job.global_batch // (file.microbatch * file.data))
    pipelines = tuple(Pipeline(_stages(file, model.job, row, count), copies, count) for row in rows)
    folded = file.schedule is Schedule.DUAL_PIPE_V
    plan = TrainingPlan(
        pipelines, file.microbatch, file.schedule, file.recompute, file.zero,
        virtual_stages=2 if folded else file.virtual_stages,
        shard_group=file.shard_group, context_exchange=file.context_exchange, expert_parallel=file.expert,
        activation_offload=file.activation_offload,
    )  # fmt: skip
    if 0 <= plan.num_samples - model.job.global_batch < file.microbatch * file.data:
        plan = plan.with_samples(model.job.global_batch)  # last microbatches are short
    return _deeper(model, plan) if file.schedule is Schedule.LATENCY_AWARE else plan


def _faults(
    document: Document, file: TrainingLayoutFile, job: TrainingJob, names: Sequence[str]
) -> Iterator[Fault]:
    domains, blocks = file.domains or names, _blocks(job)
    if file.model is not None and file.model != job.model_name:
        yield document.fault(("model",), f"a layout of {file.model}, and the job trains {job.model_name}")
    if file.domains is None and len(names) > 1:
        yield document.fault((), f"does not say which domains it is for; add `domains: {names[0]}` or a list")
    for name in file.domains or ():
        if name not in names:
            close = closest(name, names)
            meant = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
            key = "domain" if "domain" in document.data else "domains"
            yield document.fault((key,), f"no domain {name!r} in the fleet ({meant})")
    if file.expert > 1 and (job.spec is None or job.spec.experts is None):
        yield document.fault(("expert",), "the job's model has no experts")
    if file.schedule is Schedule.DUAL_PIPE_V and file.virtual_stages not in (1, 2):
        yield document.fault(("virtual_stages",), "dualpipev has 2 chunks a stage")
    if file.context > job.sequence_length:
        message = f"more ranks than a sequence has tokens ({job.sequence_length})"
        yield document.fault(("context",), message)
    if file.across == "data" and file.data % len(domains):
        yield document.fault(("data",), f"{file.data} copies cannot be shared by {len(domains)} domains alike")
    if job.global_batch % file.data:
        message = f"{file.data} copies do not divide the job's global batch of {job.global_batch} sequences"
        yield document.fault(("data",), message)
    if file.across == "pipeline":
        yield from _shared(document, file, len(domains))
    if file.pipeline > blocks:
        yield document.fault(("pipeline",), f"more stages than the model has transformer blocks ({blocks})")
    if file.layers is not None and (len(file.layers), sum(file.layers)) != (file.pipeline, blocks):
        message = (
            f"{sum(file.layers)} blocks on {len(file.layers)} stages, where there are {blocks} on {file.pipeline}"
        )
        yield document.fault(("layers",), message)


def _shared(document: Document, file: TrainingLayoutFile, count: int) -> Iterator[Fault]:
    """Yield what is wrong with how the stages of one pipeline are shared by domains."""
    if file.stages is None and file.pipeline % count:
        message = (
            f"{file.pipeline} stages cannot be shared by {count} domains alike; add `stages:`, one number each"
        )
        yield document.fault(("pipeline",), message)
    if file.stages is not None and (len(file.stages), sum(file.stages)) != (count, file.pipeline):
        message = (
            f"{sum(file.stages)} stages in {len(file.stages)} domains, where there are {file.pipeline} in {count}"
        )
        yield document.fault(("stages",), message)


def _blocks(job: TrainingJob) -> int:
    return len(job.layers) - sum(kind in ("embedding", "head") for kind in job.layers.kinds)


def _stages(file: TrainingLayoutFile, job: TrainingJob, domains: list[str], count: int) -> tuple[Stage, ...]:
    """Return the stages of one pipeline over domains in their order."""
    depth, blocks = file.pipeline, _blocks(job)
    each = file.stages if file.stages and len(domains) > 1 else [depth // len(domains)] * len(domains)
    where = [name for name, stages in zip(domains, each, strict=True) for _ in range(stages)]
    sizes = list(file.layers or [blocks // depth + (stage < blocks % depth) for stage in range(depth)])
    sizes[0] += job.layers.kinds[0] == "embedding"
    # Folded, the model ends where it begins.
    sizes[0 if file.schedule is Schedule.DUAL_PIPE_V else -1] += job.layers.kinds[-1] == "head"
    firsts = [0, *accumulate(sizes)]
    warmup = [count - 1] * depth if file.schedule is Schedule.GPIPE else classic_warmup(depth)
    # Who writes a layout counts blocks: the embedding is not recomputed.
    more = job.layers.kinds[0] == "embedding"
    again = [file.recompute_layers and file.recompute_layers + (more and first == 0) for first in firsts]
    return tuple(
        Stage(name, first, size, file.tensor, min(ahead, count - 1), file.context, some)
        for name, first, size, ahead, some in zip(where, firsts, sizes, warmup, again, strict=False)
    )


def _deeper(model: StepModel, plan: TrainingPlan) -> TrainingPlan:
    """Return the plan with the warm-ups that hide link latency, where its links are known."""
    if misfits(model, plan):
        return plan
    pipelines = []
    for pipeline in plan.pipelines:
        depth = latency_aware_warmup(stack([model.times(plan, pipeline)]), pipeline.microbatches)[0]
        deepest = np.minimum(depth, pipeline.microbatches - 1)
        stages = tuple(replace(s, warmup=int(w)) for s, w in zip(pipeline.stages, deepest, strict=True))
        pipelines.append(replace(pipeline, stages=stages))
    return replace(plan, pipelines=tuple(pipelines))
