"""The planning problem: a job, the domains it may use, and the inner shapes a plan may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.fleet.fleet import Domain, Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.compute import LayerSums, peak_flops
from strata.training.plan.exact.routes import PairCosts
from strata.training.plan.exact.split import least_shares, most_shares
from strata.training.plan.exact.splits import Splits
from strata.workload.job import Recompute, TrainingJob

LARGEST_MICROBATCH: Final = 16
TENSOR_PARALLEL: Final = (1, 2, 4, 8)
"""Sizes searched. Tensor parallelism stays inside a node; larger microbatches only cost memory and bubble."""

CAPS: Final = (1, 2, 4, 8)
"""Stages per domain a plan may be held to, beside "as many as there are devices": fewer devices cost less."""

MOST_DEGREES_TRIED: Final = 24

MOST_PAIRS_NAMED: Final = 8

POOL: Final = 10
"""Domains searched exactly at once: all 2^10 subsets × settings are bounded in a fraction of a second."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The inner shape all stages of a pipeline share.

    `data_parallel` is the degree inside the domains: a domain with room for n stages contributes
    min(n // data_parallel, cap) of them to each copy.
    """

    microbatch_size: int
    tensor_parallel: int
    data_parallel: int
    cap: int
    recompute: Recompute


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

    @classmethod
    def of(cls, layers: Sequence[LayerSums | None], ranks: Sequence[int]) -> ComputeCost:
        """Return the compute cost of domains with these layer times on so many devices a stage."""
        known = [i for i, item in enumerate(layers) if item is not None]
        work_s, useful_s = np.full(len(layers), np.inf), np.zeros(len(layers))
        if not known:
            return cls(work_s, useful_s, 0.0, 0.0)
        picked = [item for item in layers if item is not None]
        work_s[known] = least_shares(np.diff([item.work for item in picked]))
        useful_s[known] = most_shares(np.diff([item.useful for item in picked]) * np.array(ranks)[known, None])
        ways = [item.forward for item in picked], [item.backward for item in picked]
        return cls(work_s, useful_s, *(float(np.diff(way).max(axis=0).sum()) for way in ways))


@dataclass(frozen=True)
class Problem:
    """A job on the part of a fleet it may use; `excluded` says why the rest is left out."""

    fleet: Fleet
    job: TrainingJob
    excluded: tuple[Reason, ...]

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

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """The first of the domains that are alike in all but name and region: alone, the others plan the same."""
        first: dict[Domain, int] = {}
        for index, domain in enumerate(self.fleet.domains):
            first.setdefault(replace(domain, name="", region=""), index)
        return tuple(first.values())

    @cached_property
    def kinds(self) -> dict[str, int]:
        """A number per domain, the same where a stage takes the same time: like devices in like nodes."""
        numbers: dict[object, int] = {}
        return {
            d.name: numbers.setdefault(
                (d.accelerator, d.devices_per_node, d.intra_bandwidth_bytes_per_s, d.intra_latency_s), len(numbers)
            )
            for d in self.fleet.domains
        }

    @cached_property
    def _compute_costs(self) -> dict[tuple[int, int, Recompute], ComputeCost]:
        return {}

    def compute_cost(self, config: ParallelConfig) -> ComputeCost:
        """Return what one microbatch takes in each domain, comparable between domains."""
        key = (config.tensor_parallel, config.microbatch_size, config.recompute)
        if key not in self._compute_costs:
            ranks = [self.ranks(domain, config) for domain in self.fleet.domains]
            layers = [
                self.model.layers(domain, r, config.microbatch_size, config.recompute)
                for domain, r in zip(self.fleet.domains, ranks, strict=True)
            ]
            self._compute_costs[key] = ComputeCost.of(layers, ranks)
        return self._compute_costs[key]

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

    def slots(self, domain: Domain, tensor_parallel: int) -> int:
        """Return how many stages a domain has room for, all copies together."""
        ranks = _ranks(domain, tensor_parallel)
        return domain.num_nodes * (domain.devices_per_node // ranks)

    def stages(self, domain: Domain, config: ParallelConfig) -> int:
        """Return the stages a domain contributes to each copy."""
        return min(self.slots(domain, config.tensor_parallel) // config.data_parallel, config.cap)

    def microbatches(self, config: ParallelConfig) -> int:
        """Return the microbatches each copy works through when one pipeline does the whole batch."""
        return -(-self.job.global_batch // (config.microbatch_size * config.data_parallel))

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """The microbatches searched: the one that the job fixes, or all up to LARGEST_MICROBATCH."""
        fixed = self.job.pins.microbatch
        return tuple(range(1, min(LARGEST_MICROBATCH, self.job.global_batch) + 1)) if fixed is None else (fixed,)

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
        """All inner shapes worth trying for pipelines: no two that mean the same on this fleet.

        Where the job fixes the copies of the model, fewer of them are listed too: several pipelines share them.
        """
        configs, pins = [], self.job.pins
        heads, batch = self.job.num_heads, self.job.global_batch
        widest = max((domain.devices_per_node for domain in self.fleet.domains), default=1)
        for ranks in TENSOR_PARALLEL if pins.tensor is None else (pins.tensor,):
            if ranks > widest or heads % ranks:
                continue
            slots = [self.slots(domain, ranks) for domain in self.fleet.domains]
            for data_parallel in _data_parallel_degrees(slots, batch, pins.data):
                most = max(count // data_parallel for count in slots)
                caps = sorted({min(cap, most) for cap in (*CAPS, len(self.job.layers), most)})
                if pins.pipeline is not None:
                    caps = list(range(1, min(pins.pipeline, most) + 1))
                for size in self._pipeline_sizes(data_parallel):
                    configs += [
                        ParallelConfig(size, ranks, data_parallel, cap, recompute)
                        for cap in caps
                        for recompute in self.job.recompute
                    ]
        return tuple(configs)


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
