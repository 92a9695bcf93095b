"""Pipelines over one domain or a chain of them: a bound for every subset and configuration, and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, permutations
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.decision import Reason
from strata.fleet.fleet import Domain
from strata.simulate.compute import LayerSums
from strata.simulate.memory import FIXED_BYTES, kept_bytes, state_bytes
from strata.simulate.screening import any_split_bound_s
from strata.simulate.traffic import replica_wire
from strata.training.plan.exact.chain import CHUNKS, Chain, chains, least_path_share
from strata.training.plan.exact.problem import ComputeCost, ParallelConfig, Problem
from strata.training.plan.exact.routes import PairCosts, best_route, efficient_routes, path_table
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import TrainingPlan

ALL_ORDERS: Final = 4
"""Up to so many domains every order is built; above, the one with the shortest route for its slowest link."""


@dataclass(frozen=True)
class Bounds:
    """What no plan of a (configuration, subset) can beat: arrays [masks] of time, utilisation and money."""

    step_s: Floats
    utilization: Floats
    cost_usd: Floats


class ChainSpace:
    """All pipelines whose domains are a subset of `members` (positions in the fleet), as bit masks."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        self.problem, self.members = problem, members
        self.domains = [problem.fleet.domains[i] for i in members]
        count = len(members)
        self.masks = np.arange(1, 1 << count)
        self._path_tables: dict[int, tuple[Floats, Floats, Floats, Floats]] = {}
        self._held: dict[tuple[int, int, int, Recompute], Floats] = {}
        self.inside = (self.masks[:, None] >> np.arange(count)) & 1  # [masks, K]

    def path_costs(self, microbatch_size: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Least (slowest link, Σ 1/B, Σ latency, Σ price) of a path over each mask, each on its own."""
        size = microbatch_size if self._curved else 1
        if size not in self._path_tables:
            self._path_tables[size] = self._least_paths(self.problem.pair_costs(size))
        return self._path_tables[size]

    @cached_property
    def _curved(self) -> bool:
        return any(link.curve is not None for link in self.problem.fleet.links.values())

    def _least_paths(self, costs: PairCosts) -> tuple[Floats, Floats, Floats, Floats]:
        pick = np.ix_(self.members, self.members)
        slow = path_table(costs.slowness[pick], "max")[1:].min(axis=1)
        slow_sum, latency, price = (
            path_table(matrix[pick], "sum")[1:].min(axis=1)
            for matrix in (costs.slowness_sum, costs.latency_sum, costs.price_sum)
        )
        return slow, slow_sum, latency, price

    def bounds(self, config: ParallelConfig) -> Bounds:
        """Return bounds for every mask; inf where the configuration cannot use all domains of the mask.

        With W = Σ(f+b), S stages, M microbatches, x the slowest link and C the round trips of the route:
        T >= W + C + (M-1) x, since the last message over a link still has the rest of its way to go; and
        T >= upstream(i) + M t_i for every stage i, so T >= W / (1 - (1 - 1/M)^S), the value when every stage's
        bound is equal, and >= M / Σ(stages / work). With N equal layers of time t over S stages some stage holds
        q = ceil(N/S) or more: if none holds more, the last of those comes after at least S - r - 1 others
        (r = qS - N), so T >= t q (M + S - r - 1), else T >= t (q + 1) M. Interleaved chunks and weight gradients
        apart relax what is upstream (`screening.any_split_bound_s`). Gradients between copies add at least their
        mean over stages.
        """
        problem, count = self.problem, len(self.problem.job.layers)
        stages = np.array([problem.stages(d, config) for d in self.domains])
        compute_cost = problem.compute_cost(config)
        work, useful = compute_cost.work_s[list(self.members)], compute_cost.useful_s[list(self.members)]
        slow, slow_sum, latency, price = self.path_costs(config.microbatch_size)
        total_stages = self.inside @ stages
        pins = problem.job.pins
        valid = (total_stages > 0) & (total_stages <= count) & np.isfinite(slow)
        if pins.pipeline is not None:
            valid &= total_stages == pins.pipeline
        if pins.data is not None:
            valid &= config.data_parallel == pins.data
        valid &= self.inside @ ((stages == 0) | np.isinf(work)) == 0
        rows = np.flatnonzero(valid)
        rows = rows[self.may_fit(config, total_stages[rows])]
        bounds = Bounds(*(np.full(len(self.masks), value) for value in (np.inf, 0.0, np.inf)))
        if not len(rows):
            return bounds
        inside, total_stages = self.inside[rows], total_stages[rows]
        slow, slow_sum, latency, price = slow[rows], slow_sum[rows], latency[rows], price[rows]

        microbatches, data_parallel = problem.microbatches(config), config.data_parallel
        least_work = np.where(inside == 1, work, np.inf).min(axis=1)
        pace = 1.0 / (inside @ np.where(np.isinf(work), 0.0, stages / work))
        shrink = -np.expm1(total_stages * np.log1p(-1.0 / microbatches)) if microbatches > 1 else 1.0
        compute = np.maximum(least_work / shrink, pace * microbatches)
        load = data_parallel * problem.message_bytes(config.microbatch_size)
        route = load * slow_sum + latency
        if self._alike and (layers := self._layers(self.domains[0], config)) is not None:
            equal, layer_s = _equal_layers(np.diff(layers.work))
            q = -(-equal // total_stages)
            short = q * total_stages - equal
            fewest = np.where(inside == 1, stages, count + 1).min(axis=1)
            even = q * (microbatches + total_stages - short - 1) * layer_s + np.where(short < fewest, route, 0.0)
            compute = np.maximum(compute, np.minimum(even, (q + 1) * microbatches * layer_s))
        if Schedule.INTERLEAVED in problem.job.schedules:
            chunked = any_split_bound_s(least_work, total_stages, microbatches, pieces=CHUNKS)
            compute = np.where(inside.sum(axis=1) == 1, np.minimum(compute, chunked), compute)
        if Schedule.ZERO_BUBBLE in problem.job.schedules:
            compute = pace * microbatches
        network = least_work * least_path_share(problem.job) + route + (microbatches - 1) * load * slow
        step_s = np.maximum(compute, network) + self._sync_bound(config, total_stages, compute_cost)
        ranks = np.array([problem.ranks(d, config) for d in self.domains])
        devices = inside @ (stages * ranks) * data_parallel
        busy = np.where(inside == 1, useful, 0.0).max(axis=1) * microbatches * data_parallel
        bounds.step_s[rows] = step_s
        bounds.utilization[rows] = busy / (devices * step_s)
        bounds.cost_usd[rows] = (
            self._usd(stages * ranks)[rows] * (data_parallel / 3600) * step_s + microbatches * load * price
        )
        return bounds

    @cached_property
    def _alike(self) -> bool:
        return len({self.problem.kinds[d.name] for d in self.domains}) == 1

    def _usd(self, devices: Ints) -> Floats:
        """Return the USD an hour of so many devices a domain for each mask, 0 where a price is not known."""
        prices = [d.price_usd_per_device_hour for d in self.domains]
        unknown = self.inside @ np.array([price is None for price in prices])
        return np.where(unknown, 0.0, self.inside @ (devices * np.array([price or 0.0 for price in prices])))

    def _sync_bound(self, config: ParallelConfig, stages: Ints, compute_cost: ComputeCost) -> Floats:
        if config.data_parallel == 1:
            return np.zeros(len(stages))
        job, data_parallel = self.problem.job, config.data_parallel
        fastest = 0.0
        for d in self.domains:
            # A copy takes the same devices of a domain in every subset that has it; without one there is no ring.
            devices = self.problem.ranks(d, config) * self.problem.stages(d, config)
            if devices:
                fastest = max(fastest, replica_wire(d, replicas=data_parallel, copy_devices=devices)[0])
        shard = float(job.layers.params_before[-1]) * job.element_bytes / config.tensor_parallel
        whole = 2 * (data_parallel - 1) / data_parallel * shard / fastest
        if max(job.zero_stages) >= 2:
            return np.zeros(len(stages))  # hidden behind the work of every microbatch
        # Under ZeRO-1 half of it hides behind the forward, half behind the backward.
        hidden_s = compute_cost.backward_s + (compute_cost.forward_s if max(job.zero_stages) else 0.0)
        return np.asarray(np.maximum(0.0, (whole - hidden_s) / stages))

    def may_fit(self, config: ParallelConfig, stages: Ints) -> Bools:
        """Whether memory could hold the model's like layers on so many stages of the largest devices.

        A stage k-th from the end holds at least min(k, M) microbatches of activations under every schedule.
        """
        # A cap changes nothing of it, and most settings differ in that alone.
        key = (config.tensor_parallel, config.data_parallel, config.microbatch_size, config.recompute)
        if key not in self._held:
            self._held[key] = self._most_layers(config)
        layers = len(self.problem.job.layers)
        return np.asarray(self._held[key][np.minimum(stages, layers)] >= self._like_layers[1])

    def _most_layers(self, config: ParallelConfig) -> Floats:
        """Return how many like layers so many of the last stages could hold, [stages + 1]."""
        job, ranks = self.problem.job, config.tensor_parallel
        group, _ = self._like_layers
        full = config.recompute is Recompute.FULL
        params, size = float(job.layers.params[group]), config.microbatch_size / ranks
        state = state_bytes(job, params / ranks, shards=config.data_parallel, zero_stage=max(job.zero_stages))
        kept = float(kept_bytes(job.layers, config.recompute)[group]) * size
        again = float(job.layers.activation_bytes[group]) * size if full else 0.0
        room = max(self.problem.model.memory_limit_bytes(d) for d in self.domains) - FIXED_BYTES - again
        in_flight = np.minimum(np.arange(1, len(job.layers) + 1), self.problem.microbatches(config))
        most = np.floor(room / (state + in_flight * kept) * (1 + 1e-9))
        return np.asarray(np.concatenate([[0], np.cumsum(np.maximum(0, most))]))

    @cached_property
    def _like_layers(self) -> tuple[int, int]:
        """The largest group of layers that are alike: the position of one, and how many there are."""
        layers = self.problem.job.layers
        rows = np.stack([layers.params, layers.activation_bytes, layers.checkpoint_bytes], axis=1)
        _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
        largest = int(np.argmax(counts * layers.params[first]))
        return int(first[largest]), int(counts[largest])

    def build(self, config: ParallelConfig, mask: int) -> list[TrainingPlan] | Reason:
        """Return the plans of one subset: its fastest orders under each allowed schedule that fits memory."""
        built = self.open(config, mask)
        return built if isinstance(built, Reason) else [chain.plan for chain in built]

    def open(self, config: ParallelConfig, mask: int) -> list[Chain] | Reason:
        """Return the chains of one subset, their layers not yet split, or why none fits."""
        picked = tuple(i for k, i in enumerate(self.members) if mask >> k & 1)
        built: list[Chain] = []
        refusal: Reason | None = None
        for order in self.orders(config, picked):
            for chain in chains(self.problem, config, order):
                if isinstance(chain, Reason):
                    refusal = chain
                    continue
                stages = np.array([len(chain.plan.pipelines[0].stages)])
                after_s = self._sync_bound(config, stages, self.problem.compute_cost(config))
                built.append(replace(chain, after_s=float(after_s[0])))
        if built:
            return built
        assert refusal is not None, "a subset without an order has an infinite bound"
        return refusal

    def order_bounds(self, config: ParallelConfig, orders: Sequence[tuple[int, ...]], bound: Floats) -> Floats:
        """Return bounds [orders, 3] on (time, -utilisation, money) of orders of one subset, from that on them all.

        T >= W + C + (M-1) x as in `bounds`, with the links of this order; the money is that of its links.
        """
        if len(orders[0]) == 1:
            return bound[None, :]
        at = np.array(orders)
        here, there = at[:, :-1], at[:, 1:]
        costs, count = self.problem.pair_costs(config.microbatch_size), self.problem.microbatches(config)
        load = config.data_parallel * self.problem.message_bytes(config.microbatch_size)
        least_work = self.problem.compute_cost(config).work_s[at[0]].min()
        route = load * costs.slowness_sum[here, there].sum(axis=1) + costs.latency_sum[here, there].sum(axis=1)
        slow = load * costs.slowness[here, there].max(axis=1)
        least_path = least_work * least_path_share(self.problem.job)
        step_s = np.maximum(bound[0], (least_path + route + (count - 1) * slow) * (1 - 1e-12))
        egress = count * load * costs.price_sum[here, there].sum(axis=1)
        mask = sum(1 << self.members.index(i) for i in orders[0])
        least = count * load * float(self.path_costs(config.microbatch_size)[3][mask - 1])
        usd = (bound[2] + (bound[2] - least) * (step_s / bound[0] - 1) + egress - least) * (1 - 1e-12)
        return np.stack([step_s, bound[1] * bound[0] / step_s * (1 + 1e-12), usd], axis=1)

    def orders(
        self, config: ParallelConfig, picked: tuple[int, ...], *, all_efficient: bool = False
    ) -> list[tuple[int, ...]]:
        """Return the orders of a subset worth building: all of few domains, of more those that may be the fastest.

        `all_efficient` asks for every order that is best in some mix of time and price, for a Pareto front.
        """
        costs = self.problem.pair_costs(config.microbatch_size)
        if len(picked) <= ALL_ORDERS:
            return [order for order in permutations(picked) if _connected(costs, order)]
        if all_efficient:
            load = self.problem.message_bytes(config.microbatch_size) * config.data_parallel
            orders = efficient_routes(costs, picked, load_bytes=load)
            return [*orders, *(order[::-1] for order in orders)]
        order = self.fastest_order(config, picked)
        return [order, order[::-1]]  # the relaxation above sees no difference; embedding and head make one

    def fastest_order(self, config: ParallelConfig, picked: tuple[int, ...]) -> tuple[int, ...]:
        """Return the order that makes a step shortest by the bound of `bounds`, its slowest stage the mean one."""
        domains = [self.problem.fleet.domains[i] for i in picked]
        work = min(float(layers.work[-1]) for d in domains if (layers := self._layers(d, config)) is not None)
        stages = sum(self.problem.stages(d, config) for d in domains)
        order, _ = best_route(
            self.problem.pair_costs(config.microbatch_size), picked,
            message_bytes=self.problem.message_bytes(config.microbatch_size), data_parallel=config.data_parallel,
            period_s=work / stages, microbatches=self.problem.microbatches(config),
        )  # fmt: skip
        return order

    def _layers(self, domain: Domain, config: ParallelConfig) -> LayerSums | None:
        ranks = self.problem.ranks(domain, config)
        return self.problem.model.layers(domain, ranks, config.microbatch_size, config.recompute)


def _equal_layers(layer_s: Floats) -> tuple[int, float]:
    """Return the largest group of layers that take the same time: how many, and how long each at least."""
    scale = max(float(layer_s.max()), 1e-300)
    values, group, counts = np.unique((layer_s / scale).round(9), return_inverse=True, return_counts=True)
    pick = int(np.argmax(values * counts))
    return int(counts[pick]), float(layer_s[group == pick].min())


def _connected(costs: PairCosts, order: tuple[int, ...]) -> bool:
    return all(np.isfinite(costs.slowness[a, b]) for a, b in pairwise(order))
