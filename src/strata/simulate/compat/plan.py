"""A plan's step with its pipelines as ASTRA-sim runs them: one communication slot a rank, held until delivery."""

from __future__ import annotations

from strata.errors import UsageError
from strata.simulate.analytic import PipelineTimes, StepModel
from strata.simulate.collective import eta
from strata.simulate.compat.pipeline_slots import astra_compatible_step
from strata.simulate.report import StepReport
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan


def compatible_report(model: StepModel, plan: TrainingPlan) -> StepReport:
    """Return the analytic report with the time of such pipelines; gradient sums and update stay the model's.

    Raises UsageError for an interleaved schedule.
    """
    if plan.schedule is Schedule.INTERLEAVED:
        raise UsageError("the ASTRA-compatible mode knows no interleaved schedule", hint="--backend events")
    times = [model.times(plan, pipeline) for pipeline in plan.pipelines]
    done_s = max(
        _pipeline_s(pipeline, item) + model.replica_sync_s(plan, pipeline, item)
        for pipeline, item in zip(plan.pipelines, times, strict=True)
    )
    across, across_s = model.all_reduce(plan), 0.0
    if across is not None:
        hidden_s = min(min(item.backward_s) for item in times)
        across_s = max(0.0, across.time_s - hidden_s) / plan.local_steps
    done_s += max(item.update_s for item in times)
    return model.reports([plan])[0].lasting(done_s * eta(plan.local_steps) + across_s)


def _pipeline_s(pipeline: Pipeline, times: PipelineTimes) -> float:
    cuts = list(zip(times.there, times.back, strict=True))
    return astra_compatible_step(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        # The time on the wire is known, so bytes are counted in seconds; a cut has one figure for both directions.
        message_bytes=[max(there.serial_s, back.serial_s) for there, back in cuts],
        bandwidth_bytes_per_s=[1.0] * len(cuts),
        latency_s=[max(there.latency_s, back.latency_s) for there, back in cuts],
        microbatches=pipeline.microbatches,
        order=[stage.warmup for stage in pipeline.stages],
    )
