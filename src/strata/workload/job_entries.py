"""What one value of a training job file may be: the pydantic models of `kind: TrainingJob`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from strata import units
from strata.errors import UsageError
from strata.files import FileModel, Seconds, Tokens, Usd
from strata.workload.job import Objective, Schedule
from strata.workload.precision import MEMORY_HEADROOM
from strata.workload.software_schema import SoftwareEntry

_MOST: Final = 10**9


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
    recompute: Literal["auto", "none", "full", "selective", "selective_op"] = "auto"
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    schedules: Annotated[tuple[Schedule, ...], BeforeValidator(_listed), Field(min_length=1)] | None = None
    sync: SyncEntry = SyncEntry()
    zero: Annotated[tuple[Literal[0, 1, 2, 3], ...], BeforeValidator(_listed), Field(min_length=1)] = (0, 1)

    @property
    def num_sequences(self) -> float:
        """Return the sequences of a step: a fraction where the tokens asked for are no whole number of them."""
        batch = self.global_batch
        return _tokens(batch) / self.sequence if isinstance(batch, str) else float(batch)


class ParallelEntry(FileModel):
    """What is fixed of the layout; what is absent the planner chooses. `data` counts all copies of the model.

    `stages`: the domains of every plan, each with the stages that a copy has there.
    """

    tensor: Whole | None = None
    pipeline: Whole | None = None
    data: Whole | None = None
    microbatch: Whole | None = None
    context: Whole | None = None
    expert: Whole | None = None
    virtual_stages: Whole | None = None
    stages: Annotated[dict[Annotated[str, Field(min_length=1)], Whole], Field(min_length=1)] | None = None


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


class RunEntry(FileModel):
    """How the scheduler runs the job: `command` for every rank, until `steps` optimizer steps are done.

    save_every: steps between checkpoints. resume: the program does what docs/training-program.md asks, so it may
    be moved; preemptible: also to make room for others. priority: larger goes first. weight: of the owner's fair
    share. min_devices, max_devices: it may run on any number between. grace: from the request to stop to the kill.
    """

    command: Annotated[tuple[Name, ...], Field(min_length=1)]
    steps: Whole
    save_every: Whole | None = None
    resume: bool = False
    preemptible: bool = False
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    owner: str = ""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    min_devices: Whole | None = None
    max_devices: Whole | None = None
    grace: Annotated[Seconds, Field(ge=0, le=3600)] = 60.0


class TrainingJobFile(FileModel):
    """`kind: TrainingJob`. `model`: a shipped name, a config.json or a folder with one; paths from this file.

    run: only for jobs that are submitted.
    """

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
    software: SoftwareEntry = SoftwareEntry()
    run: RunEntry | None = None
