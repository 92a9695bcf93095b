"""What our own model says of a pipeline that ASTRA-sim ran: the same compute and links, sends that overlap."""

from __future__ import annotations

import numpy as np

from strata.evaluation.astra_reference.case import AstraCase, PipelineRun
from strata.evaluation.astra_reference.pipeline_slots import warmups
from strata.simulate.compat.network import Topology
from strata.simulate.pipeline import StageTimes, recurrence_s


def default_pipeline_ns(case: AstraCase, run: PipelineRun) -> int:
    """Return the step time of the recurrence (simulate/pipeline.py) for a pipeline on one dimension, in ns.

    A message holds its link for m/B and arrives the latency of its links later; a switch adds latency only.
    """
    dimension = case.dimensions[0]
    links = 2 if dimension.topology is Topology.SWITCH else 1
    message_ns = case.size_bytes / dimension.bytes_per_ns
    compute, cuts = np.ones((1, run.stages)), np.ones((1, run.stages - 1))
    times = StageTimes(
        forward_s=compute * run.forward_us * 1e-6,
        backward_s=compute * run.backward_us * 1e-6,
        link_s=cuts * message_ns * 1e-9,
        latency_s=cuts * links * dimension.latency_ns * 1e-9,
    )
    warmup = np.array(warmups(run.order, run.stages, run.microbatches))
    return round(float(recurrence_s(times, run.microbatches, warmup)[0]) * 1e9)
