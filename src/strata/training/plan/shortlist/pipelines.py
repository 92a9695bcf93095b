"""What pipelines would take, before they are built: closer than their bounds, and all at once.

The bounds of `ChainSpace` split layers in fractions; here they are whole, memory caps how many a stage holds,
and the gradient sum between copies and the optimizer are added. Estimates only: what is built is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.memory import FIXED_BYTES, gathered_inputs, kept_bytes, state_bytes
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.workload.job import Recompute

Screened = tuple[Floats, Ints, Ints]
"""Values [3, N] of branches, their settings (positions) and their items (rows of the chains' masks)."""

TOGETHER: Final = 64
"""Settings screened at a time: their tables [settings, subsets] then stay in the processor's cache."""

HALVINGS: Final = 10
"""Of the range in which the slowest stage's time lies: about a thousandth of a layer."""


@dataclass(frozen=True, slots=True)
class PipelineThroughput:
    """How fast N pipelines work, arrays [N]: M microbatches take path + (M - 1) × period + after.

    hidden_s is the backward of the shortest stage, useful_s the device-seconds of use in a microbatch of one
    copy, usd_per_s the price of the devices. period_s is inf where memory is short.
    """

    period_s: Floats
    path_s: Floats
    after_s: Floats
    hidden_s: Floats
    devices: Floats
    useful_s: Floats
    usd_per_s: Floats


@dataclass(frozen=True, slots=True)
class _Like:
    """The model as like layers: how many, which one, and what embedding and head come to beside them.

    routed_params: those of a layer's experts that tokens are sent to.
    """

    count: int
    position: int
    head: float
    params: float
    routed_params: float
    more_params: float

    @classmethod
    def of(cls, problem: Problem) -> _Like:
        layers = problem.job.layers
        flops, group, counts = np.unique(layers.forward_flops, return_inverse=True, return_counts=True)
        pick = int(np.argmax(counts * flops))
        position, count = int(np.argmax(group == pick)), int(counts[pick])
        params = float(layers.params[position])
        head = float(layers.forward_flops.sum() / flops[pick]) - count if flops[pick] else 0.0
        routed, more = float(layers.exchanges.expert_params[position]), float(layers.params.sum()) - count * params
        return cls(count, position, max(0.0, head), params, routed, max(0.0, more))


class ChainEstimates:
    """Estimates of (time, -utilisation, money) of branches of a ChainSpace."""

    def __init__(self, problem: Problem, chains: ChainSpace, configs: Sequence[ParallelConfig]) -> None:
        self.problem, self.chains, self.configs = problem, chains, configs
        self.like = _Like.of(problem)
        self._tables()

    def _tables(self) -> None:
        """Tabulate [configuration, domain] what each domain brings."""
        problem, domains, job = self.problem, self.problem.fleet.domains, self.problem.job
        configs = self.configs
        works, rows = dict[object, int](), list[tuple[Floats, Floats, Floats, Floats]]()
        for config in configs:
            if works.setdefault(config.work, len(rows)) < len(rows):
                continue
            compute_cost = problem.compute_cost(config)
            ranks = np.array([problem.ranks(d, config) for d in domains], dtype=float)
            sizes = config.tensor_parallel, config.context_parallel
            slots = np.array([problem.slots(d, *sizes) for d in domains], dtype=float)
            rows.append((compute_cost.work_s, compute_cost.useful_s, ranks, slots))
        of_work = [works[config.work] for config in configs]
        columns = (np.stack(column)[of_work] for column in zip(*rows, strict=True))
        self.work, self.useful, self.ranks, self.slots = columns
        self.data_parallel = np.array([s.data_parallel for s in configs], dtype=float)
        self.context = np.array([s.context_parallel for s in configs], dtype=float)
        away = 1 - 1 / np.array([s.expert_parallel for s in configs], dtype=float)
        self.layer_params = self.like.params - self.like.routed_params * away  # on the tensor ranks of a stage
        caps = np.array([s.cap for s in configs], dtype=float)
        self.stages = np.minimum(self.slots // self.data_parallel[:, None], caps[:, None])
        numbers: dict[tuple[object, ...], int] = {}
        uncapped = [(at, s.data_parallel, s.holds_outer) for at, s in zip(of_work, configs, strict=True)]
        self.uncapped = np.array([numbers.setdefault(each, len(numbers)) for each in uncapped])
        # A cap that no domain of a subset reaches makes the branch of the next smaller one again.
        order = np.argsort(self.uncapped, kind="stable")
        row, before = (order[at][np.diff(self.uncapped[order]) == 0] for at in (np.s_[1:], np.s_[:-1]))
        self.more = np.ones(self.stages.shape)
        self.more[row] = self.stages[row] > self.stages[before]
        self.size = np.array([s.microbatch_size for s in configs], dtype=float)
        self.full = np.array([s.recompute is Recompute.FULL for s in configs])
        layers, position = job.layers, self.like.position
        whole = float(layers.activation_bytes[position])
        kept = {mode: float(kept_bytes(layers, mode)[position]) for mode in {s.recompute for s in configs}}
        self.kept_bytes = np.array([kept[s.recompute] for s in configs])
        # What is recomputed of a layer is there while its backward runs.
        self.again_bytes = np.where(self.full, whole, whole - self.kept_bytes)
        self.count = np.array([problem.microbatches(s) for s in configs], dtype=float)
        self.load = self.data_parallel * (self.size * problem.message_bytes(1))
        price = [d.price_usd_per_device_hour for d in domains]
        self.usd_per_s = np.array([0.0 if None in price else (p or 0.0) / 3600 for p in price])
        self.limit = np.array([problem.model.memory_limit_bytes(d) for d in domains])
        self.update = np.array(
            [
                2 * job.state_bytes_per_param / (d.accelerator.memory_bandwidth_bytes_per_s or np.inf)
                for d in domains
            ]
        )
        self.network = np.array([d.network_bandwidth_bytes_per_s for d in domains])
        self.inner = np.array([d.intra_bandwidth_bytes_per_s for d in domains])
        self.node = np.array([d.devices_per_node for d in domains], dtype=float)

    def values(self, config: Ints, item: Ints) -> Floats:
        """Return [3, N] for settings (positions) and rows of the chains' masks; inf where memory is short."""
        estimates = np.empty((3, len(item)))
        sizes = self.chains.inside.sum(axis=1)
        members = np.argsort(1 - self.chains.inside, axis=1, kind="stable")
        for size in np.unique(sizes[item]):
            rows = np.flatnonzero(sizes[item] == size)
            estimates[:, rows] = self._values(config[rows], item[rows], members[item[rows], :size])
        return estimates

    def _values(self, config: Ints, item: Ints, at: Ints) -> Floats:
        """Return [3, N] for subsets of equal size, whose domains are `at` [N, size]."""
        route: Floats = np.empty((4, len(item)))
        for size in np.unique(self.size[config]):
            rows_of_unit = np.flatnonzero(self.size[config] == size)
            route[:, rows_of_unit] = [cost[item[rows_of_unit]] for cost in self.chains.path_costs(int(size))]
        throughput = self.throughput(config, at, route)
        count, data_parallel = self.count[config], self.data_parallel[config]
        possible = np.isfinite(throughput.period_s)
        step_s = (
            throughput.path_s + (count - 1) * np.where(possible, throughput.period_s, 0.0) + throughput.after_s
        )
        usd = throughput.usd_per_s * step_s + count * self.load[config] * route[3]
        step_s = np.where(possible, step_s, np.inf)
        return np.stack(
            [step_s, -throughput.useful_s * count * data_parallel / (throughput.devices * step_s), usd]
        )

    def throughput(
        self, config: Ints, at: Ints, route: Floats, *, ahead: Floats | float = 0.0
    ) -> PipelineThroughput:
        """Return the throughput of pipelines over the domains `at` [N, size], all of one size.

        route: [4, N] slowest link, Σ 1/B, Σ latency, Σ price between them. ahead: [N] microbatches that each
        stage holds beside those of classic 1F1B.
        """
        like, job, row = self.like, self.problem.job, config[:, None]
        stages, whole_s, ranks = self.stages[row, at], self.work[row, at], self.ranks[row, at]
        layer_s = whole_s / (like.count + like.head)
        total, data_parallel = stages.sum(axis=1), self.data_parallel[config]
        held = np.minimum(total, 2 * self.count[config])
        most = self._most(row, at, held[:, None], np.broadcast_to(ahead, total.shape)[:, None])
        slowest, layers = self._split(stages, layer_s, most)
        layers, alone = np.minimum(layers, like.count), (total == 1)[:, None]
        held = np.maximum(stages * layers, 0.0)
        share = held / np.maximum(held.sum(axis=1), 1.0)[:, None]
        load = self.load[config]
        context, more = self.context[row], np.where(alone, 1.0, 0.5) * like.more_params
        params, members = layers * self.layer_params[row] + more, data_parallel[:, None] * context
        copy = stages * ranks  # `traffic.replica_wire`, for many at once
        card = self.network[at] / np.maximum(1.0, np.minimum(copy * context, self.node[at]) / context)
        shared = (copy < self.node[at]) | (context > 1)
        card = np.where(shared, np.minimum(card, self.inner[at]), card)
        wire = np.where(members * copy <= self.node[at], self.inner[at], card)
        backward = (layers + np.where(alone, like.head, 0.0)) * layer_s * np.where(self.full[row], 0.75, 2 / 3)
        sync = 2 * (1 - 1 / members) * params / ranks * job.element_bytes / wire - backward
        devices = copy * members
        updated = (layers * like.params + more) / members if min(job.zero_stages) else params
        return PipelineThroughput(
            period_s=np.maximum(slowest, load * route[0]),
            path_s=(share * whole_s).sum(axis=1) + load * route[1] + route[2],
            after_s=sync.max(axis=1, initial=0.0) + (updated / ranks * self.update[at]).max(axis=1),
            hidden_s=backward.min(axis=1),
            devices=devices.sum(axis=1),
            useful_s=(share * self.useful[row, at]).sum(axis=1),
            usd_per_s=(devices * self.usd_per_s[at]).sum(axis=1),
        )

    def screen(self, configs: Ints, masks: Ints) -> Iterator[Screened]:
        """Yield all branches of these settings over these masks (rows) that might fit, of some settings at a time.

        Coarser than `values`: layers in fractions, and memory as `ChainSpace.may_fit` sees it.
        """
        for first in range(0, len(configs), TOGETHER):
            yield self._screened(configs[first : first + TOGETHER], masks)

    def _screened(self, configs: Ints, masks: Ints) -> Screened:
        inside = self.chains.inside[masks].astype(float).T
        stages, work = self.stages[configs], self.work[configs]
        ranks = self.ranks[configs] * self.context[configs][:, None]
        total, layers = stages @ inside, len(self.problem.job.layers)
        unable = ((stages == 0) | np.isinf(work)).astype(float) @ inside
        held = self._may_fit[configs]
        sizes, group = np.unique(self.size[configs], return_inverse=True)
        routes = np.stack([np.stack(self.chains.path_costs(int(size))) for size in sizes])[:, :, masks]
        fits = np.take_along_axis(held, np.minimum(total, layers).astype(np.int64), axis=1)
        fits &= (unable == 0) & (total <= layers) & np.isfinite(routes[group, 0])
        rows, items = np.nonzero(fits & (self.more[configs] @ inside > 0))
        slow, slow_sum, latency, price = routes[group[rows], :, items].T
        each = np.divide(stages, work, out=np.zeros_like(work), where=np.isfinite(work))
        pace, data_parallel = (each @ inside)[rows, items], self.data_parallel[configs[rows]]
        useful = ((each * np.where(each > 0, self.useful[configs], 0.0)) @ inside)[rows, items] / pace
        devices = ((stages * ranks) @ inside)[rows, items] * data_parallel
        usd_per_s = ((stages * ranks * self.usd_per_s) @ inside)[rows, items] * data_parallel
        count, load = self.count[configs[rows]], self.load[configs[rows]]
        path_s = total[rows, items] / pace + load * slow_sum + latency
        step_s = path_s + (count - 1) * np.maximum(1 / pace, load * slow)
        usd = usd_per_s * step_s + count * load * price
        values = np.stack([step_s, -useful * count * data_parallel / (devices * step_s), usd])
        return values, configs[rows], masks[items]

    @cached_property
    def _may_fit(self) -> Bools:
        """Whether a setting might fit on so many stages [configuration, stages]."""
        _, first, number = np.unique(self.uncapped, return_index=True, return_inverse=True)
        held = self.chains.most_held([self.configs[row] for row in first.tolist()])
        return np.asarray(held >= len(self.problem.large_layers))[number]

    def _most(self, row: Ints, at: Ints, total: Floats, ahead: Floats) -> Floats:
        """Return how many layers a stage in each domain can hold, the mean of `total` stages."""
        job, layers, like = self.problem.job, self.problem.job.layers, self.like
        size = self.size[row] / (self.ranks[row, at] * self.context[row])
        zero = max(job.zero_stages)
        alone = state_bytes(job, like.params, shards=1, zero_stage=zero)
        shared = state_bytes(job, like.params, shards=1 << 40, zero_stage=zero)
        held, members = self.layer_params[row] / like.params, self.data_parallel[row] * self.context[row]
        state = (shared * held + (alone - shared) / members) / self.ranks[row, at]
        kept, again = size * self.kept_bytes[row], size * self.again_bytes[row]
        gathered = layers.hidden_bytes[like.position] * gathered_inputs(job)
        again = again + gathered * size * (self.ranks[row, at] - 1)
        room = self.limit[at] - FIXED_BYTES - again
        # The k-th stage from the end holds k microbatches: the mean of 1 / (state + k kept) over the stages.
        sent = total * np.maximum(kept, 1e-9)
        mean = np.log1p(sent / (state + (ahead + 0.5) * kept)) / sent
        return np.asarray(np.maximum(0.0, np.floor(room * mean)))

    def _split(self, stages: Floats, layer_s: Floats, most: Floats) -> tuple[Floats, Floats]:
        """Return the slowest stage's time (inf: no room) and layers of a stage in each domain."""
        like, rows = self.like, np.arange(len(stages))
        last = layer_s.argmin(axis=1)  # the head goes where it is done fastest
        each, total = layer_s[rows, last], stages.sum(axis=1)
        pace = (stages / layer_s).sum(axis=1)
        # The head cannot be cut, however many stages there are.
        low = np.maximum((like.count + like.head) / pace * (1 - 1e-9), like.head * each)
        high = low + total / pace + each
        # Embedding and head take room, too: as much as the layers of as many parameters.
        possible = (stages * most).sum(axis=1) >= like.count + like.more_params / max(like.params, 1.0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self._held(middle, stages, layer_s, most, each, rows, last) >= like.count
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        layers = np.minimum(np.floor(high[:, None] / layer_s + 1e-9), most)
        held = self._held(high, stages, layer_s, most, each, rows, last)
        return np.where(possible & (held >= like.count), high, np.inf), layers

    def _held(
        self, limit_s: Floats, stages: Floats, layer_s: Floats, most: Floats, each: Floats, rows: Ints, last: Ints
    ) -> Floats:
        layers = np.minimum(np.floor(limit_s[:, None] / layer_s + 1e-9), most)
        head = np.floor(limit_s / each + 1e-9) - np.maximum(0.0, np.floor(limit_s / each - self.like.head + 1e-9))
        return np.asarray((stages * layers).sum(axis=1) - head)
