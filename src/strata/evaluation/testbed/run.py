"""A testbed from start to end: measured steps, and beside each what was predicted."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from strata.decision import Trust
from strata.errors import MissingPart, need
from strata.evaluation.testbed.calibrate import MachineCalibration, calibrate, launch_of
from strata.evaluation.testbed.crew import Crew
from strata.evaluation.testbed.namespaces import LinkShape, Namespaces, check_parts
from strata.evaluation.testbed.plans import MODEL, build_plan
from strata.evaluation.testbed.predict import predict
from strata.tables import Shown, rows
from strata.units import show_bandwidth, show_time
from strata.workload.plan import TrainingPlan

_WARMUP_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class TestbedRow:
    """One plan: `measured_s` is the median step, `spread_s` from its lower to its upper quartile.

    error: predicted / measured - 1. dominated_by: compute or transfer, whichever takes more of the
    analytic step.
    """

    plan: str
    bandwidth_bytes_per_s: float
    latency_s: float
    measured_s: float
    spread_s: float
    predicted_s: float
    error: float
    backend: str
    dominated_by: str
    trust: Trust

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "trust": str(self.trust)}


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """All rows, and what they were predicted from: None where nothing was measured for it."""

    rows: tuple[TestbedRow, ...]
    calibration: MachineCalibration | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        calibration = None if self.calibration is None else self.calibration.to_dict()
        return {"rows": [row.to_dict() for row in self.rows], "calibration": calibration}


def run(
    kinds: Sequence[str], shape: LinkShape, *, domains: int, steps: int, is_calibrated: bool, time_limit_s: float
) -> MeasuredSteps:
    """Train by each kind of plan on links of this shape, and predict it.

    Raises MissingPart where the machine or the user cannot, OutOfTime where not all was measured in time.
    """
    deadline = time.monotonic() + time_limit_s
    check_parts()
    need("torch", extra="train")
    cores = len(os.sched_getaffinity(0))
    if domains > cores:
        raise MissingPart(
            f"{domains} domains need {domains} cores to compute at the same time, and there are {cores}",
            hint=f"--domains {cores}",
        )
    with (
        Namespaces(domains, has_latency=shape.latency_s > 0) as network,
        Crew(network, deadline_s=deadline - time.monotonic()) as crew,
    ):
        calibration = calibrate(crew, network, shape) if is_calibrated else None
        network.shape(shape)
        plans = {kind: build_plan(kind, domains) for kind in kinds}
        measured = {kind: measure(crew, plan, steps) for kind, plan in plans.items()}
    rows = [row for kind, plan in plans.items() for row in compare(kind, plan, shape, measured[kind], calibration)]
    return MeasuredSteps(tuple(rows), calibration)


def measure(crew: Crew, plan: TrainingPlan, steps: int) -> list[float]:
    """Return the seconds of each step after the warm-up, as rank 0 sees them: in a pipeline it ends last."""
    answers = crew.ask("steps", launch=launch_of(plan), size=asdict(MODEL), warmup=_WARMUP_STEPS, count=steps)
    return [float(x) for x in answers[0]["seconds"]]


def compare(
    kind: str,
    plan: TrainingPlan,
    shape: LinkShape,
    seconds: Sequence[float],
    calibration: MachineCalibration | None,
) -> list[TestbedRow]:
    """Return what was measured beside what each backend says."""
    reports = predict(plan, shape, calibration)
    low, measured, high = (float(x) for x in np.quantile(seconds, (0.25, 0.5, 0.75)))
    parts = reports["analytic"].breakdown_s
    dominated_by = "transfer" if parts["wan"] > parts["compute"] else "compute"
    return [
        TestbedRow(
            kind, shape.bandwidth_bytes_per_s, shape.latency_s, measured, high - low, report.step_time_s,
            report.step_time_s / measured - 1, backend, dominated_by, report.trust,
        )
        for backend, report in reports.items()
    ]  # fmt: skip


def show(results: list[dict[str, Any]]) -> Shown:
    """Yield what was measured and predicted as a table for people."""
    first = results[0]
    bandwidth, latency = show_bandwidth(first["bandwidth_bytes_per_s"]), show_time(first["latency_s"])
    yield rows(
        ("plan", "mostly", "measured", "spread", "predicted", "error", "backend"),
        (
            (
                row["plan"], row["dominated_by"], show_time(row["measured_s"]), show_time(row["spread_s"]),
                show_time(row["predicted_s"]), f"{row['error']:+.1%}", row["backend"]
            )
            for row in results
        ),
        right=range(2, 6),
        title=f"links of {bandwidth}, {latency} one way; median step, quartile spread"
    )  # fmt: skip
