"""Local search over which nodes form pipelines together: small moves, annealed; larger ones rebuild a few.

A move touches two pipelines (or one and the idle nodes), which costs two splits; what it does to the plan's
value follows from two sums. Partners are sought among near nodes, so pipelines stay inside regions unless
crossing pays.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from strata.serving.planning.cuts import best_cuts
from strata.serving.planning.evaluation import Ring, RingEvaluator
from strata.serving.planning.goal import Weighing
from strata.serving.planning.order import insertion

IDLE = -1
NEAR = 16
"""Partners are mostly sought among so many nearest nodes."""
REBUILD_EVERY = 40
COLD = 0.0005
"""Temperature at the end, as a share of one pipeline's part of the value."""
ROUNDING = 1e-11
"""Changes of a value below this are none: logarithms differ by machine in their last bit, answers must not."""


class Search:
    """One plan under change. The best plan met is kept in `best`."""

    def __init__(
        self, evaluator: RingEvaluator, weighing: Weighing, rings: list[Ring], rng: random.Random
    ) -> None:
        self._evaluator, self._weighing, self._rng = evaluator, weighing, rng
        self._hops = evaluator.pool.hops
        n = len(evaluator.pool.nodes)
        near = evaluator.pool.near_s
        self._near: list[list[int]] = np.argsort(near, axis=1, kind="stable")[:, : min(NEAR, n - 1)].tolist()
        self._pipelines: dict[int, Ring] = {}
        self._where = [IDLE] * n
        self._next = 0
        self._replace([], rings)
        self._rate, self._weight = sum(r.rate for r in rings), sum(r.weight for r in rings)
        self.best = list(rings)
        self._value = self.best_value = weighing.value(self._rate, self._weight)

    def run(self, moves: int, *, hot: float, is_over: Callable[[], bool]) -> int:
        """Try so many moves, cooling down from `hot`; returns how many were tried before `is_over` said so."""
        rng, n = self._rng, len(self._where)
        if n < 2:
            return 0
        for move in range(moves):
            if move % 64 == 0:
                if is_over():
                    return move
                # Summed anew now and then: differences drift.
                self._rate = sum(ring.rate for ring in self._pipelines.values())
                self._weight = sum(ring.weight for ring in self._pipelines.values())
                heat = hot * (COLD / hot) ** (move / moves) / max(len(self._pipelines), 1)
            if move % REBUILD_EVERY == REBUILD_EVERY - 1:
                self._rebuild(heat)
                continue
            a = rng.randrange(n)
            b = rng.choice(self._near[a]) if rng.random() < 0.9 else rng.randrange(n)
            p, q = self._where[a], self._where[b]
            if a == b or p == q == IDLE:
                continue
            if p == q:
                if len(self._pipelines[p].members) > 2:
                    self._change([(p, a, a)], heat)
            elif p == IDLE or (q != IDLE and rng.random() < 0.5):
                self._change([(p, a, None), (q, None, a)], heat)
            elif q == IDLE and rng.random() < 0.3:
                self._change([(p, a, None)], heat)
            else:
                self._change([(p, a, b), (q, b, a)], heat)
        return moves

    def _change(self, changes: Sequence[tuple[int, int | None, int | None]], heat: float) -> None:
        """Propose pipelines, each (its key, a node that goes, a node that comes); idle nodes are in none."""
        old, new = list[int](), list[Ring]()
        for p, gone, come in changes:
            if p == IDLE:
                continue
            members = [i for i in self._pipelines[p].members if i != gone]
            if come is not None:
                members.insert(insertion(self._hops, members, come)[1], come)
            ring = self._evaluator.evaluate(members) if members else None
            if ring is not None:
                new.append(ring)
            elif members:
                return
            old.append(p)
        self._propose(old, new, heat)

    def _rebuild(self, heat: float) -> None:
        """Take a node's pipeline and one or two near ones apart, with idle nodes near, and cut them anew."""
        rng, n = self._rng, len(self._where)
        a = rng.randrange(n)
        wanted = rng.choice((1, 2, 2, 3))
        old: list[int] = []
        loose: list[int] = []
        for b in [a, *rng.sample(self._near[a], len(self._near[a])), rng.randrange(n)]:
            p = self._where[b]
            if p == IDLE:
                if len(loose) < 6 and b not in loose:
                    loose.append(b)
            elif p not in old and len(old) < wanted:
                old.append(p)
        nodes = loose + [i for p in old for i in self._pipelines[p].members]
        if not 2 <= len(nodes) <= 24:
            return
        if rng.random() < 0.5:
            fills = self._evaluator.fills_s
            nodes.sort(key=lambda i: fills[i] * (1 + 0.3 * rng.random()))
        else:
            nodes = self._walk(nodes)
        rate_price, weight_price = self._weighing.prices(self._rate or 1.0, self._weight or 1.0)
        new = best_cuts(
            self._evaluator.evaluate, nodes, rate_price=rate_price, weight_price=weight_price, longest=len(nodes)
        )
        self._propose(old, new, heat)

    def _walk(self, nodes: list[int]) -> list[int]:
        """Order nodes as a walk to the nearest, with some chance."""
        left = list(nodes)
        at = left.pop(self._rng.randrange(len(left)))
        walk = [at]
        while left:
            row, rng = self._hops[at], self._rng
            at = min(left, key=lambda i: row[i] * (1 + 0.5 * rng.random()))
            left.remove(at)
            walk.append(at)
        return walk

    def _propose(self, old: list[int], new: list[Ring], heat: float) -> None:
        rate, weight = self._rate, self._weight
        for p in old:
            rate -= self._pipelines[p].rate
            weight -= self._pipelines[p].weight
        for ring in new:
            rate += ring.rate
            weight += ring.weight
        value = self._weighing.passing(rate, weight)
        change = value - self._value
        if change < -ROUNDING and (change < -20 * heat or self._rng.random() >= math.exp(change / heat)):
            return
        self._replace(old, new)
        self._rate, self._weight, self._value = rate, weight, value
        if value > self.best_value + ROUNDING and not self._weighing.misses(rate):
            self.best_value, self.best = value, list(self._pipelines.values())

    def _replace(self, old: list[int], new: list[Ring]) -> None:
        for p in old:
            for i in self._pipelines.pop(p).members:
                self._where[i] = IDLE
        for ring in new:
            self._pipelines[self._next] = ring
            for i in ring.members:
                self._where[i] = self._next
            self._next += 1
