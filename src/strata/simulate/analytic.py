"""The analytic backend: step time, utilisation and money of training plans, many at once.

One place turns a plan into stage and link times (`StepModel.times`); the exact recurrence of `pipeline.py`
turns those into seconds. docs/cost-model.md gives the same in LaTeX, formula by formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from strata.arrays import Floats
from strata.clock import Check, unlimited
from strata.decision import Trust, worst
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.collective import AllReduce, best_all_reduce, diloco_s, eta
from strata.simulate.compute import LayerSums, layer_times
from strata.simulate.copies import CopyExchange, copy_exchange, shared_weights
from strata.simulate.gradient_shares import between, shares, uplink_bytes_per_s
from strata.simulate.memory import StageShape, held_bytes, kept_bytes
from strata.simulate.pipeline_times import PipelineTimes, pipelines_s
from strata.simulate.report import StageReport, StepReport
from strata.simulate.splitting import offload_s, with_exchanges
from strata.simulate.traffic import hops, links_used
from strata.workload.job import ContextExchange, Recompute, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan


class StepModel:
    """Evaluates plans of one job on one fleet; layer times are computed once per kind of stage."""

    def __init__(self, fleet: Fleet, job: TrainingJob) -> None:
        self.fleet, self.job = fleet, job
        self._layers: dict[object, LayerSums | None] = {}
        self._like: dict[object, LayerSums | None] = {}
        self._sums: dict[object, AllReduce] = {}
        self._exchanges: dict[object, CopyExchange] = {}
        self._exact: dict[TrainingPlan, tuple[Floats, StepReport]] = {}
        self._details: dict[TrainingPlan, StepReport] = {}
        self._held: dict[tuple[StageShape, range], float] = {}

    def at(self, fleet: Fleet) -> StepModel:
        """Return the model of the same domains with other links: what happens inside domains is not done again."""
        other = StepModel(fleet, self.job)
        other._layers, other._like, other._exchanges = self._layers, self._like, self._exchanges
        return other

    def layers(
        self,
        domain: Domain,
        tensor_parallel: int,
        microbatch_size: int,
        recompute: Recompute,
        expert_parallel: int = 1,
        context_parallel: int = 1,
        context_exchange: ContextExchange = ContextExchange.RING,
    ) -> LayerSums | None:
        """Return prefix sums of layer times in `domain`, what the devices of a copy exchange included.

        None where the domain's speed is not known.
        """
        how = tensor_parallel, microbatch_size, recompute, expert_parallel, context_parallel, context_exchange
        key = (domain.name, *how)
        if key not in self._layers:
            # Like devices in like nodes take the same time, whatever their domain.
            wires = (domain.network_bandwidth_bytes_per_s, domain.network_latency_s, domain.devices_per_node)
            like = (
                domain.accelerator, domain.intra_bandwidth_bytes_per_s, domain.intra_latency_s, *how,
                wires if context_parallel * expert_parallel > 1 else (),
            )  # fmt: skip
            if like not in self._like:
                whole = Stage(domain.name, 0, len(self.job.layers), tensor_parallel, 0, context_parallel)
                plan = TrainingPlan(
                    (), microbatch_size, recompute=recompute, context_exchange=context_exchange,
                    expert_parallel=expert_parallel,
                )  # fmt: skip
                self._like[like] = self._whole_layers(domain, whole, plan)
            self._layers[key] = self._like[like]
        return self._layers[key]

    def _whole_layers(self, domain: Domain, whole: Stage, plan: TrainingPlan) -> LayerSums | None:
        """Return the sums of a stage of all layers, with what its devices exchange."""
        size, context = plan.microbatch_size, whole.context_parallel
        sums = layer_times(
            self.job, domain, tensor_parallel=whole.tensor_parallel,
            microbatch_size=size / context if context > 1 else size,
            recompute=plan.recompute, expert_parallel=plan.expert_parallel,
        )  # fmt: skip
        if context * plan.expert_parallel == 1 and plan.recompute is not Recompute.SELECTIVE:
            return sums
        return None if sums is None else with_exchanges(self.job, domain, whole, plan, sums)

    def memory_limit_bytes(self, domain: Domain) -> float:
        """Return the usable memory of one device, the job's headroom left free."""
        return domain.accelerator.memory_bytes * (1 - self.job.limits.memory_headroom)

    def stage_memory_bytes(self, plan: TrainingPlan, pipeline: Pipeline, stage: Stage) -> float:
        """Return the bytes one device of a stage needs."""
        return self._memory_bytes(plan, pipeline, pipeline.stages.index(stage))

    def _memory_bytes(self, plan: TrainingPlan, pipeline: Pipeline, position: int) -> float:
        stage, shape = pipeline.stages[position], StageShape.of(plan, pipeline, position)
        if plan.virtual_stages == 1 or self.job.layers.is_even:
            held = range(stage.first_layer, stage.first_layer + stage.num_layers)
            if (shape, held) not in self._held:
                self._held[shape, held] = held_bytes(self.job, (held,), shape=shape)
            return self._held[shape, held]
        return held_bytes(self.job, plan.held_layers(pipeline)[position], shape=shape)

    def fits(self, plan: TrainingPlan) -> bool:
        """Whether every stage of the plan fits its devices."""
        return all(
            self._memory_bytes(plan, pipeline, i) <= self.memory_limit_bytes(self.fleet.domain(stage.domain))
            for pipeline in plan.pipelines
            for i, stage in enumerate(pipeline.stages)
        )

    def times(self, plan: TrainingPlan, pipeline: Pipeline) -> PipelineTimes:
        """Return what one microbatch of one copy costs on each stage and each hop."""
        forward, backward, useful, update, sync, gather = [], [], [], 0.0, 0.0, 0.0
        devices, shards = pipeline.devices(), plan.state_shards(pipeline)
        for stage in pipeline.stages:
            layers = self.stage_layers(plan, stage)
            a, z = stage.first_layer, stage.first_layer + stage.num_layers
            copy_devices = devices[stage.domain] // pipeline.replicas
            exchange = self.exchange(plan, stage, replicas=pipeline.replicas, copy_devices=copy_devices)
            forward.append(exchange.forward_s)
            backward.append(exchange.backward_s)
            useful.append(float(layers.useful[z] - layers.useful[a]))
            update = max(update, self._update_s(plan, stage, layers, shards))
            sync, gather = max(sync, exchange.sum_s), max(gather, exchange.gather_s)
        boundary = self.job.layers.boundary_bytes
        sizes = [
            float(boundary[stage.first_layer + stage.num_layers - 1]) * plan.microbatch_size
            for stage in pipeline.stages[:-1]
        ]
        cuts = hops(self.fleet, pipeline, sizes)
        there, back = (tuple(hop[way] for hop in cuts) for way in (0, 1))
        return PipelineTimes(
            tuple(forward), tuple(backward), tuple(useful), update, there, back, sync, gather
        )  # fmt: skip

    def update_s(self, plan: TrainingPlan, stage: Stage, pipeline: Pipeline) -> float:
        """Return how long a stage of a pipeline updates its weights."""
        return self._update_s(plan, stage, self.stage_layers(plan, stage), plan.state_shards(pipeline))

    def _update_s(self, plan: TrainingPlan, stage: Stage, layers: LayerSums, shards: int) -> float:
        # A rank updates its shard of the parameters alone (ZeRO, arXiv 1910.02054 §5.1).
        held_s = float(layers.update[stage.first_layer + stage.num_layers] - layers.update[stage.first_layer])
        return held_s / self._expert_saving(plan, stage) / shards

    def exchange(self, plan: TrainingPlan, stage: Stage, *, replicas: int, copy_devices: int) -> CopyExchange:
        """Return the work of a stage with what its copies exchange; one takes `copy_devices` of the domain."""
        layers, a, z = self.stage_layers(plan, stage), stage.first_layer, stage.first_layer + stage.num_layers
        if replicas == 1 and _works_alone(plan, stage):
            return CopyExchange(
                float(layers.forward[z] - layers.forward[a]), float(layers.backward[z] - layers.backward[a])
            )
        key = (
            stage.domain, a, z, stage.tensor_parallel, stage.context_parallel, replicas, copy_devices,
            plan.microbatch_size, plan.recompute, plan.zero_stage, plan.shard_group, plan.context_exchange,
            plan.expert_parallel, stage.recompute_layers, plan.activation_offload,
        )  # fmt: skip
        if key not in self._exchanges:
            domain = self.fleet.domain(stage.domain)
            forward, backward = self._layers_s(plan, stage)
            done = copy_exchange(
                domain, forward, backward,
                shared_weights(
                    self.job, domain, stage, replicas=replicas, copy_devices=copy_devices,
                    expert_parallel=plan.expert_parallel,
                ),
                zero_stage=plan.zero_stage, shard_group=plan.shard_group,
                prefetched=self.job.software.prefetched_shards,
                hidden=self.job.software.hides_gradients,
                gradient_ratio=self.job.gradient_bytes / self.job.element_bytes,
                recomputed=plan.recompute is Recompute.FULL and stage.recompute_layers != 0,
            )  # fmt: skip
            if plan.activation_offload:
                kept = kept_bytes(self.job.layers, plan.recompute, stage.recompute_layers, a)[a:z].sum()
                away_s = offload_s(plan, float(kept) * plan.microbatch_size / stage.num_devices)
                done = replace(
                    done, forward_s=max(done.forward_s, away_s), backward_s=max(done.backward_s, away_s)
                )
            self._exchanges[key] = done
        return self._exchanges[key]

    def _layers_s(self, plan: TrainingPlan, stage: Stage) -> tuple[Floats, Floats]:
        """Return forward and backward [n] of a stage's layers, what other devices of its copy add included."""
        a, z = stage.first_layer, stage.first_layer + stage.num_layers
        layers = self.stage_layers(plan, stage)
        forward, backward = np.diff(layers.forward[a : z + 1]), np.diff(layers.backward[a : z + 1])
        some = stage.recompute_layers
        if plan.recompute is Recompute.FULL and some is not None:
            plain = self.stage_layers(replace(plan, recompute=Recompute.NONE), stage)
            forward = np.concatenate([forward[:some], np.diff(plain.forward[a + some : z + 1])])
            backward = np.concatenate([backward[:some], np.diff(plain.backward[a + some : z + 1])])
        return forward, backward

    def _expert_saving(self, plan: TrainingPlan, stage: Stage) -> float:
        """Return how many times fewer parameters a device updates because experts lie elsewhere, ZeRO left out."""
        if plan.expert_parallel == 1 or plan.zero_stage:
            return 1.0  # ZeRO shards them all in the end
        held = slice(stage.first_layer, stage.first_layer + stage.num_layers)
        params = self.job.layers.params[held]
        away = self.job.layers.exchanges.expert_params[held].sum() * (1 - 1 / plan.expert_parallel)
        return float(params.sum() / max(params.sum() - away, 1.0))

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

    def stage_layers(self, plan: TrainingPlan, stage: Stage) -> LayerSums:
        """Return the layer times of a stage of a plan; its domain's speed is known."""
        domain = self.fleet.domain(stage.domain)
        layers = self.layers(
            domain, stage.tensor_parallel, plan.microbatch_size, plan.recompute, plan.expert_parallel,
            stage.context_parallel, plan.context_exchange,
        )  # fmt: skip
        assert layers is not None, f"the speed of {domain.accelerator.name} is not known"
        return layers

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
        groups = tuple(shares(plan, pipeline, self.job.layers.params_before) for pipeline in plan.pipelines)
        key = (groups, plan.gradient_compression)
        if key not in self._sums:
            size = float(self.job.layers.params_before[-1]) * self.job.element_bytes / plan.gradient_compression
            self._sums[key] = best_all_reduce(
                size,
                *between(self.fleet, groups),
                np.array([uplink_bytes_per_s(self.fleet, group) for group in groups]),
            )
        return self._sums[key]

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
        wan = saved + self._exposed_s(times, self.all_reduce(plan)) / plan.local_steps
        sync = (float(sync_s[slowest]) + max(item.closing_s for item in times)) * factor
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
            for i, stage in enumerate(pipeline.stages):
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
                        self._memory_bytes(plan, pipeline, i),
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


def _works_alone(plan: TrainingPlan, stage: Stage) -> bool:
    """Whether layers take what they take on any devices of the stage's tensor-parallel degree."""
    return stage.context_parallel == 1 and stage.recompute_layers is None and not plan.activation_offload
