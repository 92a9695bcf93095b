"""What a stage may run on, as tables: times, memory, transfers and rings by kind of stage.

A *kind* is a region and one tensor-parallel degree for each accelerator type the stage mixes. A search
never asks for a zone: transfers and rings take the best pair of zones, so tables give lower bounds that
are exact wherever a region has one zone. Letters: K kinds, L layers, U distinct activation sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from strata.arrays import Ints
from strata.evaluation.published_benchmarks.case_file import Array, End
from strata.evaluation.published_benchmarks.formulas import (
    BUCKET_BYTES,
    ELEMENT_BYTES,
    RING_TP,
    STATE_BYTES_PER_PARAM,
    FormulaScorer,
    overhead_bytes,
    region,
)
from strata.evaluation.published_benchmarks.plan import ReplicaRun
from strata.fleet.fleet import BandwidthCurve


class StagePart(NamedTuple):
    """One accelerator type of a kind, with its tensor-parallel degree."""

    gpu: str
    tp: int


@dataclass(frozen=True, slots=True)
class StageKind:
    """What the replicas of a stage are: all in one region, each of them one of `parts`."""

    region: str
    parts: tuple[StagePart, ...]


class QuotaPools:
    """The quota of one point by pool: a region's accelerators of one type, over its zones."""

    def __init__(self, quota: Mapping[tuple[str, str], int]) -> None:
        self.quota = {key: count for key, count in quota.items() if count > 0}
        self.names = sorted({(region(zone), gpu) for zone, gpu in self.quota})
        self.zones = {
            name: [zone for zone, gpu in self.quota if (region(zone), gpu) == name] for name in self.names
        }
        self.capacity = np.array(
            [sum(self.quota[zone, gpu] for zone in self.zones[r, gpu]) for r, gpu in self.names], dtype=np.int64
        )

    def largest(self, name: tuple[str, str]) -> int:
        """Return the most accelerators one zone of the pool has."""
        return max(self.quota[zone, name[1]] for zone in self.zones[name])


