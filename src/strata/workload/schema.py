"""Training job files: `kind: TrainingJob`.

What one value may be is said by the pydantic models; what values mean together, and whether the model and the
profile they name can be read, by `job_from_document`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from strata import units
from strata.errors import BadFile, Fault, UsageError
from strata.files import Document, FileModel, Tokens, Usd, file_or_bundled, read_document
from strata.workload.huggingface import model
from strata.workload.job import PRECISION_BYTES, Limits, Objective, Recompute, Schedule, TrainingJob
from strata.workload.model import ModelSpec
from strata.workload.pins import Pins
from strata.workload.precision import MEMORY_HEADROOM
from strata.workload.profile import LayerProfile, load_profile

DEFAULT_LOCAL_STEPS: Final = (8, 32, 128)
"""H where a job allows DiLoCo and states none; the DiLoCo papers study 1 to 1000 (arXiv 2311.08105, fig. 4)."""

BUNDLED_JOBS: Final = Path(__file__).parent / "jobs"
"""The training jobs that come with strata."""

_COMPRESSED_BITS: Final = {"int8": 8, "int4": 4}

_MOST: Final = 10**9

Item = TypeVar("Item")


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError("value", "{text}", {"text": text})


def _whole(value: Any) -> int:
    try:
        number = units.parse(value, "tokens")
    except UsageError as error:
        raise _wrong(str(error)) from None
    if not 1 <= number <= _MOST or number != int(number):
        raise _wrong(f"{value!r} is not a whole number from 1 to {_MOST}")
    return int(number)


MAX_BATCH: Final = 65_536
"""Sequences of a step: the largest batch published (BERT with LAMB); the cost model steps through microbatches."""


def _batch(value: Any) -> int | str:
    """Sequences as they are; a text with `tokens` is checked here and divided once the sequence is known."""
    if isinstance(value, str):
        if "tokens" not in value:
            raise _wrong(f"{value!r} has no unit of a batch; write 1024 (sequences) or '4Mi tokens'")
        if _tokens(value) < 1:
            raise _wrong(f"{value!r} is not a valid batch size; write 1024 (sequences) or '4Mi tokens'")
        return value
    batch = _whole(value)
    if batch > MAX_BATCH:
        raise _wrong(f"{value!r} is more than strata plans for; a batch has at most {MAX_BATCH:,} sequences")
    return batch


def _tokens(value: str) -> float:
    try:
        return units.parse(value, "tokens")
    except UsageError as error:
        raise _wrong(str(error)) from None


def _share(value: Any) -> Any:
    """Read `8%` as 0.08; leave numbers to the field."""
    if isinstance(value, str):
        try:
            return units.parse_share(value)
        except UsageError as error:
            raise _wrong(str(error)) from None
    return value


def _listed(value: Any) -> Any:
    """Accept one value where a list may stand."""
    return value if isinstance(value, (list, tuple)) else [value]


Name = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int | str)]
Batch = Annotated[int | str, BeforeValidator(_batch, json_schema_input_type=int | str)]
Share = Annotated[float, BeforeValidator(_share, json_schema_input_type=float | str), Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Compression = Literal["none", "int8", "int4"]


class SyncEntry(FileModel):
    """How gradients cross domains: every step, or every H steps (`diloco`) where `mode` lists it."""

    mode: Annotated[tuple[Literal["sync", "diloco"], ...], BeforeValidator(_listed), Field(min_length=1)] = (
        "sync",
    )
    local_steps: Annotated[tuple[Whole, ...], BeforeValidator(_listed), Field(min_length=1)] | None = None
    compress: Annotated[tuple[Compression, ...], BeforeValidator(_listed), Field(min_length=1)] = ("none",)


class TrainEntry(FileModel):
    """How the model is trained. `global_batch` is in sequences, or `4Mi tokens`."""

    global_batch: Batch
    sequence: Whole
    precision: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    recompute: Literal["auto", "none", "full", "selective"] = "auto"
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    schedules: Annotated[tuple[Schedule, ...], BeforeValidator(_listed), Field(min_length=1)] | None = None
    sync: SyncEntry = SyncEntry()
    zero: Annotated[tuple[Literal[0, 1, 2, 3], ...], BeforeValidator(_listed), Field(min_length=1)] = (0, 1)


class ParallelEntry(FileModel):
    """What is fixed of the layout; what is absent the planner chooses. `data` counts all copies of the model."""

    tensor: Whole | None = None
    pipeline: Whole | None = None
    data: Whole | None = None
    microbatch: Whole | None = None


class GoalEntry(FileModel):
    """What to minimise; `weights` of (efficiency, utilisation, communication) for reward and tchebycheff."""

    minimize: Objective = Objective.TIME
    weights: tuple[Weight, Weight, Weight] = (0.4, 0.3, 0.3)

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: tuple[float, float, float]) -> tuple[float, float, float]:
        if sum(weights) == 0:
            raise _wrong("all weights are zero")
        return weights


class LimitsEntry(FileModel):
    """Bounds a plan must keep; what is absent is not bounded. `cost` is per step."""

    cost: Annotated[Usd, Field(gt=0)] | None = None
    tokens_per_s: Annotated[Tokens, Field(gt=0)] | None = None
    domains: Annotated[list[Name], Field(min_length=1)] | None = None
    memory_headroom: Annotated[Share, Field(ge=0, lt=1)] = MEMORY_HEADROOM


class TrainingJobFile(FileModel):
    """`kind: TrainingJob`. `model`: a shipped name, a config.json or a folder with one; paths from this file."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainingJob"]
    name: Name
    model: Name
    profile: Name | None = None
    train: TrainEntry
    parallel: ParallelEntry = ParallelEntry()
    home: Name | None = None
    goal: GoalEntry = GoalEntry()
    limits: LimitsEntry = LimitsEntry()
    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    calibration: dict[Name, Annotated[float, Field(gt=0, le=20)]] = Field(default_factory=dict)


