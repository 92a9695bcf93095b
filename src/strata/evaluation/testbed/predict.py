"""What the cost model says of a testbed's step: a fleet of CPU cores, and a profile where one was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from strata.decision import Trust
from strata.evaluation.testbed.calibrate import MachineCalibration
from strata.evaluation.testbed.namespaces import LinkShape
from strata.evaluation.testbed.plans import build_job, domain_names
from strata.fleet.accelerator import Accelerator
from strata.fleet.fleet import BandwidthCurve, Domain, Fleet, Link
from strata.simulate.analytic import StepModel
from strata.simulate.events.run import simulate
from strata.simulate.events.work import Job
from strata.simulate.report import StepReport
from strata.workload.plan import TrainingPlan
from strata.workload.profile import LayerProfile, LayerTimes

_CORE: Final = Accelerator("cpu-core", "cpu", memory_bytes=0.0, fp32_flops=80e9, trust=Trust.ASSUMED)
"""One core at 2.5 GHz doing 32 fp32 operations a cycle (AVX2, two FMA units): what is assumed uncalibrated."""


def predict(plan: TrainingPlan, shape: LinkShape, calibration: MachineCalibration | None) -> dict[str, StepReport]:
    """Return the report of each backend, `analytic` and `events`. Without a calibration compute is assumed."""
    domains = len(plan.domains)
    job = build_job(domains)
    if calibration is not None:
        seconds = (calibration.forward_s, calibration.backward_s, calibration.update_s)
        times = LayerTimes(*(np.array(each) for each in seconds))
        job = replace(job, profile=LayerProfile({(_CORE.name, calibration.microbatch_size, 1): times}))
    model = StepModel(build_fleet(domains, shape, calibration), job)
    # Without jitter and failures nothing is drawn.
    (events,) = simulate([Job(job.name, model, plan)], rng=np.random.default_rng(0)).reports
    return {"analytic": model.details([plan])[0], "events": events}


def build_fleet(domains: int, shape: LinkShape, calibration: MachineCalibration | None) -> Fleet:
    """Return the testbed as a fleet: a core a domain, a link each way between all.

    A calibrated link has two speeds, as the cost model keeps them: `curve` is what one message sees, here the same
    at every size, and `bandwidth_bytes_per_s` what gradient sums reach.
    """
    names, bandwidth = domain_names(domains), shape.bandwidth_bytes_per_s
    links = {}
    for source in names:
        for dest in names:
            if source == dest:
                continue
            link = Link(source, dest, bandwidth, shape.latency_s, trust=Trust.ASSUMED)
            if calibration is not None:
                link = replace(
                    link,
                    bandwidth_bytes_per_s=bandwidth * calibration.sum_share,
                    latency_s=shape.latency_s + calibration.message_overhead_s,
                    curve=BandwidthCurve((bandwidth * calibration.message_share / 1e9,)),
                    trust=Trust.CALIBRATED,
                )
            links[source, dest] = link
    return Fleet(
        "testbed", tuple(Domain(name, _CORE, 1, 1, math.inf, 0.0, math.inf, 0.0) for name in names), links
    )
