"""Serving job files: `kind: ServingJob`.

What one value may be is said by the pydantic models; what values mean together, and whether the model they name
can be read, by `serving_job_from_document`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from strata.errors import BadFile, Fault
from strata.files import Document, FileModel, Seconds, file_or_bundled, read_document
from strata.workload.inference import ModelInfo
from strata.workload.job_entries import Name, Share, Whole
from strata.workload.model import ModelSpec
from strata.workload.precision import MEMORY_HEADROOM
from strata.workload.schema import model_at
from strata.workload.serving_job import (
    MOST_SEQUENCES,
    STEP_TOKENS,
    Demand,
    Kv,
    ServingJob,
    ServingRatios,
    Weights,
)

BUNDLED_SERVING_JOBS: Final = Path(__file__).parent / "serving_jobs"
"""The serving jobs that come with strata."""

_PER_S: Final = {"s": 1.0, "min": 1 / 60, "h": 1 / 3600}


def _rate(value: Any) -> Any:
    """Read `28/s` or `1700/min` as requests a second; leave numbers to the field."""
    if not isinstance(value, str):
        return value
    number, _, unit = value.partition("/")
    try:
        return float(number) * _PER_S[unit.strip() or "s"]
    except (ValueError, KeyError):
        text = f"{value!r} is not a rate; write 28/s, 1700/min or 28"
        raise PydanticCustomError("value", "{text}", {"text": text}) from None


Rate = Annotated[
    float, BeforeValidator(_rate, json_schema_input_type=float | str), Field(ge=0, allow_inf_nan=False)
]
Goal = Annotated[Seconds, Field(gt=0)]
Efficiency = Annotated[float, Field(gt=0, le=1)]


class DemandEntry(FileModel):
    """What is asked: tokens of a request (means), sequences a decode step, requests a second (0: not known).

    longest: most tokens of a request, prompt and output together; the model's limit where it is left out.
    """

    prompt: Whole
    output: Whole
    batch: Whole = 16
    rate: Rate = 0.0
    longest: Whole | None = None


class GoalsEntry(FileModel):
    """Most time to the first token, and per token after it; what is absent is not bounded."""

    ttft: Goal | None = None
    tpot: Goal | None = None


class PrecisionEntry(FileModel):
    """How the blocks' weights and the KV cache are stored; embedding and head stay in 16 bits."""

    weights: Weights = "bf16"
    kv: Kv = "bf16"


class EfficiencyEntry(FileModel):
    """Shares of published peaks that prefill (FLOPs) and decoding (memory bandwidth) reach; empty: by kernels."""

    flops: Efficiency | None = None
    bandwidth: Efficiency | None = None


class EngineEntry(FileModel):
    """Limits of the engines: sequences decoded together, tokens of prompts read in one step."""

    sequences: Whole = MOST_SEQUENCES
    step_tokens: Whole = STEP_TOKENS


Ratio = Annotated[float, Field(gt=0, le=1000)]


class RatiosEntry(FileModel):
    """What `strata serve calibrate` printed of one accelerator: times measured over those expected.

    step: a decode step, cached tokens left out; sequence: added by each sequence, as a share of a step with one;
    context: cached tokens; prompt: tokens of prompts. request_s: seconds of every request besides, to its first
    token.
    """

    step: Ratio = 1.0
    sequence: Annotated[float, Field(ge=0, le=1000)] = 0.0
    context: Ratio = 1.0
    prompt: Ratio = 1.0
    request_s: Annotated[float, Field(ge=0, le=1000)] = 0.0


class ServingJobFile(FileModel):
    """`kind: ServingJob`. `model`: a shipped name, a config.json or a folder with one; paths from this file."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ServingJob"]
    name: Name
    model: Name
    demand: DemandEntry
    goals: GoalsEntry = GoalsEntry()
    precision: PrecisionEntry = PrecisionEntry()
    memory_headroom: Annotated[Share, Field(ge=0, lt=1)] = MEMORY_HEADROOM
    efficiency: EfficiencyEntry = EfficiencyEntry()
    calibration: dict[Name, RatiosEntry] = Field(default_factory=dict)
    engine: EngineEntry = EngineEntry()
    strategy: Literal["auto", "dp", "greedy"] = "auto"
    routing: Literal["auto", "dp", "rr"] = "auto"


def load_serving_job(source: str | Path) -> ServingJob:
    """Read a serving job file, or a bundled one by its name where no such file exists.

    Raises BadFile with every fault, UsageError where there is neither file nor bundled job.
    """
    path = file_or_bundled(source, BUNDLED_SERVING_JOBS, what="serving job")
    return serving_job_from_document(read_document(path), path.parent)


def serving_job_from_document(document: Document, base: Path) -> ServingJob:
    """Build a job from a parsed file; relative paths start at `base`. Raises BadFile with every fault."""
    faults: list[Fault] = []
    try:
        file = document.check(ServingJobFile)
    except BadFile as error:
        faults.extend(error.faults)
    spec = model_at(document, base, faults)
    if not faults and spec is not None:
        longest, needed = spec.max_sequence_length, file.demand.prompt + file.demand.output
        if longest is not None and needed > longest:
            message = (
                f"{spec.name} has learned positions for only {longest} tokens, but prompt and output are {needed}"
            )
            faults.append(document.fault(("demand", "prompt"), message))
        if file.demand.longest is not None and not needed <= file.demand.longest <= (
            spec.context_limit or math.inf
        ):
            message = f"should be between {needed}, the mean prompt and output, and the model's limit"
            if spec.context_limit:
                message += f" of {spec.context_limit} tokens"
            faults.append(document.fault(("demand", "longest"), message))
    if faults or spec is None:
        raise BadFile(sorted(faults, key=lambda fault: (fault.path != document.path, fault.line, fault.column)))
    return _job(file, spec)


def _job(file: ServingJobFile, spec: ModelSpec) -> ServingJob:
    demand, goals, precision = file.demand, file.goals, file.precision
    job = ServingJob(
        name=file.name,
        model=ModelInfo.of(spec),
        demand=Demand(
            batch=demand.batch,
            prompt_tokens=demand.prompt,
            output_tokens=demand.output,
            ttft_goal_s=math.inf if goals.ttft is None else goals.ttft,
            tpot_goal_s=math.inf if goals.tpot is None else goals.tpot,
            rate_per_s=demand.rate,
        ),
        memory_headroom=file.memory_headroom,
        flops_efficiency=file.efficiency.flops,
        bandwidth_efficiency=file.efficiency.bandwidth,
        strategy=file.strategy,
        routing=file.routing,
        longest_tokens=demand.longest or 0,
        calibration={
            name: ServingRatios(entry.step, entry.sequence, entry.context, entry.prompt, entry.request_s)
            for name, entry in file.calibration.items()
        },
        sequences=file.engine.sequences,
        step_tokens=file.engine.step_tokens,
    )
    return job.stored(weights=precision.weights, kv=precision.kv)
