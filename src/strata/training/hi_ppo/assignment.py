"""What a global plan leaves to one domain: its stages, copies and microbatches, and what each costs there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from strata.arrays import Floats, Ints
from strata.errors import UsageError
from strata.fleet.fleet import Domain
from strata.simulate.analytic import StepModel
from strata.simulate.memory import StageShape, stage_bytes, state_bytes
from strata.workload.plan import Pipeline, Stage, TrainingPlan

Degrees = tuple[int, ...]
"""Tensor-parallel degree of each stage."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The part of pipeline `index` of a plan that lies in `domain`."""

    plan: TrainingPlan
    index: int
    domain: str

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline the part is of."""
        return self.plan.pipelines[self.index]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the domain."""
        return tuple(stage for stage in self.pipeline.stages if stage.domain == self.domain)

    @property
    def is_whole(self) -> bool:
        """Whether the pipeline lies in the domain alone. Only then are its copies the domain's own business.

        Elsewhere another domain works on the same microbatches of the same copies.
        """
        return len(self.stages) == len(self.pipeline.stages)

    @property
    def degrees(self) -> Degrees:
        """Tensor-parallel degree of each stage."""
        return tuple(stage.tensor_parallel for stage in self.stages)

    @property
    def work(self) -> tuple[object, ...]:
        """What is to be done, the rest of the plan aside: parts of equal work can keep a binding."""
        plan, pipeline = self.plan, self.pipeline
        return (
            self.domain, self.stages, self.is_whole, pipeline.replicas, pipeline.microbatches,
            plan.microbatch_size, plan.schedule, plan.recompute, plan.zero_stage, plan.virtual_stages,
        )  # fmt: skip

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, all copies together."""
        return self.pipeline.microbatches * self.pipeline.replicas

    @property
    def num_devices(self) -> int:
        """Devices the plan uses in the domain."""
        return sum(self.degrees) * self.pipeline.replicas


def assignments(plan: TrainingPlan) -> dict[str, Assignment]:
    """Return each domain's part of a plan. Raises UsageError where two pipelines share a domain."""
    by_domain: dict[str, Assignment] = {}
    for index, pipeline in enumerate(plan.pipelines):
        for name in dict.fromkeys(pipeline.domains):
            if name in by_domain:
                raise UsageError(
                    f"two pipelines of the plan use {name}; a local agent answers for one part",
                    hint="more replicas of one pipeline instead",
                )
            by_domain[name] = Assignment(plan, index, name)
    return by_domain


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """The stages of a part at nominal speed, arrays [S] (message_bytes [S-1]).

    forward_s, backward_s: of one microbatch. sum_s: exposed of what ZeRO 2 and 3 sum. update_s: of one optimizer
    step, new weights gathered. gradient_bytes: one device's shard.
    load_bytes: what a device that is new to the stage loads, weights and optimizer state.
    """

    forward_s: Floats
    backward_s: Floats
    sum_s: Floats
    update_s: Floats
    message_bytes: Floats
    gradient_bytes: Floats
    load_bytes: Floats


class AssignmentCosts:
    """The cost model of one assignment; costs are computed once per tensor-parallel degrees and copies."""

    def __init__(self, model: StepModel, assignment: Assignment) -> None:
        self.model, self.assignment = model, assignment
        self._costs: dict[tuple[Degrees, int], StageCosts] = {}
        self._need: dict[tuple[Degrees, int, int], Floats] = {}

    @cached_property
    def domain(self) -> Domain:
        """The domain as the plan saw it."""
        return self.model.fleet.domain(self.assignment.domain)

    @cached_property
    def warmup(self) -> Ints:
        """[S]: forwards before the first backward, where one copy is left for all microbatches."""
        alone = self.assignment.pipeline.with_microbatches(self.assignment.microbatches)
        return np.array([stage.warmup for stage in alone.stages if stage.domain == self.assignment.domain])

    @property
    def memory_share(self) -> float:
        """The share of a device's memory that may be used."""
        return 1 - self.model.job.limits.memory_headroom

    def costs(self, degrees: Degrees, replicas: int) -> StageCosts:
        """Return what the stages cost at other tensor-parallel degrees and numbers of copies."""
        key = degrees, replicas
        if key not in self._costs:
            self._costs[key] = self._measure(degrees, replicas)
        return self._costs[key]

    def need_bytes(self, degrees: Degrees, replicas: int, microbatches: int) -> Floats:
        """Return the memory [S] a device of each stage needs when its copy works on so many microbatches."""
        plan = self.assignment.plan
        key = degrees, replicas, min(microbatches, int(self.warmup.max()) + 1)
        if key not in self._need:
            old = self.assignment.pipeline
            pipeline = replace(old.with_microbatches(microbatches), replicas=replicas)
            self._need[key] = np.array([
                stage_bytes(
                    self.model.job, stage.first_layer, stage.num_layers,
                    shape=replace(StageShape.of(plan, pipeline, old.stages.index(stage)), tensor_parallel=ranks),
                )
                for stage, ranks in zip(self.assignment.stages, degrees, strict=True)
            ])  # fmt: skip
        return self._need[key]

    def _measure(self, degrees: Degrees, replicas: int) -> StageCosts:
        plan, stages = self.assignment.plan, self.assignment.stages
        rows = []
        for stage, ranks in zip(stages, degrees, strict=True):
            model = self.model.holding(stage)
            job, layers = model.job, model.layers(self.domain, ranks, plan.microbatch_size, plan.recompute)
            assert layers is not None, f"the speed of {self.domain.accelerator.name} is not known"
            a, z = stage.first_layer, stage.first_layer + stage.num_layers
            params = float(job.layers.params_before[z] - job.layers.params_before[a]) / ranks
            # The last stage has no next one; its row of the messages is cut off below.
            message = float(job.layers.boundary_bytes[z - 1]) * plan.microbatch_size
            gradient = params * job.element_bytes
            kept = gradient / (replicas if plan.zero_stage >= 2 else 1)
            load = state_bytes(
                job, params, shards=replicas, zero_stage=plan.zero_stage, holds_outer=plan.local_steps > 1
            ) - kept  # fmt: skip
            exchange = model.exchange(
                plan, replace(stage, tensor_parallel=ranks), replicas=replicas, copy_devices=sum(degrees)
            )
            shards = plan.state_shards(replace(self.assignment.pipeline, replicas=replicas))
            update = (layers.update[z] - layers.update[a]) / shards + exchange.gather_s
            rows.append((
                exchange.forward_s, exchange.backward_s, exchange.sum_s, update, message, gradient, load,
            ))  # fmt: skip
        columns = np.array(rows, dtype=np.float64).T
        forward, backward, summed, update, message, gradient, load = columns
        return StageCosts(forward, backward, summed, update, message[:-1], gradient, load)
