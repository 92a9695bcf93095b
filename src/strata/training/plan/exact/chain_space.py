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
from strata.simulate.memory import FIXED_BYTES, StageShape, kept_bytes, layer_state_bytes, transient_bytes
from strata.simulate.screening import any_split_bound_s, zero_bubble_share
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.compute_cost import ComputeCost
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.copy_sums import after_s, gradients_s
from strata.training.plan.exact.orders import chunk_counts, fixed_chunks, folds
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.routes import PairCosts, best_route, efficient_routes, path_table
from strata.training.plan.exact.row_bounds import least_of_orders_s
from strata.training.plan.exact.rows import Refusal, chains
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
        self._known: dict[ParallelConfig, dict[tuple[int, int], float]] = {}
        """What pipelines of a setting take at least, by the kind of their domains and their stages (`look`)."""
        self.inside = (self.masks[:, None] >> np.arange(count)) & 1  # [masks, K]

    def path_costs(self, microbatch_size: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Least (slowest link, Σ 1/B, Σ latency, Σ price) of a path over each mask, each on its own."""
        size = microbatch_size if self._curved else 1
        if size not in self._path_tables:
            self._path_tables[size] = self._least_paths(self.problem.pair_costs(size))
        return self._path_tables[size]

    @property
    def joins(self) -> bool:
        """Whether any pipeline crosses domains."""
        return len(self.members) > 1

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

    def bounds(self, config: ParallelConfig, among: Ints | None = None) -> Bounds:
        """Return bounds for every mask, or `among` some (positions, the others are inf).

        inf, too, where the configuration cannot use all domains of the mask.

        With W = Σ(f+b), S stages, M microbatches, x the slowest link and C the round trips of the route:
        T >= W + C + (M-1) x, since the last message over a link still has the rest of its way to go; and
        T >= upstream(i) + M t_i for every stage i, so T >= W / (1 - (1 - 1/M)^S), the value when every stage's
        bound is equal, and >= M / Σ(stages / work). The stage of the longest layer takes no
        less than that one, and all others are upstream of the last layer's. Where domains are alike the least over
        all splits is known (`any_split`). Chunks and weight gradients apart relax what is upstream (`_chunked_s`,
        `_zero_bubble_s`). Gradients between copies and updates add at least their mean over stages (`copy_sums`).
        """
        problem, job, count = self.problem, self.problem.job, len(self.problem.job.layers)
        stages = np.array([problem.stages(d, config) for d in self.domains])
        compute_cost = problem.compute_cost(config)
        work, useful = compute_cost.work_s[list(self.members)], compute_cost.useful_s[list(self.members)]
        pins, every = problem.job.pins, self.path_costs(config.microbatch_size)
        inside = self.inside if among is None else self.inside[among]
        slow, slow_sum, latency, price = every if among is None else (cost[among] for cost in every)
        total_stages = inside @ stages
        valid = (total_stages > 0) & (total_stages <= count) & np.isfinite(slow)
        if pins.pipeline is not None:
            valid &= total_stages == pins.pipeline
        if pins.stages is not None:
            valid &= inside.sum(axis=1) == len(pins.stages)
        if pins.data is not None:
            valid &= config.data_parallel == pins.data
        valid &= inside @ ((stages == 0) | np.isinf(work)) == 0
        picked = np.flatnonzero(valid)
        picked = picked[self.may_fit(config, total_stages[picked])]
        bounds = Bounds(*(np.full(len(self.masks), value) for value in (np.inf, 0.0, np.inf)))
        if not len(picked):
            return bounds
        rows = picked if among is None else among[picked]
        inside, total_stages = inside[picked], total_stages[picked]
        slow, slow_sum, latency, price = slow[picked], slow_sum[picked], latency[picked], price[picked]

        microbatches, data_parallel = problem.microbatches(config), config.data_parallel
        least_work = np.where(inside == 1, work, np.inf).min(axis=1)
        pace = 1.0 / (inside @ np.where(np.isinf(work), 0.0, stages / work))
        again = 1 + self._again(config, total_stages)
        least_work, pace = least_work * again, pace * again
        shrink = -np.expm1(total_stages * np.log1p(-1.0 / microbatches)) if microbatches > 1 else 1.0
        compute = np.maximum(least_work / shrink, pace * microbatches)
        load = data_parallel * problem.message_bytes(config.microbatch_size)
        route = load * slow_sum + latency
        alike = self._alike(inside)
        compute = np.maximum(compute, self._any_split_s(config, alike, total_stages, 1.0))
        last, longest = (
            np.where(inside == 1, layer_s[list(self.members)], np.inf).min(axis=1)
            for layer_s in (compute_cost.last_s, compute_cost.longest_s)
        )
        compute = np.maximum(compute, least_work + (microbatches - 1) * last)
        waits = route + (microbatches - 1) * load * slow
        step_s = np.maximum(compute, least_work + waits)
        single = np.flatnonzero(inside.sum(axis=1) == 1)
        paced = np.maximum(pace, longest) * microbatches
        paced = np.maximum(paced, self._any_split_s(config, alike, total_stages, 0.0))
        step_s = np.maximum(step_s, paced)
        is_fixed = (pins.virtual_stages or 1) > 1
        if is_fixed:
            step_s = np.full(len(rows), np.inf)
        if Schedule.INTERLEAVED in problem.job.schedules or (
            is_fixed and Schedule.INTERLEAVED in fixed_chunks(job)
        ):
            chunked = self._chunked_s(config, least_work[single], total_stages[single], alike[single])
            chunked = np.maximum(chunked, np.maximum(least_work, paced)[single])
            step_s[single] = np.minimum(step_s[single], chunked)
        if Schedule.ZERO_BUBBLE in problem.job.schedules and not is_fixed:
            share = compute_cost.weight_share
            apart = np.maximum(paced, self._zero_bubble_s(config, least_work, total_stages, alike, single))
            # Between neighbours that a link parts two microbatches are in flight (`screening.ordered_bound_s`).
            rounds = np.maximum(0, microbatches + 1 - total_stages) // 2 / np.maximum(1, inside.sum(axis=1) - 1)
            across = np.maximum(least_work * (1 - share) + waits, rounds * route)
            step_s = np.minimum(step_s, np.maximum(apart, across))
        for (kind, depth), known_s in self._known.get(config, {}).items():
            like = (alike == kind) & (total_stages == depth) & (inside.sum(axis=1) > 1)
            step_s[like] = np.maximum(step_s[like], known_s)
        step_s = step_s + self._after_s(config, inside, compute_cost, total_stages) / total_stages
        if Schedule.DUAL_PIPE_V in job.schedules:
            folded = [row for row in single.tolist() if folds(job, int(total_stages[row]), microbatches)]
            # Stages hold layers from both ends of the model: what is known of runs of layers says nothing.
            least_s = np.maximum(pace, longest)[folded] * microbatches
            step_s[folded] = np.minimum(step_s[folded], least_s)
        each = np.array([problem.stage_devices(d, config) for d in self.domains])
        devices = inside @ (stages * each) * data_parallel
        busy = np.where(inside == 1, useful, 0.0).max(axis=1) * microbatches * data_parallel
        usd_per_s = self._usd(stages * each, inside) * (data_parallel / 3600)
        some = np.isfinite(step_s)  # not where memory is known to hold no split
        rows, step_s = rows[some], step_s[some]
        bounds.step_s[rows] = step_s
        bounds.utilization[rows] = busy[some] / (devices[some] * step_s)
        bounds.cost_usd[rows] = usd_per_s[some] * step_s + microbatches * load * price[some]
        return bounds

    def look(self, config: ParallelConfig, mask: int) -> Ints | None:
        """Look into how the memory of so many stages lets layers be split, where domains are alike.

        Returns the positions of the masks whose `bounds` may be closer now; None where they were before.
        """
        picked = tuple(i for k, i in enumerate(self.members) if mask >> k & 1)
        alike = self._alike(self.inside)
        stages = self.inside @ np.array([self.problem.stages(d, config) for d in self.domains])
        at = int(np.searchsorted(self.masks, mask))
        key, known = (int(alike[at]), int(stages[at])), self._known.setdefault(config, {})
        if len(picked) == 1 or key[0] < 0 or key in known:
            return None
        known[key] = least_of_orders_s(self.problem, config, picked)
        return np.flatnonzero((alike == key[0]) & (stages == key[1]) & (self.inside.sum(axis=1) > 1))

    def _alike(self, inside: Ints) -> Ints:
        """Return the kind of the domains of some masks, -1 where they are unlike."""
        kinds = np.array([self.problem.kinds[d.name] for d in self.domains])
        kind = np.where(inside == 1, kinds, -1).max(axis=1)
        return np.where(np.where(inside == 1, kinds, kind[:, None]).min(axis=1) == kind, kind, -1)

    def _any_split_s(self, config: ParallelConfig, alike: Ints, stages: Ints, upstream: float) -> Floats:
        """Return `any_split.least_s` of some masks, 0 where their domains are unlike."""
        least: Floats = np.zeros(len(stages))
        for kind in np.unique(alike[alike >= 0]).tolist():
            some = stages[alike == kind]
            least[alike == kind] = self.problem.any_split_s(kind, config, upstream, int(some.max()))[some]
        return least

    def _chunked_s(self, config: ParallelConfig, work_s: Floats, stages: Ints, alike: Ints) -> Floats:
        """Return the bound of interleaved pipelines in one domain each; inf where no chunks may be."""
        chunks, microbatches = self._most_chunks[stages], self.problem.microbatches(config)
        possible = (chunks > 1) & (stages > 1) & (microbatches % stages == 0)
        bound: Floats = np.full(len(stages), np.inf)
        for most in np.unique(chunks[possible]).tolist():
            rows = possible & (chunks == most)
            any_split_s = any_split_bound_s(work_s[rows], stages[rows], microbatches, pieces=most)
            bound[rows] = np.maximum(any_split_s, self._any_split_s(config, alike[rows], stages[rows], 1 / most))
        return bound

    @cached_property
    def _most_chunks(self) -> Ints:
        """Return the most chunks that so many interleaved stages may have, [layers + 1]."""
        job = self.problem.job
        return np.array([max(chunk_counts(job, max(1, s)), default=0) for s in range(len(job.layers) + 1)])

    def _zero_bubble_s(
        self, config: ParallelConfig, work_s: Floats, stages: Ints, alike: Ints, single: Ints
    ) -> Floats:
        """Return the bound of pipelines whose weight gradients are apart, closer for `single` rows: one domain."""
        share, microbatches = self.problem.compute_cost(config).weight_share, self.problem.microbatches(config)
        least, at = np.unique(stages, return_inverse=True)
        bound = work_s * np.array([zero_bubble_share(int(s), microbatches, share) for s in least])[at]
        for row in single.tolist():
            closer_s = self.problem.zero_bubble_s(int(alike[row]), config, int(stages[row]))
            bound[row] = max(bound[row], closer_s)
        return np.asarray(bound)

    def _usd(self, devices: Ints, inside: Ints) -> Floats:
        """Return the USD an hour of so many devices a domain for each row, 0 where a price is not known."""
        prices = [d.price_usd_per_device_hour for d in self.domains]
        unknown = inside @ np.array([price is None for price in prices])
        return np.where(unknown, 0.0, inside @ (devices * np.array([price or 0.0 for price in prices])))

    def after_s(self, config: ParallelConfig, mask: int) -> float:
        """Return what follows the microbatches of a subset at least."""
        inside = self.inside[np.searchsorted(self.masks, mask)][None, :]
        stages = max(1, int(inside[0] @ [self.problem.stages(domain, config) for domain in self.domains]))
        return (
            float(self._after_s(config, inside, self.problem.compute_cost(config), np.array([stages]))[0]) / stages
        )

    def _after_s(self, config: ParallelConfig, inside: Ints, compute_cost: ComputeCost, stages: Ints) -> Floats:
        """Return what follows the microbatches in some masks [N] of so many stages, all of them together.

        A copy takes the same devices of a domain in every subset that has it.
        """
        copies, members = config.data_parallel * config.context_parallel, list(self.members)
        sums_s = np.zeros((4, len(self.domains)))
        if copies > 1 and max(self.problem.job.zero_stages) < 2:
            for place in np.flatnonzero(inside.any(axis=0)):
                sums_s[:, place] = gradients_s(self.problem, self.domains[place], config)
        longest = self.problem.compute_cost(self.problem.longest_backwards(config))
        is_alone, ways_s = inside.sum(axis=1) == 1, []
        for way_s, most_s in zip(longest.ways_s, (longest.forward_s, longest.backward_s), strict=True):
            # Layers may be in unlike domains.
            ways_s.append(np.where(is_alone, np.where(inside == 1, way_s[members], 0.0).max(axis=1), most_s))
        return after_s(
            self.problem.job, np.where(inside == 1, sums_s[:, None], np.inf).min(axis=2), stages=stages,
            shards=copies, ways_s=(ways_s[0], ways_s[1]), is_apart=config.expert_parallel > 1,
            update_s=np.where(inside == 1, compute_cost.update_s[members], np.inf).min(axis=1),
        )  # fmt: skip

    def may_fit(self, config: ParallelConfig, stages: Ints) -> Bools:
        """Whether memory could hold the model's large layers on so many stages of the largest devices.

        A stage k-th from the end holds at least min(k, M) microbatches of activations under every schedule.
        """
        held = self.most_held([config])[0]
        return np.asarray(held[np.minimum(stages, len(held) - 1)] >= len(self.problem.large_layers))

    def most_held(self, configs: Sequence[ParallelConfig]) -> Floats:
        """Return how many large layers 0, 1, … stages of the largest devices hold at most [configs, L + 1]."""
        problem, largest_bytes = self.problem, self._largest_bytes
        # A cap changes nothing of it, and most settings differ in that alone.
        keys = [(largest_bytes, config.work, config.data_parallel, config.holds_outer) for config in configs]
        known = problem.held_layers
        new = {key: config for key, config in zip(keys, configs, strict=True) if key not in known}
        if new:
            most = np.floor(self._most_layers(list(new.values()), largest_bytes)[0])
            partly = [row for row, config in enumerate(new.values()) if problem.recomputes_some(config)]
            if partly:
                full = [replace(config, recompute=Recompute.FULL) for config in new.values()]
                fully = np.floor(self._most_layers([full[row] for row in partly], largest_bytes)[0])
                most[partly] = np.maximum(most[partly], fully)
            known.update(zip(new, np.cumsum(np.insert(most, 0, 0, axis=1), axis=1), strict=True))
        return np.stack([known[key] for key in keys])

    @cached_property
    def _largest_bytes(self) -> float:
        return max(self.problem.model.memory_limit_bytes(d) for d in self.domains)

    def _again(self, config: ParallelConfig, stages: Ints) -> Floats:
        """Return by which share of a microbatch's work at least so many stages recompute some of their layers.

        A stage of n large layers that holds j microbatches of what they keep, each a, with room for F layers so:
        recomputing frees j d each, so of n layers (n - F) (state + j a) / (j d) >= n - floor(F) are recomputed.
        """
        if not self.problem.recomputes_some(config):
            return np.zeros(len(stages))
        largest_bytes = self._largest_bytes
        known, key = self.problem.recomputed_layers, (largest_bytes, config.work, config.data_parallel)
        if key not in known:
            (most,), (each,) = self._most_layers([config], largest_bytes)
            large = self.problem.large_layers
            over = [np.maximum(0.0, len(large) - np.cumsum(layers)) for layers in (np.floor(most), most)]
            share = [
                (more[large + 1] - more[large]).min() / layers.work[-1]
                for domain in self.problem.of_each_kind
                if (layers := self.problem.layers(domain, config)) is not None
                for more in [self.problem.again_s(domain, config)]
            ]
            layers = np.maximum(over[0], over[1] * np.minimum.accumulate(each)) * (1 - 1e-9)
            known[key] = np.concatenate([[0.0], layers * max(0.0, min(share, default=0.0))])
        return np.asarray(known[key][np.minimum(stages, len(self.problem.job.layers))])

    def _most_layers(self, configs: Sequence[ParallelConfig], limit_bytes: float) -> tuple[Floats, Floats]:
        """Return how many large layers the last stage, the one before it, … could hold, in fractions, and how many
        must be recomputed for one more (see `_again`) [configs, L]."""
        job, large = self.problem.job, self.problem.large_layers
        states, activations = dict[object, float](), dict[object, tuple[float, float]]()
        held = []
        for config in configs:
            ranks, copies, context = config.tensor_parallel, config.data_parallel, config.context_parallel
            shape = StageShape(
                ranks, copies * context, config.microbatch_size, config.recompute, max(job.zero_stages),
                in_flight=1, holds_outer=config.holds_outer, context_parallel=context,
                expert_parallel=config.expert_parallel,
            )  # fmt: skip
            key = ranks, shape.shards, config.expert_parallel, config.holds_outer
            if key not in states:
                states[key] = float(layer_state_bytes(job, shape)[large].min())
            if config.work not in activations:
                kept = float(kept_bytes(job.layers, config.recompute)[large].min()) * shape.samples
                # What ZeRO-3 has whole is left out: a lower stage may be chosen.
                again = float(transient_bytes(job, replace(shape, zero_stage=0))[large].min())
                activations[config.work] = kept, again
            held.append((states[key], *activations[config.work], shape.samples, self.problem.microbatches(config)))
        state, kept, again, samples, count = np.array(held).T[:, :, None]
        room = limit_bytes - FIXED_BYTES - again
        in_flight = np.minimum(np.arange(1, len(job.layers) + 1), count)
        most = np.maximum(0.0, room / (state + in_flight * kept) * (1 + 1e-9))
        freed = float((job.layers.activation_bytes - job.layers.checkpoint_bytes)[large].max()) * samples
        # Where recomputing frees nothing, `most` alone says how many stay beyond it.
        each = np.divide(state / in_flight + kept, freed, out=np.zeros_like(most), where=freed > 0)
        return most, each

    def build(self, config: ParallelConfig, mask: int) -> list[TrainingPlan] | Reason:
        """Return the plans of one subset: its fastest orders under each allowed schedule that fits memory."""
        built = self.open(config, mask)
        return built if isinstance(built, Reason) else [plan for chain in built for plan in chain.plans]

    def open(self, config: ParallelConfig, mask: int, limit_s: float = np.inf) -> list[Chain] | Reason:
        """Return the chains of one subset, their layers not yet split, or why none fits.

        Those of which every plan takes `limit_s` or more are left out.
        """
        picked = tuple(i for k, i in enumerate(self.members) if mask >> k & 1)
        built: list[Chain] = []
        refusal: Refusal | None = None
        is_outbid = False
        after_s = self.after_s(config, mask)
        for order in self.orders(config, picked):
            for chain in chains(self.problem, config, order, limit_s=limit_s, after_s=after_s):
                if isinstance(chain, Chain):
                    built.append(chain)
                elif chain is None:
                    is_outbid = True
                else:
                    refusal = chain
        if built or is_outbid:
            return built
        if refusal is None:
            where = "domains" if len(picked) > 1 else "stages"
            return Reason("no-schedule", "", {"schedules": ", ".join(self.problem.job.schedules), "where": where})
        return refusal()

    def order_bounds(
        self, config: ParallelConfig, orders: Sequence[tuple[int, ...]], bound: Floats
    ) -> tuple[Floats, float]:
        """Return bounds [orders, 3] on (time, -utilisation, money) of orders of one subset, from that on them all,
        and what each second more costs at least [USD].

        T >= W + C + (M-1) x as in `bounds`, with the links of this order; the money is that of its links.
        """
        if len(orders[0]) == 1:
            return bound[None, :], float(bound[2] / bound[0])
        at = np.array(orders)
        here, there = at[:, :-1], at[:, 1:]
        costs, count = self.problem.pair_costs(config.microbatch_size), self.problem.microbatches(config)
        load = config.data_parallel * self.problem.message_bytes(config.microbatch_size)
        least_work = self.problem.compute_cost(config).work_s[at[0]].min()
        route = load * costs.slowness_sum[here, there].sum(axis=1) + costs.latency_sum[here, there].sum(axis=1)
        slow = load * costs.slowness[here, there].max(axis=1)
        least_path = least_work * self.problem.path_share(config)
        step_s = np.maximum(bound[0], (least_path + route + (count - 1) * slow) * (1 - 1e-12))
        egress = count * load * costs.price_sum[here, there].sum(axis=1)
        mask = sum(1 << self.members.index(i) for i in orders[0])
        least = count * load * float(self.path_costs(config.microbatch_size)[3][mask - 1])
        usd_per_s = max(0.0, bound[2] - least) / bound[0]
        usd = (usd_per_s * step_s + egress) * (1 - 1e-12)
        return np.stack([step_s, bound[1] * bound[0] / step_s * (1 + 1e-12), usd], axis=1), usd_per_s * (1 - 1e-12)

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
        known = (self.problem.layers(domain, config) for domain in domains)
        work = min(float(layers.work[-1]) for layers in known if layers is not None)
        stages = sum(self.problem.stages(d, config) for d in domains)
        order, _ = best_route(
            self.problem.pair_costs(config.microbatch_size), picked,
            message_bytes=self.problem.message_bytes(config.microbatch_size), data_parallel=config.data_parallel,
            period_s=work / stages, microbatches=self.problem.microbatches(config),
        )  # fmt: skip
        return order


def _connected(costs: PairCosts, order: tuple[int, ...]) -> bool:
    return all(np.isfinite(costs.slowness[a, b]) for a, b in pairwise(order))
