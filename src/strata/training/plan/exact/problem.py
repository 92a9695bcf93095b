"""The planning problem: a job, the domains it may use, and the inner shapes a plan may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.decision import Reason
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.compute import LayerSums, peak_flops
from strata.simulate.least_recomputed import LeastRecomputed
from strata.simulate.memory import LayerRuns, StageShape
from strata.training.plan.exact.routes import PairCosts
from strata.training.plan.exact.split import least_shares, most_shares
from strata.training.plan.exact.splits import Splits
from strata.training.plan.exact.splitting import Splitting
from strata.workload.job import ContextExchange, Recompute, Schedule, TrainingJob

LARGEST_MICROBATCH: Final = 16
TENSOR_PARALLEL: Final = (1, 2, 4, 8)
"""Sizes searched. Tensor parallelism stays inside a node; larger microbatches only cost memory and bubble."""

CAPS: Final = (1, 2, 4, 8)
"""Stages per domain a plan may be held to, beside "as many as there are devices": fewer devices cost less."""

RARE_CAPS: Final = (2, 4)
"""Caps left out of the settings tried for the first plan."""

MOST_DEGREES_TRIED: Final = 24

MOST_PAIRS_NAMED: Final = 8

POOL: Final = 10
"""Domains searched exactly at once: all 2^10 subsets × settings are bounded in a fraction of a second."""


@dataclass(frozen=True, slots=True)
class CommonConfig:
    """What all pipelines of a plan have in common."""

    microbatch_size: int
    recompute: Recompute
    context_exchange: ContextExchange = ContextExchange.RING
    expert_parallel: int = 1
    holds_outer: bool = False
    """DiLoCo's outer state lies beside the others: gradients are exchanged after several steps."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The inner shape all stages of a pipeline share.

    `data_parallel` is the degree inside the domains: a domain with room for n stages contributes
    min(n // data_parallel, cap) of them to each copy. The rest is as in `Stage` and `TrainingPlan`.
    """

    microbatch_size: int
    tensor_parallel: int
    data_parallel: int
    cap: int
    recompute: Recompute
    context_parallel: int = 1
    context_exchange: ContextExchange = ContextExchange.RING
    expert_parallel: int = 1
    holds_outer: bool = False

    @property
    def common(self) -> CommonConfig:
        """What other pipelines of the same plan must have, too."""
        how = self.context_exchange, self.expert_parallel, self.holds_outer
        return CommonConfig(self.microbatch_size, self.recompute, *how)

    @property
    def copies(self) -> tuple[int, int, int]:
        """What sums between copies depend on, beside a stage's devices."""
        return self.data_parallel, self.context_parallel, self.expert_parallel

    @property
    def work(self) -> tuple[int, int, int, Recompute, ContextExchange, int]:
        """What the time of a layer depends on."""
        return (
            self.tensor_parallel, self.context_parallel, self.microbatch_size, self.recompute,
            self.context_exchange, self.expert_parallel,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """What one microbatch takes in each domain, arrays [domains]; unknown speed is inf work and no use.

    Layers may be handed out over domains whose layers differ in speed by different factors (measured profiles).
    However they are, Σ (time spent in d / work_s[d]) is at least 1, and Σ (device-seconds of use in d /
    useful_s[d]) at most 1. Where all layers differ by one factor these are the whole model's figures.
    """

    work_s: Floats
    useful_s: Floats
    forward_s: float
    """At most so long are all forwards of a microbatch together."""
    backward_s: float
    """The same for its backwards."""
    weight_share: float
    """At most such a share of a layer's work are its weight gradients (`pipeline_times.operations_s`)."""
    longest_s: Floats
    """One layer, the same in all domains, takes so long [domains]."""
    last_s: Floats
    """The last layer does: that of the last stage, which all others are upstream of [domains]."""
    update_s: Floats
    """What updating all parameters takes one stage's devices [domains]."""
    ways_s: tuple[Floats, Floats]
    """Forwards and backwards of a microbatch together [domains]."""

    @classmethod
    def of(cls, layers: Sequence[LayerSums | None], ranks: Sequence[int]) -> ComputeCost:
        """Return the compute cost of domains with these layer times on so many devices a stage."""
        known = [i for i, item in enumerate(layers) if item is not None]
        work_s, useful_s = np.full(len(layers), np.inf), np.zeros(len(layers))
        longest_s, last_s, update_s, forward_s, backward_s = np.zeros((5, len(layers)))
        if not known:
            return cls(work_s, useful_s, 0.0, 0.0, 0.0, longest_s, last_s, update_s, (forward_s, backward_s))
        picked = [item for item in layers if item is not None]
        each = np.diff([item.work for item in picked])
        work_s[known] = least_shares(each)
        useful_s[known] = most_shares(np.diff([item.useful for item in picked]) * np.array(ranks)[known, None])
        longest_s[known], last_s[known] = each[:, each.min(axis=0).argmax()], each[:, -1]
        for total, sums in zip((update_s, forward_s, backward_s), ("update", "forward", "backward"), strict=True):
            total[known] = [getattr(item, sums)[-1] for item in picked]
        ways = [item.forward for item in picked], [item.backward for item in picked]
        most = [float(np.diff(way).max(axis=0).sum()) for way in ways]
        shares = [np.diff(item.useful) / np.maximum(np.diff(item.work), 1e-300) for item in picked]
        share = min(1.0, float(np.max(shares))) / 3
        return cls(work_s, useful_s, most[0], most[1], share, longest_s, last_s, update_s, (forward_s, backward_s))

    def of_domains(self, rows: Ints) -> ComputeCost:
        """Return the same for other domains, each like one of these."""
        arrays = (each[rows] for each in (self.longest_s, self.last_s, self.update_s))
        longest_s, last_s, update_s = arrays
        return replace(
            self, work_s=self.work_s[rows], useful_s=self.useful_s[rows], longest_s=longest_s, last_s=last_s,
            update_s=update_s, ways_s=(self.ways_s[0][rows], self.ways_s[1][rows]),
        )  # fmt: skip


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
            reason = _unusable(domain, job)
            if reason is None:
                usable.append(domain.name)
            else:
                excluded.append(reason)
        kept = fleet.only(usable)
        if len(kept.domains) > 1:
            excluded += _missing_links(kept)
            linked = {source for source, dest in kept.links if (dest, source) in kept.links}
            excluded += [Reason("unreachable", name, {"domain": name}) for name in usable if name not in linked]
        return cls(kept, job, tuple(excluded))

    @cached_property
    def model(self) -> StepModel:
        """The cost model of this job on this fleet."""
        return StepModel(self.fleet, self.job)

    @cached_property
    def splits(self) -> dict[object, Splits]:
        """Layer splits of rows of stages met so far: like rows share theirs."""
        return {}

    @cached_property
    def stage_times(self) -> dict[object, Floats]:
        """Times of all runs of layers on one stage, by kind of stage."""
        return {}

    def fitting(self, shape: StageShape, limit_bytes: float) -> Bools:
        """Whether a stage of this shape holds the layers from a row to a column [L + 1, L + 1]."""
        key = replace(shape, in_flight=0.0)
        if key not in self._layer_runs:
            self._layer_runs[key] = LayerRuns(self.job, key)
        return self._layer_runs[key].fit(shape.in_flight, limit_bytes)

    def recomputing(self, shape: StageShape) -> LeastRecomputed:
        """Return how many layers stages of this shape must recompute."""
        key = replace(shape, in_flight=0.0)
        if key not in self._recomputing:
            self._recomputing[key] = LeastRecomputed(self.job, key)
        return self._recomputing[key]

    @cached_property
    def _recomputing(self) -> dict[StageShape, LeastRecomputed]:
        return {}

    @cached_property
    def _layer_runs(self) -> dict[StageShape, LayerRuns]:
        return {}

    @cached_property
    def held_layers(self) -> dict[object, Floats]:
        """How many like layers the last stages could hold, by what it depends on (`ChainSpace.may_fit`)."""
        return {}

    @cached_property
    def recomputed_layers(self) -> dict[object, Floats]:
        """By which share of its work a microbatch must be recomputed, by what it depends on (`ChainSpace`)."""
        return {}

    @cached_property
    def gradient_sums(self) -> dict[object, float]:
        """What sums between copies take at least, by what it depends on (`ChainSpace.bounds`)."""
        return {}

    @cached_property
    def like_layers(self) -> tuple[int, int]:
        """The largest group of layers that are alike: the position of one, and how many there are."""
        layers = self.job.layers
        each = layers.params, layers.activation_bytes, layers.checkpoint_bytes, layers.exchanges.expert_params
        rows = np.stack(each, axis=1)
        _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
        largest = int(np.argmax(counts * layers.params[first]))
        return int(first[largest]), int(counts[largest])

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """The first of the domains that are alike in all but name and region: alone, the others plan the same."""
        first: dict[Domain, int] = {}
        for index, domain in enumerate(self.fleet.domains):
            first.setdefault(replace(domain, name="", region=""), index)
        return tuple(first.values())

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
    def kinds(self) -> dict[str, int]:
        """A number per domain, the same where a stage takes the same time: like devices in like nodes."""
        numbers: dict[object, int] = {}

        def number(d: Domain) -> int:
            network = (d.network_bandwidth_bytes_per_s, d.network_latency_s) if self.splitting.is_any else ()
            inside = (d.accelerator, d.devices_per_node, d.intra_bandwidth_bytes_per_s, d.intra_latency_s)
            return numbers.setdefault((inside, network), len(numbers))

        return {d.name: number(d) for d in self.fleet.domains}

    @cached_property
    def _kinds_first(self) -> tuple[Ints, Ints]:
        """The first domain of each of `kinds`, and the number of each domain's."""
        _, first, back = np.unique(
            [self.kinds[domain.name] for domain in self.fleet.domains], return_index=True, return_inverse=True
        )
        return first, back

    @cached_property
    def _compute_costs(self) -> dict[object, ComputeCost]:
        return {}

    def compute_cost(self, config: ParallelConfig) -> ComputeCost:
        """Return what one microbatch takes in each domain, comparable between domains."""
        if config.work not in self._compute_costs:
            kinds = [self.fleet.domains[first] for first in self._kinds_first[0]]
            layers = [self.layers(domain, config) for domain in kinds]
            cost = ComputeCost.of(layers, [self.stage_devices(domain, config) for domain in kinds])
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
        return _ranks(domain, config.tensor_parallel)

    def stage_devices(self, domain: Domain, config: ParallelConfig) -> int:
        """Return the devices of one stage in a domain."""
        return self.ranks(domain, config) * config.context_parallel

    def slots(self, domain: Domain, tensor_parallel: int, context_parallel: int = 1) -> int:
        """Return how many stages a domain has room for, all copies together.

        Pieces of a sequence lie in one node or fill nodes: none where their number does neither.
        """
        inside = domain.devices_per_node // _ranks(domain, tensor_parallel)
        if max(inside, context_parallel) % min(inside, context_parallel):
            return 0
        return domain.num_nodes * inside // context_parallel

    def stages(self, domain: Domain, config: ParallelConfig) -> int:
        """Return the stages a domain contributes to each copy."""
        slots = self.slots(domain, config.tensor_parallel, config.context_parallel)
        return min(slots // config.data_parallel, config.cap)

    def microbatches(self, config: ParallelConfig) -> int:
        """Return the microbatches each copy works through when one pipeline does the whole batch."""
        return -(-self.job.global_batch // (config.microbatch_size * config.data_parallel))

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """The microbatches searched: the one that the job fixes, or all up to LARGEST_MICROBATCH."""
        fixed = self.job.pins.microbatch
        return tuple(range(1, min(LARGEST_MICROBATCH, self.job.global_batch) + 1)) if fixed is None else (fixed,)

    def is_common(self, config: ParallelConfig) -> bool:
        """Whether a setting is tried for the first plan: microbatches of powers of two, whole sequences."""
        size = config.microbatch_size
        return config.context_parallel == 1 and config.cap not in RARE_CAPS and not size & (size - 1)

    def _pipeline_sizes(self, data_parallel: int) -> list[int]:
        """Return the microbatches worth trying for one pipeline: powers of two, and what its share is made of.

        Of a share that others leave a rest of, the last microbatch is short; one step is no better for it.
        """
        share = -(-self.job.global_batch // data_parallel)
        return [
            size
            for size in self.microbatch_sizes
            if size <= share and (not share % size or not size & (size - 1) or self.job.pins.microbatch)
        ]

    @cached_property
    def configs(self) -> tuple[ParallelConfig, ...]:
        """All inner shapes worth trying for pipelines that work off the batch: no two that mean the same on this
        fleet.

        Copies that save no microbatch have less to do and more to sum gradients with: the least that need no more
        microbatches are tried, too.
        """
        configs: dict[ParallelConfig, None] = {}
        for shape in self.shapes:
            for size in self._pipeline_sizes(shape.data_parallel):
                config = replace(shape, microbatch_size=size)
                configs[config] = None
                copies = -(-self.job.global_batch // (size * self.microbatches(config)))
                if self.job.pins.data is None and not copies * shape.context_parallel % shape.expert_parallel:
                    configs[replace(config, data_parallel=copies)] = None
        return tuple(configs)

    @cached_property
    def shapes(self) -> tuple[ParallelConfig, ...]:
        """All inner shapes for microbatches of one sample, those that share the batch with others included.

        Where the job fixes the copies of the model, fewer of them are listed too: several pipelines share them.
        """
        configs, pins = [], self.job.pins
        heads, batch = self.job.num_heads, self.job.global_batch
        widest = max((domain.devices_per_node for domain in self.fleet.domains), default=1)
        for ranks in TENSOR_PARALLEL if pins.tensor is None else (pins.tensor,):
            if ranks > widest or heads % ranks:
                continue
            for context, exchange in self._context_ways(heads // ranks):
                slots = [self.slots(domain, ranks, context) for domain in self.fleet.domains]
                for data_parallel in _data_parallel_degrees(slots, batch, pins.data):
                    most = max(count // data_parallel for count in slots)
                    caps = sorted(
                        {min(cap, most) for cap in (*CAPS, len(self.job.layers), *self._even_depths(most))}
                    )
                    if pins.pipeline is not None:
                        caps = list(range(1, min(pins.pipeline, most) + 1))
                    copies = data_parallel * context
                    configs += [
                        ParallelConfig(1, ranks, data_parallel, cap, recompute, context, exchange, experts)
                        for cap in caps
                        for recompute in self.modes
                        for experts in self.splitting.expert_degrees
                        if not copies % experts
                    ]
        return tuple(configs)

    def _even_depths(self, most: int) -> tuple[int, int]:
        """Return the stages there is room for, and the fewest whose fullest has no more of the like layers."""
        count = self.like_layers[1]
        return most, -(-count // -(-count // max(1, most)))

    @cached_property
    def undivided(self) -> Problem:
        """The same with whole sequences, all experts on every device and recomputation the same in all layers, for
        what knows no other layouts."""
        if not self.splitting.is_any and not self.is_partial:
            return self
        pins = replace(self.job.pins, context=1, expert=1) if self.splitting.is_any else self.job.pins
        return replace(self, job=replace(self.job, pins=pins), is_even=True)

    @cached_property
    def evenly_recomputed(self) -> Problem:
        """The same where all stages recompute all of their layers or none, for rules that ask no more."""
        return replace(self, is_even=True) if self.is_partial else self

    @cached_property
    def splitting(self) -> Splitting:
        """The pieces of sequences and sets of experts that are searched."""
        return Splitting.of(self.fleet, self.job)

    def _context_ways(self, heads: int) -> list[tuple[int, ContextExchange]]:
        """Return the pieces of a sequence and their exchange, for so many heads of a tensor rank."""
        return [
            (pieces, exchange)
            for pieces in self.splitting.context_degrees
            for exchange in (ContextExchange if pieces > 1 else (ContextExchange.RING,))
            if exchange is ContextExchange.RING or not heads % pieces
        ]


def _ranks(domain: Domain, tensor_parallel: int) -> int:
    if tensor_parallel <= domain.devices_per_node:
        return tensor_parallel
    # A power of two divides the heads wherever a larger one does; what a node of 6 has left over stays idle.
    return 1 << domain.devices_per_node.bit_length() - 1


def _data_parallel_degrees(slots: list[int], batch: int, fixed: int | None) -> list[int]:
    """Return the data-parallel degrees worth trying: powers of two, and those that use a domain up.

    Where the copies are fixed, all degrees that may add up to them, as far as there are not too many.
    """
    most = min(max(slots, default=0), batch, fixed or batch)
    if fixed is not None and most <= MOST_DEGREES_TRIED:
        return list(range(1, most + 1))
    degrees = {1 << k for k in range(most.bit_length()) if 1 << k <= most}
    degrees |= {
        count // parts for count in set(slots) for parts in (1, 2, 3, 4, 6, 8) if 0 < count // parts <= most
    }
    if fixed is not None and most > 0:
        degrees.add(most)
    if len(degrees) <= MOST_DEGREES_TRIED:
        return sorted(degrees)
    every = sorted(degrees)
    picks = np.unique(np.linspace(0, len(every) - 1, MOST_DEGREES_TRIED).round().astype(int))
    return [every[i] for i in picks]


def _missing_links(fleet: Fleet) -> list[Reason]:
    """Return which pairs cannot be neighbours in a pipeline, the first MOST_PAIRS_NAMED of them."""
    names = [domain.name for domain in fleet.domains]
    missing = [
        (a, b)
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        # A pair that is missing both ways is named once.
        if i != j and (a, b) not in fleet.links and (i < j or (b, a) in fleet.links)
    ]
    return [Reason("link-missing", "", {"source": a, "dest": b}) for a, b in missing[:MOST_PAIRS_NAMED]]


def _unusable(domain: Domain, job: TrainingJob) -> Reason | None:
    name = domain.name
    if domain.num_devices <= 0:
        return Reason("no-accelerators", name, {"domain": name})
    if job.limits.domains is not None and name not in job.limits.domains:
        return Reason("domain-not-allowed", name, {"domain": name})
    if job.pins.tensor is not None and job.pins.tensor > domain.devices_per_node:
        return Reason("node-too-small", name, {"ranks": job.pins.tensor, "devices": domain.devices_per_node})
    measured = job.profile is not None and any(card == domain.accelerator.name for card, _, _ in job.profile.times)
    if not measured and peak_flops(domain, job) is None:
        figure = f"{job.precision} FLOPS"
        return Reason("figure-missing", name, {"figure": figure, "accelerator": domain.accelerator.name})
    return None