class KindTable:
    """Everything the search looks up for one microbatch size.

    time_s [K, L, L]      layers a..b on one replica, the slowest part (0 where b < a)
    update_s [K, L]       optimizer step of a stage that begins at layer a
    last_fitting [K, k, L]  the last layer that fits in memory for first layer a with k stages left (a - 1: none)
    send_s [K, K, U]      one message from kind to kind, by index of activation size
    size_of [L]           index of each layer's activation size
    act_bytes             the least activations of one microbatch between two layers
    tp_of [K, P]          tensor parallelism by pool; a mixed kind has several
    """

    def __init__(self, scorer: FormulaScorer, pools: QuotaPools, mbs: int) -> None:
        self.scorer, self.pools, self.mbs = scorer, pools, mbs
        self.kinds = tuple(_kinds(scorer, pools, mbs))
        self.num_layers = L = scorer.model.num_layers
        K, parts = len(self.kinds), sorted({part for kind in self.kinds for part in kind.parts})
        part_time = {part: self._part_time(part) for part in parts}
        part_fit = {part: self._part_fit(part) for part in parts}
        self.time_s = np.zeros((K, L, L))
        self.update_s = np.zeros((K, L))
        self.last_fitting = np.zeros((K, L + 1, L), dtype=np.int64)
        self.tp_of = np.zeros((K, len(pools.names)), dtype=np.int64)
        for k, kind in enumerate(self.kinds):
            self.time_s[k] = np.max([part_time[part] for part in kind.parts], axis=0)
            self.update_s[k] = np.max(
                [scorer.model.times[part.gpu][mbs, part.tp].update_s for part in kind.parts], axis=0
            )
            self.last_fitting[k] = np.min([part_fit[part] for part in kind.parts], axis=0)
            for part in kind.parts:
                self.tp_of[k, pools.names.index((kind.region, part.gpu))] = part.tp
        self.is_mixed = (self.tp_of > 0).sum(axis=1) > 1
        self.ring_tp = np.array(
            [min(RING_TP, *(part.tp for part in kind.parts)) for kind in self.kinds], dtype=int
        )
        prices = [[scorer.file.gpus[p.gpu].price_usd_per_hour / 3600 * p.tp for p in k.parts] for k in self.kinds]
        self.usd_per_s = np.array([min(row) for row in prices])
        self.act_bytes = float(scorer.model.act_out_elems.min()) * ELEMENT_BYTES * mbs
        sizes, self.size_of = np.unique(scorer.model.act_out_elems, return_inverse=True)
        self.send_s = self._sends(sizes * ELEMENT_BYTES * mbs)

    @cached_property
    def layers_fitting(self) -> Ints:
        """The most layers a stage of a kind can hold with k stages left [K, k]."""
        return np.asarray((self.last_fitting - np.arange(self.num_layers) + 1).max(axis=2))

    def _part_time(self, part: StagePart) -> Array:
        times = self.scorer.model.times[part.gpu][self.mbs, part.tp]
        prefix = np.concatenate([[0.0], np.cumsum(times.forward_s + times.backward_s)])
        return np.asarray(np.maximum(prefix[None, 1:] - prefix[:-1, None], 0.0))

    def _part_fit(self, part: StagePart) -> Ints:
        model, L = self.scorer.model, self.num_layers
        room = self.scorer.file.gpus[part.gpu].memory_bytes - overhead_bytes(part.tp)
        state = np.concatenate([[0.0], np.cumsum(model.params[part.tp])]) * STATE_BYTES_PER_PARAM
        held = np.concatenate([[0.0], np.cumsum(model.act_mem_elems[part.tp])]) * (self.mbs * ELEMENT_BYTES)
        last = np.empty((L + 1, L), dtype=np.int64)
        for left in range(L + 1):
            need = state + left * held
            last[left] = np.searchsorted(need, need[:-1] + room, side="right") - 2
        return np.maximum(last, np.arange(L) - 1)

    def _sends(self, num_bytes: Array) -> Array:
        """Return send_s: each part reaches its best counterpart, the slowest part sets the time."""
        K = len(self.kinds)
        send = np.zeros((K, K, len(num_bytes)))
        best: dict[tuple[str, StagePart, str, StagePart], Array] = {}
        for (i, a), (j, b) in itertools.product(enumerate(self.kinds), repeat=2):
            table = np.empty((len(a.parts), len(b.parts), len(num_bytes)))
            for (x, p), (y, q) in itertools.product(enumerate(a.parts), enumerate(b.parts)):
                key = (a.region, p, b.region, q)
                if key not in best:
                    best[key] = self._best_send(*key, num_bytes)
                table[x, y] = best[key]
            send[i, j] = np.maximum(table.min(axis=1).max(axis=0), table.min(axis=0).max(axis=0))
        return send

    def _best_send(self, source: str, p: StagePart, dest: str, q: StagePart, num_bytes: Array) -> Array:
        zones = itertools.product(self.pools.zones[source, p.gpu], self.pools.zones[dest, q.gpu])
        times = [
            [
                self.scorer.transfer_s(ReplicaRun(p.gpu, p.tp, a, 1), ReplicaRun(q.gpu, q.tp, b, 1), size)
                for size in num_bytes
            ]
            for a, b in zones
        ]
        return np.asarray(np.min(times, axis=0))


def _kinds(scorer: FormulaScorer, pools: QuotaPools, mbs: int) -> list[StageKind]:
    """Return every kind that has a profile, tables and a zone large enough; pure kinds first."""
    model, kinds = scorer.model, []
    for home in dict.fromkeys(r for r, _ in pools.names):
        choices: list[list[StagePart | None]] = []
        for r, gpu in pools.names:
            if r != home:
                continue
            most = (
                min(pools.largest((r, gpu)), scorer.file.gpus[gpu].gpus_per_node) if gpu in scorer.file.gpus else 0
            )
            tps = [tp for m, tp in model.times.get(gpu, {}) if m == mbs and tp <= most]
            choices.append(
                [
                    None,
                    *(
                        StagePart(gpu, tp)
                        for tp in sorted(tps)
                        if tp in model.params and tp in model.act_mem_elems
                    ),
                ]
            )
        for combination in itertools.product(*choices):
            parts = tuple(part for part in combination if part is not None)
            if parts and _connected(scorer, pools, home, parts):
                kinds.append(StageKind(home, parts))
    return sorted(kinds, key=lambda kind: len(kind.parts))


