"""Training job files: `kind: TrainingJob`.

`job_entries` says what one value may be, `job_faults` what values contradict; here a file becomes a job, with the
model and the profile that it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from strata.errors import BadFile, Fault, UsageError
from strata.files import Document, file_or_bundled, read_document
from strata.workload.huggingface import model
from strata.workload.job import ANY_RECOMPUTE, PRECISION_BYTES, Limits, Recompute, TrainingJob
from strata.workload.job_entries import Compression, ParallelEntry, RunEntry, TrainingJobFile
from strata.workload.job_faults import contradictions, nearest_degrees
from strata.workload.layer_table import layer_table
from strata.workload.layers import LayerTable
from strata.workload.model import ModelSpec
from strata.workload.pins import Pins
from strata.workload.precision import PRODUCT_INPUT_BYTES
from strata.workload.profile import LayerProfile, load_profile
from strata.workload.software import PLAIN, Software
from strata.workload.software_schema import software_of

DEFAULT_LOCAL_STEPS: Final = (8, 32, 128)
"""H where a job allows DiLoCo and states none; the DiLoCo papers study 1 to 1000 (arXiv 2311.08105, fig. 4)."""

BUNDLED_JOBS: Final = Path(__file__).parent / "jobs"
"""The training jobs that come with strata."""

_COMPRESSED_BITS: Final = {"int8": 8, "int4": 4}

Item = TypeVar("Item")


def load_job(source: str | Path) -> TrainingJob:
    """Read a training job file, or a bundled job by its name where no such file exists.

    Raises BadFile with every fault, UsageError where there is neither file nor bundled job.
    """
    path = file_or_bundled(source, BUNDLED_JOBS, what="job")
    return job_from_document(read_document(path), path.parent)


def load_run(source: str | Path) -> RunEntry | None:
    """Return how a job file has its job run, None where it does not say. Raises as `load_job` does."""
    path = file_or_bundled(source, BUNDLED_JOBS, what="job")
    return read_document(path).check(TrainingJobFile).run


def job_from_document(document: Document, base: Path) -> TrainingJob:
    """Build a job from a parsed file; relative paths start at `base`. Raises BadFile with every fault."""
    faults: list[Fault] = []
    try:
        file = document.check(TrainingJobFile)
    except BadFile as error:
        faults.extend(error.faults)
    spec = model_at(document, base, faults)
    profile = _profile(document, base, spec, faults)
    hint = None
    if not faults and spec is not None:
        faults.extend(contradictions(document, file, spec))
        near = ", ".join(f"{name}: {degree}" for name, degree in nearest_degrees(file, spec).items())
        hint = f"parallel: {{{near}}}" if near else None
    if faults or spec is None:
        faults.sort(key=lambda fault: (fault.path != document.path, fault.line, fault.column))
        raise BadFile(faults, hint=hint)
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


def _job(file: TrainingJobFile, spec: ModelSpec, profile: LayerProfile | None) -> TrainingJob:
    train, sync, limits = file.train, file.train.sync, file.limits
    element_bytes = PRECISION_BYTES[train.precision]
    job = TrainingJob(
        name=file.name,
        model_name=spec.name,
        spec=spec,
        layers=layers_of(spec, train.sequence, precision=train.precision, software=software_of(file.software)),
        sequence_length=train.sequence,
        num_heads=spec.divided_heads,
        global_batch=int(train.num_sequences),
        precision=train.precision,
        optimizer=train.optimizer,
        recompute=ANY_RECOMPUTE if train.recompute == "auto" else (Recompute(train.recompute),),
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
        software=software_of(file.software),
        profile=profile,
        pins=pins_of(file.parallel),
    )
    return job if train.schedules is None else replace(job, schedules=_unique(train.schedules))


def pins_of(parallel: ParallelEntry) -> Pins:
    """Return what a job's `parallel:` fixes."""
    stages = None if parallel.stages is None else tuple(parallel.stages.items())
    return Pins(**parallel.model_dump(exclude={"stages"}), stages=stages)


def layers_of(spec: ModelSpec, sequence: int, *, precision: str, software: Software = PLAIN) -> LayerTable:
    """Return a model's layers as a job computes them, sequences of so many tokens in this precision."""
    is_engine = software.transformer_engine
    return layer_table(
        spec,
        sequence,
        PRECISION_BYTES[precision],
        input_bytes=None if is_engine is False else PRODUCT_INPUT_BYTES.get(precision),
        keeps_expert_outputs=not (precision == "fp8" if is_engine is None else is_engine),
    )


def compression_factor(compression: Compression, element_bytes: float) -> float:
    """Return by what a gradient in compute precision shrinks."""
    return 1.0 if compression == "none" else 8 * element_bytes / _COMPRESSED_BITS[compression]


def _unique(values: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(values))
