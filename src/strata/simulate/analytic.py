"""The analytic backend: step time, utilisation and money of training plans, many at once.

One place turns a plan into stage and link times (`StageModel.times`); the exact recurrence of `pipeline.py`
turns those into seconds. docs/cost-model.md gives the same in LaTeX, formula by formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from strata.arrays import Floats
from strata.clock import Check, unlimited
from strata.decision import Trust, worst
from strata.fleet.fleet import Fleet
from strata.simulate.collective import AllReduce, best_all_reduce, diloco_s, eta
from strata.simulate.gradient_shares import between, shares, uplink_bytes_per_s
from strata.simulate.memory import StageShape
from strata.simulate.pipeline_times import PipelineTimes, pipelines_s
from strata.simulate.report import StageReport, StepReport
from strata.simulate.stage_model import StageModel
from strata.simulate.traffic import links_used
from strata.workload.job import Schedule, TrainingJob
from strata.workload.plan import TrainingPlan


class StepModel(StageModel):
    """Evaluates plans of one job on one fleet."""

    def __init__(self, fleet: Fleet, job: TrainingJob) -> None:
        super().__init__(fleet, job)
        self._sums: dict[object, AllReduce] = {}
        self._exact: dict[TrainingPlan, tuple[Floats, StepReport]] = {}
        self._details: dict[TrainingPlan, StepReport] = {}

    def at(self, fleet: Fleet) -> StepModel:
        """Return the model of the same domains with other links: what happens inside domains is not done again."""
        other = StepModel(fleet, self.job)
        other._layers, other._like, other._exchanges = self._layers, self._like, self._exchanges
        if self.untied is not self:
            other.untied = self.untied  # of what happens inside domains it is asked alone
        return other

    def fastest_zero(self, plan: TrainingPlan, zero_stages: Sequence[int]) -> TrainingPlan | None:
        """Return the plan under the ZeRO stage that fits memory and is fastest, None where none fits.

        From stage 1 on a higher one never costs less time, so the lowest that fits stands for them.
        """
        sharded = (replace(plan, zero_stage=zero) for zero in sorted(zero_stages) if zero)
        least = next((candidate for candidate in sharded if self.fits(candidate)), None)
        plain = replace(plan, zero_stage=0)
        several = [plain] if 0 in zero_stages and self.fits(plain) else []
        several += [] if least is None else [least]
        return self.fastest_of(several) if several else None

    def fastest_of(self, plans: Sequence[TrainingPlan]) -> TrainingPlan:
        """Return the fastest of plans that fit and differ in their ZeRO stage alone, the lowest first.

        Stage 0 saves the first one a gathering of weights and costs it a whole update. From stage 2 on every
        microbatch exchanges shards, so the whole step decides.
        """
        plain, *sharded = plans
        if plain.zero_stage or not sharded:
            return plain
        if sharded[0].zero_stage == 1:
            return plain if self._closing_s(plain) <= self._closing_s(sharded[0]) else sharded[0]
        times = [report.step_time_s for report in self.reports([plain, sharded[0]])]
        return plain if times[0] <= times[1] else sharded[0]

    def _closing_s(self, plan: TrainingPlan) -> float:
        """Return what follows the microbatches of a plan's slowest pipeline, for stages 0 and 1 of ZeRO."""
        times = [self.times(plan, pipeline) for pipeline in plan.pipelines]
        return max(item.sync_s for item in times) + max(item.closing_s for item in times)

    def reports(self, plans: Sequence[TrainingPlan], *, check: Check = unlimited) -> list[StepReport]:
        """Return one exact report per plan, without the breakdown. What `check` raises ends a long evaluation."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._exact]
        for plan, times, pipeline_s in self._timed(new, exact=True, check=check):
            self._exact[plan] = (
                pipeline_s,
                replace(self._report(plan, times, pipeline_s), stages=self._stages(plan, times)),
            )
        return [self._exact[plan][1] for plan in plans]

    def details(self, plans: Sequence[TrainingPlan]) -> list[StepReport]:
        """Return `reports` with the breakdown, which takes a second pass with a free WAN.

        Remembered per plan: explanations ask for the same few again and again; ask for them together first.
        """
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._details]
        reports = self.reports(new)
        for report, (plan, times, local_s) in zip(
            reports, self._timed(new, exact=True, free_wan=True), strict=True
        ):
            parts = self._breakdown(plan, times, self._exact[plan][0], local_s, report.step_time_s)
            self._details[plan] = replace(report, breakdown_s=parts)
        return [self._details[plan] for plan in plans]

    def bounds(self, plans: Sequence[TrainingPlan]) -> list[StepReport]:
        """Return reports whose step time no schedule of the same stages can beat, in closed form."""
        return [
            self._report(plan, times, pipeline_s) for plan, times, pipeline_s in self._timed(plans, exact=False)
        ]

    def bounds_s(self, plans: Sequence[TrainingPlan]) -> list[float]:
        """Return the step times of `bounds` alone."""
        return [
            self.step_s(plan, times, pipeline_s) for plan, times, pipeline_s in self._timed(plans, exact=False)
        ]

    def _timed(
        self, plans: Sequence[TrainingPlan], *, exact: bool, free_wan: bool = False, check: Check = unlimited
    ) -> Iterator[tuple[TrainingPlan, list[PipelineTimes], Floats]]:
        """Yield each plan with the times of its pipelines, all pipelines batched together."""
        pieces = [(plan, pipeline) for plan in plans for pipeline in plan.pipelines]
        times = [self.times(plan, pipeline) for plan, pipeline in pieces]
        pipeline_s = pipelines_s(
            pieces, [item.local() for item in times] if free_wan else times, exact=exact, check=check
        )
        start = 0
        for plan in plans:
            own_rows = slice(start, start + len(plan.pipelines))
            yield plan, times[own_rows], pipeline_s[own_rows]
            start = own_rows.stop

    def all_reduce(self, plan: TrainingPlan) -> AllReduce | None:
        """Return the gradient sum between pipelines, None for a plan of one pipeline."""
        if len(plan.pipelines) == 1:
            return None
        before = self.summed_before(plan)
        groups = tuple(shares(plan, pipeline, before) for pipeline in plan.pipelines)
        key = (groups, plan.gradient_compression)
        if key not in self._sums:
            size = float(before[-1]) * self.job.element_bytes / plan.gradient_compression
            self._sums[key] = best_all_reduce(
                size,
                *between(self.fleet, groups),
                np.array([uplink_bytes_per_s(self.fleet, group) for group in groups]),
            )
        return self._sums[key]

    def summed_before(self, plan: TrainingPlan) -> Floats:
        """Return the parameters before each layer whose gradients pipelines sum [L + 1]: both tables of a tied
        embedding where all of them have two."""
        folds = plan.schedule is Schedule.DUAL_PIPE_V
        is_apart = not folds and all(len(pipeline.stages) > 1 for pipeline in plan.pipelines)
        return (self.job.untied if is_apart else self.job).layers.params_before

    def _report(self, plan: TrainingPlan, times: Sequence[PipelineTimes], pipeline_s: Floats) -> StepReport:
        job, across = self.job, self.all_reduce(plan)
        step_s = self.step_s(plan, times, pipeline_s)
        # A plan of somebody else may leave a part of the batch out.
        tokens = min(plan.num_samples, job.global_batch) * job.sequence_length
        wan_bytes, egress = self._traffic(plan, times, across)
        cost: float | None = egress
        for name, count in plan.devices().items():
            price = self.fleet.domain(name).price_usd_per_device_hour
            cost = None if cost is None or price is None else cost + count * price * step_s / 3600
        real = min(1.0, job.global_batch / plan.num_samples) / plan.microbatch_size
        busy = sum(
            useful * real * plan.samples(pipeline) * stage.num_devices
            for pipeline, item in zip(plan.pipelines, times, strict=True)
            for stage, useful in zip(pipeline.stages, item.useful_s, strict=True)
        )
        return StepReport(
            step_time_s=step_s,
            tokens_per_s=tokens / step_s,
            utilization=busy / (plan.num_devices * step_s),
            wan_bytes_per_step=wan_bytes,
            egress_usd_per_step=egress,
            cost_usd_per_step=cost,
            cost_usd_per_mtoken=None if cost is None else cost / tokens * 1e6,
            num_devices=plan.num_devices,
            stages=(),
            trust=self._trust(plan),
            breakdown_s={},
        )

    def step_s(self, plan: TrainingPlan, times: Sequence[PipelineTimes], pipeline_s: Floats) -> float:
        """Return the step time of a plan whose pipelines take `pipeline_s` each."""
        done_s = float((pipeline_s + [item.sync_s for item in times]).max())
        local_s = done_s + max(item.closing_s for item in times)
        exposed_s = self._exposed_s(times, self.all_reduce(plan))
        return float(diloco_s(local_s, exposed_s, local_steps=plan.local_steps))

    def _exposed_s(self, times: Sequence[PipelineTimes], across: AllReduce | None) -> float:
        """Return the exposed part of one sum between domains: it runs while the last backward still does."""
        if across is None:
            return 0.0
        return max(0.0, across.time_s - min(min(item.backward_s) for item in times))

    def _breakdown(
        self,
        plan: TrainingPlan,
        times: Sequence[PipelineTimes],
        pipeline_s: Floats,
        local_s: Floats,
        step_s: float,
    ) -> dict[str, float]:
        """Return compute, bubble, wan and sync of the slowest pipeline; wan is what a free WAN would save."""
        sync_s, factor = np.array([item.sync_s for item in times]), eta(plan.local_steps)
        slowest = int(np.argmax(pipeline_s + sync_s))
        each = np.add(times[slowest].forward_s, times[slowest].backward_s)
        compute = float(each.mean()) * plan.pipelines[slowest].microbatches * factor
        saved = max(0.0, float(pipeline_s[slowest] - local_s[slowest])) * factor
        tables = times[slowest].tables
        far_s = times[slowest].tables_s if tables is not None and tables.wan_bytes else 0.0
        wan = saved + far_s * factor + self._exposed_s(times, self.all_reduce(plan)) / plan.local_steps
        sync = (float(sync_s[slowest]) - far_s + max(item.closing_s for item in times)) * factor
        return {"compute": compute, "bubble": max(0.0, step_s - compute - wan - sync), "wan": wan, "sync": sync}

    def _traffic(
        self, plan: TrainingPlan, times: Sequence[PipelineTimes], across: AllReduce | None
    ) -> tuple[float, float]:
        """Return the bytes that cross between domains in a step, and their price."""
        total, usd = 0.0, 0.0
        for pipeline, item in zip(plan.pipelines, times, strict=True):
            messages = pipeline.microbatches * pipeline.replicas
            for hop in (*item.there, *item.back):
                total += messages * hop.wan_bytes
                usd += messages * hop.egress_usd
            if item.tables is not None:
                total += pipeline.replicas * item.tables.wan_bytes
                usd += pipeline.replicas * item.tables.egress_usd
        if across is not None:
            # A nested pipeline sends from several domains; its first one stands for their price.
            where = [self.fleet.index(pipeline.domains[0]) for pipeline in plan.pipelines]
            sent = across.bytes_sent / plan.local_steps
            total += float(sent.sum())
            usd += float((sent * self.fleet.price_usd_per_byte()[np.ix_(where, where)]).sum())
        return total, usd

    def _stages(self, plan: TrainingPlan, times: Sequence[PipelineTimes]) -> tuple[StageReport, ...]:
        reports = []
        for pipeline, item in zip(plan.pipelines, times, strict=True):
            held = plan.held_layers(pipeline)
            for i, shape in enumerate(StageShape.each_of(plan, pipeline)):
                stage = pipeline.stages[i]
                domain = self.fleet.domain(stage.domain)
                reports.append(
                    StageReport(
                        stage.domain,
                        domain.accelerator.name,
                        stage.first_layer,
                        stage.num_layers,
                        tuple((chunk.start, chunk.stop - 1) for chunk in held[i] if chunk),
                        stage.tensor_parallel,
                        pipeline.replicas,
                        item.forward_s[i],
                        item.backward_s[i],
                        self._memory_bytes(plan, pipeline, i, shape),
                        self.memory_limit_bytes(domain),
                    )
                )
        return tuple(reports)

    def _trust(self, plan: TrainingPlan) -> Trust:
        grades = [self.stage_layers(plan, s).trust for p in plan.pipelines for s in p.stages]
        grades += [link.trust for pipeline in plan.pipelines for link in links_used(self.fleet, pipeline)]
        if plan.local_steps > 1 or any(self.fleet.domain(name).assumed for name in plan.domains):
            grades.append(Trust.ASSUMED)
        # A closed model of a real run is analytic at best, whatever its inputs.
        return worst(Trust.ANALYTIC, *grades)


def step_times_s(cases: Sequence[tuple[StepModel, TrainingPlan]]) -> Floats:
    """Return the step time of plans, each under a model of its own: like pipelines go together."""
    pieces = [(plan, pipeline) for _, plan in cases for pipeline in plan.pipelines]
    times = [model.times(plan, pipeline) for model, plan in cases for pipeline in plan.pipelines]
    pipeline_s = pipelines_s(pieces, times, exact=True, check=unlimited)
    steps, start = np.zeros(len(cases)), 0
    for row, (model, plan) in enumerate(cases):
        own = slice(start, start + len(plan.pipelines))
        steps[row] = model.step_s(plan, times[own], pipeline_s[own])
        start = own.stop
    return steps