def _connected(scorer: FormulaScorer, pools: QuotaPools, home: str, parts: tuple[StagePart, ...]) -> bool:
    return all(
        any(
            (End(a, p.gpu, 1), End(b, q.gpu, 1)) in scorer.file.curves
            for a, b in itertools.product(pools.zones[home, p.gpu], pools.zones[home, q.gpu])
        )
        for p, q in itertools.combinations(parts, 2)
    )


class Rings:
    """Ring all-reduce times by number of replicas, kind and layers, over the best pair of zones."""

    def __init__(self, table: KindTable) -> None:
        scorer, L = table.scorer, table.num_layers
        prefix = np.concatenate([[0.0], np.cumsum(scorer.model.params[1])]) * ELEMENT_BYTES
        self.total_bytes = float(prefix[-1])
        stage_bytes = np.maximum(prefix[None, 1:] - prefix[:-1, None], 0.0)  # [L, L]
        sizes, inverse = np.unique(stage_bytes, return_inverse=True)
        self._sizes, self._inverse = sizes, inverse.reshape(L, L)
        self._table = table
        self._classes = [self._curves(kind) for kind in table.kinds]
        self._known: dict[int, Array] = {}
        self._shared: dict[int, Array] = {}

    def sync_s(self, replicas: int) -> Array:
        """Return the all-reduce of layers a..b for each kind [K, L, L]."""
        known = self._known.get(replicas)
        if known is None:
            done: dict[tuple[tuple[BandwidthCurve, ...], int], Array] = {}
            rows = []
            for curves, tp in zip(self._classes, self._table.ring_tp.tolist(), strict=True):
                if (curves, tp) not in done:
                    done[curves, tp] = _ring_s(curves, self._sizes / tp, replicas)[self._inverse]
                rows.append(done[curves, tp])
            known = self._known[replicas] = np.stack(rows)
        return known

    def shared_s(self, replicas: int) -> Array:
        """Return a lower bound of the all-reduce of the whole model over n shards in all stages [n]."""
        known = self._shared.get(replicas)
        if known is None:
            shards = np.maximum(np.arange(RING_TP * self._table.num_layers + 1), 1)
            every = tuple({curve for curves in self._classes for curve in curves})
            known = self._shared[replicas] = _ring_s(every, self.total_bytes / shards, replicas)
        return known

    def _curves(self, kind: StageKind) -> tuple[BandwidthCurve, ...]:
        """Return the curves of which a ring of this kind needs one: between parts if mixed, else between zones."""
        pools = self._table.pools
        curves: dict[BandwidthCurve, None] = {}
        gpus = [part.gpu for part in kind.parts]
        meetings = itertools.permutations(gpus, 2) if len(gpus) > 1 else [(gpus[0], gpus[0])]
        for g1, g2 in meetings:
            for a, b in itertools.product(pools.zones[kind.region, g1], pools.zones[kind.region, g2]):
                curve = self._table.scorer.file.curves.get((End(a, g1, 1), End(b, g2, 1)))
                if curve is not None:
                    curves[curve] = None
        return tuple(curves)


def _ring_s(curves: tuple[BandwidthCurve, ...], num_bytes: Array, replicas: int) -> Array:
    if replicas <= 1:
        return np.zeros_like(num_bytes)
    if not curves:
        return np.full_like(num_bytes, math.inf)
    full, rest = np.divmod(num_bytes, BUCKET_BYTES)
    message = np.maximum(rest / replicas, 1e-3)
    times = [
        full * curve.transfer_s(BUCKET_BYTES / replicas) + np.where(rest > 0, _transfers_s(curve, message), 0.0)
        for curve in curves
    ]
    return np.asarray(np.maximum(np.min(times, axis=0) * (2 * (replicas - 1)), 0.0))


def _transfers_s(curve: BandwidthCurve, message_bytes: Array) -> Array:
    """Return `curve.transfer_s` of each of many messages."""
    sizes = np.maximum(np.asarray(message_bytes, dtype=float), 1e-300)
    return np.asarray(sizes / (np.polyval(curve.coefficients, np.log2(sizes / 1e6)) * 1e9))
