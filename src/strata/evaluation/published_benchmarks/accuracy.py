"""Predictions of runs that were measured on hardware, and how far off they are.

Rows come from a case file's `measured_runs`; beside each stands the published simulator's figure. A row with
a note is doubtful: it is marked and averaged both with and without, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from strata.errors import UsageError
from strata.evaluation.published_benchmarks.calibrated import (
    CALIBRATION,
    ProfiledStep,
    SoftwareConstants,
    predicted_s,
    shared_ring_s,
    shared_send_s,
)
from strata.evaluation.published_benchmarks.case_file import Array, CaseFile, End, MeasuredRun, ModelProfile
from strata.evaluation.published_benchmarks.formulas import ELEMENT_BYTES
from strata.evaluation.published_benchmarks.plan import BenchmarkStage, ReplicaRun
from strata.fleet.fleet import BandwidthCurve
from strata.workload.profile import LayerTimes


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One measured run and what was predicted for it; `reason` says why there is no prediction."""

    id: str
    predicted_s: float | None
    measured_s: float | None
    sailor_s: float | None
    note: str
    reason: str | None = None

    @property
    def set_name(self) -> str:
        """Return the id without its last part: runs of one model on one cluster."""
        return self.id.rpartition("/")[0]

    @property
    def doubtful(self) -> bool:
        """Return whether the file has a note on this row."""
        return bool(self.note)

    @property
    def error(self) -> float | None:
        """Return the signed relative error of our prediction, None where a figure is missing."""
        return relative_error(self.predicted_s, self.measured_s)

    @property
    def sailor_error(self) -> float | None:
        """Return the signed relative error of Sailor's simulator, None where a figure is missing."""
        return relative_error(self.sailor_s, self.measured_s)


def relative_error(predicted_s: float | None, measured_s: float | None) -> float | None:
    """Return predicted / measured - 1; None where either is missing or nothing was measured."""
    return predicted_s / measured_s - 1 if predicted_s is not None and measured_s else None


def accuracy_rows(file: CaseFile, calibration: SoftwareConstants = CALIBRATION) -> list[AccuracyRow]:
    """Predict every measured run of a case file, in its order."""
    rows = []
    for run in file.measured_runs:
        predicted, reason = None, None
        try:
            predicted = predicted_s(profiled_step(file, run), calibration)
        except UsageError as error:
            reason = str(error)
        measured, sailor = run.measured_iteration_s, run.sailor_simulator_iteration_s
        rows.append(AccuracyRow(run.id, predicted, measured, sailor, run.note, reason))
    return rows


def mean_errors(
    rows: Iterable[AccuracyRow], error: Callable[[AccuracyRow], float | None]
) -> Mapping[str, float | None]:
    """Return the mean absolute error of each set, None for a set without any."""
    by_set: dict[str, list[float]] = {}
    for row in rows:
        known = by_set.setdefault(row.set_name, [])
        if (value := error(row)) is not None:
            known.append(abs(value))
    return {name: math.fsum(values) / len(values) if values else None for name, values in by_set.items()}


def profiled_step(file: CaseFile, run: MeasuredRun) -> ProfiledStep:
    """Gather what one run's step is made of.

    Raises UsageError where the file lacks the model, a profile of (gpu, microbatch size, tp), or a curve.
    """
    model = file.models.get(run.model)
    if model is None:
        raise UsageError(f"no model {run.model!r} in the file")
    stages, mbs = run.plan.stages, run.plan.mbs
    replicas = [[part for part in stage.runs for _ in range(part.num_replicas)] for stage in stages]
    chains = list(dict.fromkeys(zip(*replicas, strict=True)))
    times = [
        [_layer_times(model, part, mbs, stage) for part, stage in zip(c, stages, strict=True)] for c in chains
    ]
    message_bytes = np.array([float(model.act_out_elems[s.last]) * ELEMENT_BYTES * mbs for s in stages[:-1]])
    ahead = [_sends(file, list(pairwise(c)), message_bytes) for c in chains]
    back = [_sends(file, [(b, a) for a, b in pairwise(c)], message_bytes) for c in chains]
    update_s = [max(float(row[i].update_s.sum()) for row in times) for i in range(len(stages))]
    ring_s = [_ring_s(file, model, stage) for stage in stages]
    network_s = [*ring_s, *(time for row in ahead + back for time in row)]
    if not all(math.isfinite(time) and time >= 0 for time in network_s):
        raise UsageError("a bandwidth curve is not positive at the size of a message of this run")
    return ProfiledStep(
        forward_s=np.array([[float(part.forward_s.sum()) for part in row] for row in times]),
        backward_s=np.array([[float(part.backward_s.sum()) for part in row] for row in times]),
        send_s=np.array(ahead).reshape(len(chains), len(stages) - 1),
        send_back_s=np.array(back).reshape(len(chains), len(stages) - 1),
        message_bytes=message_bytes,
        microbatches=math.ceil(run.global_batch / (mbs * stages[0].num_replicas)),
        after_s=max(ring + update for ring, update in zip(ring_s, update_s, strict=True)),
        num_copies=stages[0].num_replicas,
    )


def _layer_times(model: ModelProfile, part: ReplicaRun, mbs: int, stage: BenchmarkStage) -> LayerTimes:
    times = model.times.get(part.gpu, {}).get((mbs, part.tp))
    if times is None:
        raise UsageError(f"no profile of {model.name} on {part.gpu} with mbs {mbs}, tp {part.tp}")
    if not 0 <= stage.first <= stage.last < model.num_layers:
        raise UsageError(f"layers {stage.first}-{stage.last} are not among the {model.num_layers} of {model.name}")
    layers = slice(stage.first, stage.last + 1)
    return LayerTimes(times.forward_s[layers], times.backward_s[layers], times.update_s[layers])


def _sends(file: CaseFile, links: Sequence[tuple[ReplicaRun, ReplicaRun]], message_bytes: Array) -> list[float]:
    return [
        shared_send_s(_curve(file, a, b), float(size), min(a.tp, b.tp))
        for (a, b), size in zip(links, message_bytes, strict=True)
    ]


def _ring_s(file: CaseFile, model: ModelProfile, stage: BenchmarkStage) -> float:
    """Return the gradient all-reduce of one stage, through its slowest pair of neighbours in the ring."""
    D, tp = stage.num_replicas, min(run.tp for run in stage.runs)
    if D == 1:
        return 0.0
    if tp not in model.params:
        raise UsageError(f"no parameter counts of {model.name} with tp {tp}")
    gradients = float(model.params[tp][stage.first : stage.last + 1].sum()) * ELEMENT_BYTES * tp
    inside = [(run, run) for run in stage.runs if run.num_replicas > 1]
    between = list(zip(stage.runs, (*stage.runs[1:], stage.runs[0]), strict=True)) if len(stage.runs) > 1 else []
    return max(shared_ring_s(_curve(file, a, b), gradients, tp, D) for a, b in inside + between)


def _curve(file: CaseFile, source: ReplicaRun, dest: ReplicaRun) -> BandwidthCurve:
    a, b = _end(file, source), _end(file, dest)
    curve = file.curves.get((a, b))
    if curve is None:
        raise UsageError(
            f"no bandwidth curve from {a.num_gpus}x {a.gpu} ({a.zone}) to {b.num_gpus}x {b.gpu} ({b.zone})"
        )
    return curve


def _end(file: CaseFile, run: ReplicaRun) -> End:
    gpu = file.gpus.get(run.gpu)
    return End(run.zone, run.gpu, min(run.tp, gpu.gpus_per_node) if gpu else run.tp)
