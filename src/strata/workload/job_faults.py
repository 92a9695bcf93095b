"""What the values of a training job file contradict together, each where it stands."""

from __future__ import annotations

import math
from collections.abc import Iterator

from strata.errors import Fault
from strata.files import Document
from strata.workload.heads import shares_evenly
from strata.workload.job import Schedule
from strata.workload.job_entries import MAX_BATCH, ParallelEntry, TrainingJobFile
from strata.workload.model import ModelSpec
from strata.workload.software_schema import SoftwareEntry


def contradictions(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    """Yield what a file of valid values still cannot mean, in no order."""
    train, sync = file.train, file.train.sync
    if (message := too_long(spec, train.sequence)) is not None:
        yield document.fault(("train", "sequence"), message)
    if isinstance(train.global_batch, str):
        sequences = train.num_sequences
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
    yield from _software(document, file, spec)
    run = file.run
    if run is not None and run.min_devices is not None and (run.max_devices or run.min_devices) < run.min_devices:
        yield document.fault(("run", "max_devices"), f"fewer than min_devices ({run.min_devices})")
    if run is not None and run.preemptible and not run.resume:
        yield document.fault(("run", "preemptible"), "what makes room must resume afterwards: resume: true")


def _software(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    """Yield what the software cannot do with the model, or its framework does not have."""
    software = file.software
    for key in ("dispatcher", "token_drop", "overlap_experts"):
        if spec.experts is None and getattr(software, key) != SoftwareEntry.model_fields[key].default:
            yield document.fault(("software", key), f"{spec.name} has no experts")
    for key in ("async_tensor_parallel", "compiled"):
        changed = getattr(software, key) != SoftwareEntry.model_fields[key].default
        if changed and software.framework == "megatron-core":
            yield document.fault(("software", key), "is PyTorch's own; write framework: pytorch")


def _layout(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    """Yield what no layout can be: sizes that do not divide the heads or the batch, stages without a layer."""
    parallel, batch = file.parallel, file.train.num_sequences
    if parallel.tensor is not None and spec.divided_heads % parallel.tensor:
        counts = [(count, what) for what, count in spec.divided.items() if count % parallel.tensor]
        whole = [f"{count} {what if count > 1 else what.removesuffix('s')}" for count, what in counts]
        message = f"{parallel.tensor} does not divide the {' and '.join(whole)} of {spec.name}"
        yield document.fault(("parallel", "tensor"), message)
    elif parallel.tensor is not None and not shares_evenly(parallel.tensor, spec.kv_heads):
        few = f"{' or '.join(map(str, spec.kv_heads))} key-value heads of {spec.name}"
        message = f"{parallel.tensor} neither divides the {few} nor is a multiple of them"
        yield document.fault(("parallel", "tensor"), message)
    if parallel.pipeline is not None and parallel.pipeline > len(spec.kinds):
        message = f"more stages than {spec.name} has layers ({len(spec.kinds)}, embedding and head included)"
        yield document.fault(("parallel", "pipeline"), message)
    yield from _pieces(document, file, spec)
    yield from _stages(document, file, spec)
    chunks, schedules = parallel.virtual_stages or 1, file.train.schedules
    folds = chunks == 2 and Schedule.DUAL_PIPE_V in (schedules or ())
    if chunks > 1 and schedules is not None and Schedule.INTERLEAVED not in schedules and not folds:
        message = f"{chunks} chunks a stage need interleaved among train.schedules"
        yield document.fault(("parallel", "virtual_stages"), message)
    if schedules == (Schedule.DUAL_PIPE_V,):
        yield from _folded(document, parallel, batch)
    if chunks > 1 and chunks * max(2, parallel.pipeline or 2) > len(spec.kinds):
        message = f"more chunks than {spec.name} has layers ({len(spec.kinds)}, embedding and head included)"
        yield document.fault(("parallel", "virtual_stages"), message)
    if batch != int(batch):
        return
    if parallel.data is not None and batch % parallel.data:
        message = f"{parallel.data} copies do not divide a global batch of {batch:g} sequences"
        yield document.fault(("parallel", "data"), message)
    elif parallel.microbatch is not None and parallel.microbatch * (parallel.data or 1) > batch:
        each = f" on each of {parallel.data} copies" if parallel.data is not None else ""
        message = f"{parallel.microbatch} samples{each} are more than a global batch of {batch:g} sequences"
        yield document.fault(("parallel", "microbatch"), message)


def _folded(document: Document, parallel: ParallelEntry, batch: float) -> Iterator[Fault]:
    """Yield what is fixed and DualPipeV, the only schedule, cannot have."""
    if parallel.virtual_stages not in (None, 2):
        yield document.fault(("parallel", "virtual_stages"), "dualpipev has 2 chunks a stage")
    if parallel.pipeline == 1:
        yield document.fault(("parallel", "pipeline"), "dualpipev needs two stages or more")
    count = batch // ((parallel.microbatch or 1) * (parallel.data or 1))
    if parallel.pipeline is not None and count < 2 * parallel.pipeline:
        message = f"dualpipev takes two microbatches a stage, and a copy has at most {count:g}"
        yield document.fault(("parallel", "pipeline"), message)


def _stages(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    """Yield which stages of domains cannot be, or contradict what else is fixed."""
    counts, allowed = file.parallel.stages or {}, file.limits.domains
    pipeline = file.parallel.pipeline
    for name, count in counts.items():
        at = ("parallel", "stages", name)
        if allowed is not None and name not in allowed:
            yield document.fault(at, f"{name!r} is not one of limits.domains ({', '.join(allowed)})")
        if count > len(spec.kinds):
            message = f"more stages than {spec.name} has layers ({len(spec.kinds)}, embedding and head included)"
            yield document.fault(at, message)
        elif pipeline is not None and count > pipeline:
            yield document.fault(at, f"{count} of a pipeline of {pipeline} stages (parallel.pipeline)")


def _pieces(document: Document, file: TrainingJobFile, spec: ModelSpec) -> Iterator[Fault]:
    """Yield what sequences cannot be cut into, and over what experts cannot be spread."""
    nearest, parallel = nearest_degrees(file, spec), file.parallel
    if "context" in nearest:
        message = f"{parallel.context} pieces do not divide a sequence of {file.train.sequence} tokens"
        yield document.fault(("parallel", "context"), message)
    if "expert" not in nearest:
        return
    copies = (parallel.data or 0) * (parallel.context or 1)
    if spec.experts is None:
        message = f"{spec.name} has no experts to spread"
    elif spec.experts.num_experts % (parallel.expert or 1):
        message = (
            f"the {spec.experts.num_experts} experts of {spec.name} do not divide over {parallel.expert} devices"
        )
    else:
        message = f"{copies} copies, pieces of sequences counted, do not divide into sets of {parallel.expert}"
    yield document.fault(("parallel", "expert"), message)


def nearest_degrees(file: TrainingJobFile, spec: ModelSpec) -> dict[str, int]:
    """Return for each degree that does not divide what it must the next smaller one that does."""
    parallel, experts = file.parallel, spec.experts.num_experts if spec.experts is not None else 1
    copies = (parallel.data or 0) * (parallel.context or 1)
    wholes = {"tensor": spec.divided_heads, "context": file.train.sequence, "expert": math.gcd(experts, copies)}

    def divides(name: str, ranks: int) -> bool:
        return not wholes[name] % ranks and (name != "tensor" or shares_evenly(ranks, spec.kv_heads))

    return {
        name: max(ranks for ranks in range(1, min(degree, whole) + 1) if divides(name, ranks))
        for name, whole in wholes.items()
        if (degree := getattr(parallel, name)) is not None and not divides(name, degree)
    }


def too_long(spec: ModelSpec, sequence: int) -> str | None:
    """Return why a model cannot take sequences of so many tokens, None where it can."""
    if spec.max_sequence_length is None or sequence <= spec.max_sequence_length:
        return None
    return f"{spec.name} has learned positions for only {spec.max_sequence_length} tokens"
