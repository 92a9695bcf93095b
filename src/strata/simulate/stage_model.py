"""What the stages of training plans take: memory, and the time of one microbatch on each stage and each hop."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.compute import LayerSums, layer_times
from strata.simulate.copies import CopyExchange, copy_exchange, shared_weights
from strata.simulate.folded import folded_job, unfolded
from strata.simulate.memory import StageShape, held_bytes, kept_bytes, layer_state_bytes, transient_bytes
from strata.simulate.pipeline_times import PipelineTimes
from strata.simulate.splitting import offload_s, with_exchanges
from strata.simulate.tied_table import table_sum
from strata.simulate.traffic import hops
from strata.workload.job import ContextExchange, Recompute, Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan


class StageModel:
    """Stages of plans of one job on one fleet; layer times are computed once per kind of stage."""

    def __init__(self, fleet: Fleet, job: TrainingJob) -> None:
        self.fleet, self.job = fleet, job
        self._layers: dict[object, LayerSums | None] = {}
        self._like: dict[object, LayerSums | None] = {}
        self._exchanges: dict[object, CopyExchange] = {}
        self._held: dict[tuple[StageShape, range], float] = {}
        self._known_bytes: dict[tuple[bool, StageShape], tuple[Floats, Floats]] = {}
        self._folds: dict[tuple[int, ...], StageModel] = {}

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
        position = pipeline.stages.index(stage)
        return self._memory_bytes(plan, pipeline, position, StageShape.of(plan, pipeline, position))

    def _memory_bytes(self, plan: TrainingPlan, pipeline: Pipeline, position: int, shape: StageShape) -> float:
        stage = pipeline.stages[position]
        if plan.schedule is Schedule.DUAL_PIPE_V:
            return held_bytes(self.job, plan.held_layers(pipeline)[position], shape=shape)
        if plan.virtual_stages == 1 or self.job.layers.is_even:
            held = range(stage.first_layer, stage.first_layer + stage.num_layers)
            if (shape, held) not in self._held:
                self._held[shape, held] = held_bytes(self.job, (held,), shape=shape, each=self._layer_bytes)
            return self._held[shape, held]
        return held_bytes(self.job, plan.held_layers(pipeline)[position], shape=shape)

    def _layer_bytes(self, job: TrainingJob, shape: StageShape) -> tuple[Floats, Floats]:
        again = shape.recompute_layers  # whether there are some is what counts
        key = job is self.job, replace(shape, in_flight=0.0, recompute_layers=again and 1)
        if key not in self._known_bytes:
            self._known_bytes[key] = layer_state_bytes(job, shape), transient_bytes(job, shape)
        return self._known_bytes[key]

    def fits(self, plan: TrainingPlan) -> bool:
        """Whether every stage of the plan fits its devices."""
        return all(
            self._memory_bytes(plan, pipeline, at, shape)
            <= self.memory_limit_bytes(self.fleet.domain(pipeline.stages[at].domain))
            for pipeline in plan.pipelines
            for at, shape in enumerate(StageShape.each_of(plan, pipeline))
        )

    def times(self, plan: TrainingPlan, pipeline: Pipeline) -> PipelineTimes:
        """Return what one microbatch of one copy costs on each stage and each hop."""
        if plan.schedule is Schedule.DUAL_PIPE_V:
            return self._folded(plan, pipeline).times(unfolded(plan), pipeline)
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
            update = max(update, self._update_s(plan, stage, shards))
            sync, gather = max(sync, exchange.sum_s), max(gather, exchange.gather_s)
        boundary = self.job.layers.boundary_bytes
        sizes = [
            float(boundary[stage.first_layer + stage.num_layers - 1]) * plan.microbatch_size
            for stage in pipeline.stages[:-1]
        ]
        cuts = hops(self.fleet, pipeline, sizes)
        there, back = (tuple(hop[way] for hop in cuts) for way in (0, 1))
        tables = table_sum(self.fleet, self.job, pipeline)
        return PipelineTimes(
            tuple(forward), tuple(backward), tuple(useful), update, there, back, sync, gather, tables
        )  # fmt: skip

    def _folded(self, plan: TrainingPlan, pipeline: Pipeline) -> StageModel:
        """Return the model of the job whose layers lie as the stages of a folded pipeline hold them."""
        key = tuple(stage.num_layers for stage in pipeline.stages)
        if key not in self._folds:
            self._folds[key] = StageModel(self.fleet, folded_job(self.job, plan, pipeline))
        return self._folds[key]

    @cached_property
    def untied(self) -> StageModel:
        """The model of the job where embedding and head lie apart."""
        return self if self.job.untied is self.job else StageModel(self.fleet, self.job.untied)

    def holding(self, stage: Stage) -> StageModel:
        """Return the model of the job as a stage sees it."""
        held = self.job.held(stage.first_layer, stage.first_layer + stage.num_layers)
        return self if held is self.job else self.untied

    def _update_s(self, plan: TrainingPlan, stage: Stage, shards: int) -> float:
        """Return how long a stage of a pipeline updates its weights."""
        if (model := self.holding(stage)) is not self:
            return model._update_s(plan, stage, shards)
        layers = self.stage_layers(plan, stage)
        # A rank updates its shard of the parameters alone (ZeRO, arXiv 1910.02054 §5.1).
        held_s = float(layers.update[stage.first_layer + stage.num_layers] - layers.update[stage.first_layer])
        return held_s / self._expert_saving(plan, stage) / shards

    def exchange(self, plan: TrainingPlan, stage: Stage, *, replicas: int, copy_devices: int) -> CopyExchange:
        """Return the work of a stage with what its copies exchange; one takes `copy_devices` of the domain."""
        if (model := self.holding(stage)) is not self:
            return model.exchange(plan, stage, replicas=replicas, copy_devices=copy_devices)
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

    def stage_layers(self, plan: TrainingPlan, stage: Stage) -> LayerSums:
        """Return the layer times of a stage of a plan; its domain's speed is known."""
        domain = self.fleet.domain(stage.domain)
        layers = self.layers(
            domain, stage.tensor_parallel, plan.microbatch_size, plan.recompute, plan.expert_parallel,
            stage.context_parallel, plan.context_exchange,
        )  # fmt: skip
        assert layers is not None, f"the speed of {domain.accelerator.name} is not known"
        return layers


def _works_alone(plan: TrainingPlan, stage: Stage) -> bool:
    """Whether layers take what they take on any devices of the stage's tensor-parallel degree."""
    return stage.context_parallel == 1 and stage.recompute_layers is None and not plan.activation_offload
