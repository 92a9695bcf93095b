"""The planning problem: a job, the domains it may use, and the inner shapes a plan may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.decision import Reason
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.any_split import least_s, least_zero_bubble_s, runs_s
from strata.simulate.compute import LayerSums
from strata.simulate.least_recomputed import LeastRecomputed
from strata.simulate.memory import LayerRuns, StageShape
from strata.simulate.order import ORDERED
from strata.simulate.splits import Splits
from strata.training.plan.exact.compute_cost import ComputeCost
from strata.training.plan.exact.config import CommonConfig, ParallelConfig
from strata.training.plan.exact.config_space import ConfigSpace
from strata.training.plan.exact.recent import Recent
from strata.training.plan.exact.room import num_microbatches, ranks_of, slots
from strata.training.plan.exact.routes import PairCosts
from strata.training.plan.exact.splitting import Splitting
from strata.training.plan.exact.usable import missing_links, unusable
from strata.workload.job import Objective, Recompute, Schedule, TrainingJob

POOL: Final = 10
"""Domains searched exactly at once: all 2^10 subsets × settings are bounded in a fraction of a second."""

SPLITS: Final = 512
"""Rows of stages whose layer splits are kept: each has tables of its stages, most of them those of others."""

INSIDE_DOMAINS: Final = (
    "kinds", "_kinds_first", "of_each_kind", "alike", "representatives", "like_layers", "large_layers",
    "splitting", "_space", "_compute_costs", "_any_splits", "stage_times", "held_layers", "recomputed_layers",
    "gradient_sums", "run_ends", "_layer_runs", "_recomputing", "inner_shapes",
)  # fmt: skip
"""What of a problem does not depend on the links between its domains."""


@dataclass(frozen=True)
class Problem:
    """A job on the part of a fleet it may use; `excluded` says why the rest is left out."""

    fleet: Fleet
    job: TrainingJob
    excluded: tuple[Reason, ...]
    is_even: bool = False
    """Whether all stages recompute all of their layers or none."""

    @classmethod
    def of(cls, fleet: Fleet, job: TrainingJob) -> Problem:
        """Drop the domains that cannot or may not take part, each with its reason."""
        excluded, usable = [], []
        for domain in fleet.domains:
            reason = unusable(domain, job)
            if reason is None:
                usable.append(domain.name)
            else:
                excluded.append(reason)
        kept = fleet.only(usable)
        if len(kept.links) < len(usable) * (len(usable) - 1):
            excluded += missing_links(kept)
            linked = {source for source, dest in kept.links if (dest, source) in kept.links}
            excluded += [Reason("unreachable", name, {"domain": name}) for name in usable if name not in linked]
        return cls(kept, job, tuple(excluded))

    @cached_property
    def model(self) -> StepModel:
        """The cost model of this job on this fleet."""
        return StepModel(self.fleet, self.job)

    @cached_property
    def splits(self) -> dict[object, Splits]:
        """Layer splits of rows of stages met lately: like rows share theirs."""
        return Recent(SPLITS)

    @cached_property
    def stage_times(self) -> dict[object, tuple[Floats, Floats]]:
        """Times of all runs of layers on one stage, and by how many they are, by kind of stage."""
        return Recent.of_tables(len(self.job.layers))

    def fitting(self, shape: StageShape, limit_bytes: float) -> Bools:
        """Whether a stage of this shape holds the layers from a row to a column [L + 1, L + 1]."""
        key = shape.whatever_in_flight
        if key not in self._layer_runs:
            self._layer_runs[key] = LayerRuns(self.job, shape)
        return self._layer_runs[key].fit(shape.in_flight, limit_bytes)

    def recomputing(self, shape: StageShape) -> LeastRecomputed:
        """Return how many layers stages of this shape must recompute."""
        key = shape.whatever_in_flight
        if key not in self._recomputing:
            self._recomputing[key] = LeastRecomputed(self.job, shape)
        return self._recomputing[key]

    @cached_property
    def _recomputing(self) -> dict[object, LeastRecomputed]:
        return {}

    @cached_property
    def _layer_runs(self) -> dict[object, LayerRuns]:
        return {}

    @cached_property
    def held_layers(self) -> dict[object, Floats]:
        """How many like layers the last stages could hold, by what it depends on (`ChainSpace.may_fit`)."""
        return {}

    @cached_property
    def inner_shapes(self) -> dict[object, list[Any]]:
        """The ways to run a domain alone, by its kind and the setting (`unit.Units`)."""
        return {}

    @cached_property
    def recomputed_layers(self) -> dict[object, Floats]:
        """By which share of its work a microbatch must be recomputed, by what it depends on (`ChainSpace`)."""
        return {}

    @cached_property
    def gradient_sums(self) -> dict[object, Floats]:
        """What sums between copies take at least, by what it depends on (`copy_sums`)."""
        return {}

    @cached_property
    def run_ends(self) -> dict[object, Floats]:
        """What follows the microbatches of stages of any layers, by what it depends on (`copy_sums`)."""
        return Recent.of_tables(len(self.job.layers))

    @cached_property
    def like_layers(self) -> Ints:
        """Positions of the largest group of layers that are alike."""
        layers = self.job.layers
        each = layers.params, layers.activation_bytes, layers.checkpoint_bytes, layers.exchanges.expert_params
        _, first, group, counts = np.unique(
            np.stack(each, axis=1), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        return np.flatnonzero(group.reshape(-1) == np.argmax(counts * layers.params[first]))

    @cached_property
    def large_layers(self) -> Ints:
        """Positions of the layers that bounds on memory count, each as the smallest of them: those whose sum is
        largest. All blocks where they differ little, all but the dense ones of most mixtures."""
        layers = self.job.layers
        blocks = np.flatnonzero([kind not in ("embedding", "head") for kind in layers.kinds])
        large = blocks[np.argsort(-layers.params[blocks], kind="stable")]
        held = np.arange(1, len(blocks) + 1) * layers.params[large]
        like = self.like_layers
        if held.max(initial=0.0) <= len(like) * layers.params[like[0]]:
            return like
        return np.sort(large[: held.argmax() + 1])

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Per domain the first that plans the same alone: like it in all but name, region and uplink, and in price
        where neither goal nor limits know money."""
        first: dict[object, int] = {}
        is_time = self.job.objective is Objective.TIME and self.job.limits.cost_usd_per_step is None

        def like(d: Domain) -> object:
            price = None if is_time else d.price_usd_per_device_hour
            alone = replace(d, name="", region="", uplink_bytes_per_s=None, price_usd_per_device_hour=price)
            return alone, self.job.pins.stages_in(d.name)

        return tuple(first.setdefault(like(d), index) for index, d in enumerate(self.fleet.domains))

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """The first of the domains that are alike."""
        return tuple(dict.fromkeys(self.alike))

    @cached_property
    def modes(self) -> tuple[Recompute, ...]:
        """The recomputation that is searched: selective is none where it saves nothing, full is part of none where
        stages may recompute some layers."""
        modes, saves = self.job.recompute, bool(self.job.layers.exchanges.recomputed_bytes.any())
        left_out = {Recompute.SELECTIVE} if Recompute.NONE in modes and not saves else set()
        left_out |= {Recompute.FULL} if self.is_partial else set()
        return tuple(mode for mode in modes if mode not in left_out)

    @cached_property
    def is_partial(self) -> bool:
        """Whether stages that need not recompute may recompute as many of their layers as memory asks."""
        layers, modes = self.job.layers, self.job.recompute
        frees = bool((layers.activation_bytes >= layers.checkpoint_bytes).all())
        return frees and Recompute.NONE in modes and Recompute.FULL in modes and not self.is_even

    def longest_backwards(self, config: ParallelConfig) -> ParallelConfig:
        """Return the setting whose backwards are the longest of this one's plans: all layers are recomputed where
        some may be. So much may hide behind them."""
        return replace(config, recompute=Recompute.FULL) if self.recomputes_some(config) else config

    def recomputes_some(self, config: ParallelConfig | CommonConfig) -> bool:
        """Whether plans of a setting recompute as many layers of a stage as they must."""
        return self.is_partial and config.recompute is Recompute.NONE

    @cached_property
    def is_filled(self) -> bool:
        """Whether all microbatches are in flight at once wherever whole stages take turns: GPipe alone."""
        return {each for each in self.job.schedules if each not in ORDERED} == {Schedule.GPIPE}

    @cached_property
    def kinds(self) -> dict[str, int]:
        """A number per domain, the same where a stage takes the same time: like devices in like nodes."""
        numbers: dict[object, int] = {}

        def number(d: Domain) -> int:
            network = (d.network_bandwidth_bytes_per_s, d.network_latency_s) if self.splitting.is_any else ()
            inside = (d.accelerator, d.devices_per_node, d.intra_bandwidth_bytes_per_s, d.intra_latency_s)
            return numbers.setdefault((inside, network, self.job.pins.stages_in(d.name)), len(numbers))

        return {d.name: number(d) for d in self.fleet.domains}

    @cached_property
    def _kinds_first(self) -> tuple[Ints, Ints]:
        """The first domain of each of `kinds`, and the number of each domain's."""
        _, first, back = np.unique(
            [self.kinds[domain.name] for domain in self.fleet.domains], return_index=True, return_inverse=True
        )
        return first, back

    @cached_property
    def of_each_kind(self) -> tuple[Domain, ...]:
        """The first domain of each of `kinds`."""
        return tuple(self.fleet.domains[first] for first in self._kinds_first[0])

    def of_kind(self, kind: int) -> Domain:
        """Return the first domain of one of `kinds`."""
        return next(domain for domain in self.of_each_kind if self.kinds[domain.name] == kind)

    def any_split_s(self, kind: int, config: ParallelConfig, upstream: float, most: int) -> Floats:
        """Return `any_split.least_s` of up to `most` stages in domains of a kind, 0 where speed is not known."""
        count = self.microbatches(config)
        key = kind, config.work, count if upstream else 1, upstream
        if key not in self._any_splits or len(self._any_splits[key]) <= most:
            layers, none = self.layers(self.of_kind(kind), config), np.zeros(most + 1)
            self._any_splits[key] = (
                none if layers is None else least_s(runs_s(layers.work), key[2], upstream, most)
            )
        return self._any_splits[key] * (count / key[2])

    def zero_bubble_s(self, kind: int, config: ParallelConfig, stages: int) -> float:
        """Return `any_split.least_zero_bubble_s` of so many stages in a domain of a kind whose speed is known."""
        key = kind, config.work, self.microbatches(config), stages, "apart"
        if key not in self._any_splits:
            layers = self.layers(self.of_kind(kind), config)
            assert layers is not None, "domains of unknown speed are excluded before"
            share = self.compute_cost(config).weight_share
            self._any_splits[key] = np.array(least_zero_bubble_s(runs_s(layers.work), key[2], share, stages))
        return float(self._any_splits[key])

    @cached_property
    def _any_splits(self) -> dict[object, Floats]:
        return {}

    @cached_property
    def _compute_costs(self) -> dict[object, ComputeCost]:
        return {}

    def compute_cost(self, config: ParallelConfig) -> ComputeCost:
        """Return what one microbatch takes in each domain, comparable between domains."""
        if config.work not in self._compute_costs:
            layers = [self.layers(domain, config) for domain in self.of_each_kind]
            cost = ComputeCost.of(layers, [self.stage_devices(domain, config) for domain in self.of_each_kind])
            self._compute_costs[config.work] = cost.of_domains(self._kinds_first[1])
        return self._compute_costs[config.work]

    def layers(self, domain: Domain, config: ParallelConfig) -> LayerSums | None:
        """Return layer times on one stage's devices in a domain, None where its speed is not known."""
        return self.model.layers(
            domain, self.ranks(domain, config), config.microbatch_size, config.recompute, config.expert_parallel,
            config.context_parallel, config.context_exchange,
        )  # fmt: skip

    def again_s(self, domain: Domain, config: ParallelConfig) -> Floats:
        """Return what the first 0, 1, … layers take longer where they are recomputed in full [L + 1]."""
        once, twice = (
            self.layers(domain, replace(config, recompute=mode)) for mode in (Recompute.NONE, Recompute.FULL)
        )
        assert once is not None, "domains of unknown speed are excluded before"
        assert twice is not None, "speed does not depend on what is recomputed"
        return np.asarray(twice.work - once.work)

    def path_share(self, config: ParallelConfig) -> float:
        """Return the least share of its work that a microbatch goes through one thing after another.

        Weight gradients apart from the others wait for no one.
        """
        apart = Schedule.ZERO_BUBBLE in self.job.schedules
        return 1.0 - self.compute_cost(config).weight_share if apart else 1.0

    def pair_costs(self, microbatch_size: int) -> PairCosts:
        """Return what joining domains costs for one microbatch's activations."""
        if microbatch_size not in self._pair_costs:
            self._pair_costs[microbatch_size] = PairCosts.of(self.fleet, self.message_bytes(microbatch_size))
        return self._pair_costs[microbatch_size]

    @cached_property
    def _pair_costs(self) -> dict[int, PairCosts]:
        return {}

    def message_bytes(self, microbatch_size: int) -> float:
        """Return the least bytes one microbatch of one copy sends to the next stage."""
        sent = self.job.layers.boundary_bytes
        return float(sent[: max(1, len(sent) - 1)].min()) * microbatch_size

    def ranks(self, domain: Domain, config: ParallelConfig) -> int:
        """Return the tensor-parallel degree in a domain: the configuration's, as far as a node allows."""
        return ranks_of(domain, config.tensor_parallel)

    def stage_devices(self, domain: Domain, config: ParallelConfig) -> int:
        """Return the devices of one stage in a domain."""
        return self.ranks(domain, config) * config.context_parallel

    def slots(self, domain: Domain, tensor_parallel: int, context_parallel: int = 1) -> int:
        """Return how many stages a domain has room for, all copies together."""
        return slots(domain, tensor_parallel, context_parallel)

    def stages(self, domain: Domain, config: ParallelConfig) -> int:
        """Return the stages a domain contributes to each copy."""
        room = slots(domain, config.tensor_parallel, config.context_parallel) // config.data_parallel
        fixed = self.job.pins.stages_in(domain.name)
        if fixed is not None:
            return fixed if fixed <= room else 0
        return min(room, config.cap)

    def microbatches(self, config: ParallelConfig) -> int:
        """Return the microbatches each copy works through when one pipeline does the whole batch."""
        return num_microbatches(self.job, config)

    @cached_property
    def _space(self) -> ConfigSpace:
        return ConfigSpace(self.fleet, self.job, self.splitting, self.modes, len(self.like_layers))

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """See `ConfigSpace`."""
        return self._space.microbatch_sizes

    @property
    def configs(self) -> tuple[ParallelConfig, ...]:
        """See `ConfigSpace`."""
        return self._space.configs

    @property
    def shapes(self) -> tuple[ParallelConfig, ...]:
        """See `ConfigSpace`."""
        return self._space.shapes

    @cached_property
    def undivided(self) -> Problem:
        """The same with whole sequences and all experts on every device, where the job fixes nothing else, and
        recomputation the same in all layers, for what looks at no other layouts."""
        if not self.splitting.is_any and not self.is_partial:
            return self
        pins = self.job.pins
        return replace(self.split(context=pins.context or 1, expert=pins.expert or 1), is_even=True)

    def split(self, *, context: int, expert: int) -> Problem:
        """Return the same where sequences are cut in so many pieces and experts spread over so many devices."""
        pins = replace(self.job.pins, context=context, expert=expert)
        return replace(self, job=replace(self.job, pins=pins))

    @cached_property
    def partly_recomputed(self) -> Problem:
        """The same where stages may recompute as many layers as they must."""
        return self._like_but(is_even=False) if self.is_even else self

    @cached_property
    def evenly_recomputed(self) -> Problem:
        """The same where all stages recompute all of their layers or none, for rules that ask no more."""
        if not self.is_partial:
            return self
        return self._like_but(is_even=True)

    def _like_but(self, *, is_even: bool) -> Problem:
        """Return the same where stages may or may not recompute some layers: what a layer takes stays known."""
        return self._known_to(
            replace(self, is_even=is_even), "model", "_compute_costs", "_pair_costs", "_layer_runs", "_recomputing"
        )

    def relinked(self, fleet: Fleet) -> Problem:
        """Return the problem with other links between its domains: what happens inside them stays known."""
        other = self._known_to(replace(self, fleet=fleet), *INSIDE_DOMAINS)
        vars(other)["model"] = self.model.at(fleet)
        for name in ("undivided", "partly_recomputed"):
            if (same := vars(self).get(name, self)) is not self:
                vars(other)[name] = same.relinked(fleet)
        return other

    def with_batch(self, samples: int) -> Problem:
        """Return the problem with another batch: what one microbatch takes stays known."""
        return self._known_to(replace(self, job=replace(self.job, global_batch=samples)), "_compute_costs")

    def _known_to(self, other: Problem, *names: str) -> Problem:
        """Let another problem have what is cached here and is the same there."""
        vars(other).update({name: getattr(self, name) for name in names})
        return other

    @cached_property
    def splitting(self) -> Splitting:
        """The pieces of sequences and sets of experts that are searched."""
        return Splitting.of(self.fleet, self.job)