def load_job(source: str | Path) -> TrainingJob:
    """Read a training job file, or a bundled job by its name where no such file exists.

    Raises BadFile with every fault, UsageError where there is neither file nor bundled job.
    """
    path = file_or_bundled(source, BUNDLED_JOBS, what="job")
    return job_from_document(read_document(path), path.parent)


def job_from_document(document: Document, base: Path) -> TrainingJob:
    """Build a job from a parsed file; relative paths start at `base`. Raises BadFile with every fault."""
    faults: list[Fault] = []
    try:
        file = document.check(TrainingJobFile)
    except BadFile as error:
        faults.extend(error.faults)
    spec = model_at(document, base, faults)
    profile = _profile(document, base, spec, faults)
    if not faults and spec is not None:
        faults.extend(_relations(document, file, spec))
    if faults or spec is None:
        raise BadFile(sorted(faults, key=lambda fault: (fault.path != document.path, fault.line, fault.column)))
    return _job(file, spec, profile)


def model_at(document: Document, base: Path, faults: list[Fault]) -> ModelSpec | None:
    """Return the model that a job names, or None with what is wrong appended to `faults`."""
    source = _text_at(document, "model")
    if source is None:
        return None
    try:
        return model(source, base=base)
    except BadFile as error:
        faults.extend(error.faults)
    except UsageError as error:
        faults.append(document.fault(("model",), "; ".join((str(error), *([error.hint] if error.hint else [])))))
    return None


def _profile(document: Document, base: Path, spec: ModelSpec | None, faults: list[Fault]) -> LayerProfile | None:
    source = _text_at(document, "profile")
    if source is None or spec is None:
        return None
    try:
        return load_profile(base / source, num_layers=len(spec.kinds))
    except BadFile as error:
        faults.extend(error.faults)
    except UsageError as error:
        faults.append(document.fault(("profile",), str(error)))
    return None


def _text_at(document: Document, key: str) -> str | None:
    value = document.data.get(key) if isinstance(document.data, dict) else None
    return value if isinstance(value, str) and value else None


def _relations(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    train, sync = file.train, file.train.sync
    if spec.max_sequence_length is not None and train.sequence > spec.max_sequence_length:
        yield document.fault(
            ("train", "sequence"), f"{spec.name} has learned positions for only {spec.max_sequence_length} tokens"
        )
    if isinstance(train.global_batch, str):
        sequences = _sequences(train)
        if sequences > MAX_BATCH:
            yield document.fault(
                ("train", "global_batch"),
                f"{train.global_batch!r} is {sequences:,.0f} sequences; a batch has at most {MAX_BATCH:,}",
            )
        elif sequences != int(sequences):
            near = [n for n in (math.floor(sequences), math.ceil(sequences)) if n > 0]
            yield document.fault(
                ("train", "global_batch"),
                f"{train.global_batch!r} is not a whole number of sequences of {train.sequence}; "
                f"write {' or '.join(map(str, near))}",
            )
    if sync.local_steps is not None and "diloco" not in sync.mode:
        yield document.fault(("train", "sync", "local_steps"), "local steps need mode: [sync, diloco]")
    if file.home is not None and file.limits.domains is not None and file.home not in file.limits.domains:
        yield document.fault(("home",), f"{file.home!r} is not one of limits.domains")
    yield from _layout(document, file, spec)


def _layout(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    """Yield what no layout can be: sizes that do not divide the heads or the batch, stages without a layer."""
    parallel, batch = file.parallel, _sequences(file.train)
    if parallel.tensor is not None and spec.num_heads % parallel.tensor:
        message = f"{parallel.tensor} does not divide the {spec.num_heads} attention heads of {spec.name}"
        yield document.fault(("parallel", "tensor"), message)
    if parallel.pipeline is not None and parallel.pipeline > len(spec.kinds):
        message = f"more stages than {spec.name} has layers ({len(spec.kinds)}, embedding and head included)"
        yield document.fault(("parallel", "pipeline"), message)
    if batch != int(batch):
        return
    if parallel.data is not None and batch % parallel.data:
        message = f"{parallel.data} copies do not divide a global batch of {batch:g} sequences"
        yield document.fault(("parallel", "data"), message)
    elif parallel.microbatch is not None and parallel.microbatch * (parallel.data or 1) > batch:
        each = f" on each of {parallel.data} copies" if parallel.data is not None else ""
        message = f"{parallel.microbatch} samples{each} are more than a global batch of {batch:g} sequences"
        yield document.fault(("parallel", "microbatch"), message)


def _sequences(train: TrainEntry) -> float:
    batch = train.global_batch
    return _tokens(batch) / train.sequence if isinstance(batch, str) else float(batch)


def _job(file: TrainingJobFile, spec: ModelSpec, profile: LayerProfile | None) -> TrainingJob:
    train, sync, limits = file.train, file.train.sync, file.limits
    element_bytes = PRECISION_BYTES[train.precision]
    job = TrainingJob(
        name=file.name,
        model_name=spec.name,
        spec=spec,
        layers=spec.layer_table(train.sequence, element_bytes),
        sequence_length=train.sequence,
        num_heads=spec.num_heads,
        global_batch=int(_sequences(train)),
        precision=train.precision,
        optimizer=train.optimizer,
        recompute=(Recompute.NONE, Recompute.FULL) if train.recompute == "auto" else (Recompute(train.recompute),),
        zero_stages=_unique(train.zero),
        expert_imbalance=train.expert_imbalance,
        local_steps=_unique(sync.local_steps or DEFAULT_LOCAL_STEPS) if "diloco" in sync.mode else (),
        gradient_compression=_unique([compression_factor(name, element_bytes) for name in sync.compress]),
        home=file.home,
        objective=file.goal.minimize,
        weights=file.goal.weights,
        limits=Limits(
            cost_usd_per_step=limits.cost,
            tokens_per_s=limits.tokens_per_s,
            domains=frozenset(limits.domains) if limits.domains is not None else None,
            memory_headroom=limits.memory_headroom,
        ),
        flops_efficiency=file.efficiency,
        calibration=file.calibration,
        profile=profile,
        pins=Pins(**file.parallel.model_dump()),
    )
    return job if train.schedules is None else replace(job, schedules=_unique(train.schedules))


def compression_factor(compression: Compression, element_bytes: float) -> float:
    """Return by what a gradient in compute precision shrinks."""
    return 1.0 if compression == "none" else 8 * element_bytes / _COMPRESSED_BITS[compression]


def _unique(values: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(values))
