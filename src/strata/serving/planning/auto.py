"""The planner that is used unless another is asked for: regions, exact splits, then local search.

It starts from nodes in an order (region by region; all together; by how long they take to fill), cut into
consecutive pipelines exactly, what is left over likewise. The best start is improved by `search`; every
pipeline is ordered and cut anew at the end. The work is counted in moves, not seconds, so the answer is the
same on every machine; a deadline only stops it earlier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from strata.serving.planning.allocation import Pipeline, performance_of, pipeline_of, score
from strata.serving.planning.cuts import best_cuts
from strata.serving.planning.dynamic import least_latency, most_throughput
from strata.serving.planning.evaluation import Ring, RingEvaluator
from strata.serving.planning.goal import Goal, Weighing
from strata.serving.planning.pool import NodePool, largest_pipeline
from strata.serving.planning.search import ROUNDING, Search
from strata.serving.planning.small_pools import MOST_NODES, undominated_plans
from strata.serving.planning.split import best_split, bottleneck_s

MOVES = 12_000
"""Moves of one search: 0.1 to 0.8 s of a present-day core, whatever the pool."""
SPLITS_FOR_ROOM = 3
"""Times as long as others that splits take which look for KV memory: so many fewer are tried in such pools."""
HEATS = 0.03, 0.3
"""Where the searches start to cool from; the second, which leaves more of its start behind, for few nodes."""
FEW_NODES = 48
POLISHED = 1e-6
"""Differences of values that are none at the end, where pipelines that move fewer layers are preferred."""
SMALL_SHARE = 0.98
"""Of the most tokens/s a small pool gives, what a plan with a floor gives at least."""
MID_NODES, MID_SHARE = 16, 0.8
"""The same of pools of so many nodes, and of the tokens/s of the best start and of the seed's programme.

SMALL_SHARE where that start is one pipeline.
"""


def auto(
    pool: NodePool, goal: Goal, *, is_over: Callable[[], bool], moves: int = MOVES, has_floor: bool = False
) -> tuple[list[Pipeline], int, int]:
    """Return the best pipelines found, the moves tried and the moves intended.

    `pool` must hold the model (`room.why_none`). has_floor: plans of fewer tokens/s than nodes filled as they
    come, or in small pools than SMALL_SHARE of the most, are worth less than any other.
    """
    evaluator = RingEvaluator(pool, for_goals=goal is Goal.GOODPUT)
    if goal is not Goal.GOODPUT:
        rings, tried, wanted = _searched(
            evaluator, Weighing.of(goal, has_floor=has_floor), is_over, moves, has_floor=has_floor
        )
    else:
        # Goals bound the latency only to themselves: below them it counts once enough is served, or without any.
        rings, tried, wanted = _searched(evaluator, Weighing.of(Goal.BOTH), is_over, moves)
        enough = pool.service.wanted_tokens_per_s if pool.service and pool.service.has_goals else 0.0
        if _sums(rings)[0] < enough:
            other, again, more = _searched(evaluator, Weighing.of(goal), is_over, moves)
            rings, tried, wanted = max(rings, other, key=_sums), tried + again, wanted + more
    rings.sort(key=lambda ring: min(ring.members))
    pipelines = [pipeline_of(pool, r.members, best_split(pool, r.members) or []) for r in rings]
    if goal is not Goal.GOODPUT and len(pool.nodes) <= FEW_NODES and not is_over():
        pipelines = _not_below_seed(pool, goal, pipelines, has_floor=has_floor)
    return pipelines, tried, wanted


def _not_below_seed(pool: NodePool, goal: Goal, pipelines: list[Pipeline], *, has_floor: bool) -> list[Pipeline]:
    """Return what was found, or the seed's dynamic programme where that is worth more."""
    other = least_latency(pool) if goal is Goal.LATENCY else most_throughput(pool)
    (rate, decode_s), (seed_rate, seed_decode_s) = score(pool, pipelines), score(pool, other)
    weighing = Weighing.of(goal, has_floor=has_floor)
    if not other or (has_floor and seed_rate < rate):  # what is above the floor stays there
        return pipelines
    if has_floor and len(pool.nodes) <= MID_NODES and rate < MID_SHARE * seed_rate:
        return other
    value, seed_value = weighing.value(rate, rate * decode_s), weighing.value(seed_rate, seed_rate * seed_decode_s)
    return other if seed_value > value + POLISHED else pipelines


def _searched(
    evaluator: RingEvaluator,
    weighing: Weighing,
    is_over: Callable[[], bool],
    moves: int,
    *,
    has_floor: bool = False,
) -> tuple[list[Ring], int, int]:
    pool, starts = evaluator.pool, [_as_they_come(evaluator)]
    if has_floor:
        most = _most(evaluator, is_over) if MOST_NODES < len(pool.nodes) <= MID_NODES else []
        share = SMALL_SHARE if len(most) == 1 else MID_SHARE
        weighing = replace(weighing, least_rate=max(_sums(starts[0])[0], share * _sums(most)[0]))
        starts.append(most)
    if len(pool.nodes) <= MOST_NODES:
        plans = undominated_plans(evaluator)
        if has_floor:
            weighing = replace(weighing, least_rate=max(weighing.least_rate, SMALL_SHARE * plans[0].rate))
        starts += [plan.rings() for plan in plans]
    starts.append(_best_start(evaluator, weighing, is_over))
    best = max(starts, key=lambda rings: _value(weighing, rings))
    tried, wanted = 0, 0
    if 2 * sum(_lacks_room(pool, ring) for ring in best) > len(best):
        moves //= SPLITS_FOR_ROOM
    for hot in _heats(len(pool.nodes)):
        search = Search(evaluator, weighing, best, random.Random(len(pool.nodes)))
        tried += search.run(moves, hot=hot, is_over=is_over)
        wanted += moves
        best = search.best
    polished = _polished(evaluator, weighing, best)
    if _value(weighing, polished) < _value(weighing, best) - POLISHED:  # It weighs pipelines one by one.
        polished = best
    return polished, tried, wanted


def _lacks_room(pool: NodePool, ring: Ring) -> bool:
    """Return whether KV memory holds fewer sequences than keep all stages of a pipeline busy."""
    counts = best_split(pool, ring.members) or []
    rate = performance_of(pool, ring.members, counts).tokens_per_s
    return rate * bottleneck_s(pool, ring.members, counts) < pool.batch * (1 - ROUNDING)


def _as_they_come(evaluator: RingEvaluator) -> list[Ring]:
    """Return pipelines of nodes that are filled one after the other, in the pool's order."""
    rings, members = list[Ring](), list[int]()
    room = [node.capacity.middle for node in evaluator.pool.nodes]
    for i in range(len(room)):
        members = sorted([*members, i], key=lambda j: (-room[j], j))
        ring = evaluator.value(members)
        if ring:
            rings.append(ring)
        if ring or len(members) == evaluator.pool.num_layers:
            members = []
    return rings


def _heats(num_nodes: int) -> tuple[float, ...]:
    """Return the searches to make: none where every set has been looked at."""
    if num_nodes <= MOST_NODES:
        return ()
    return HEATS if num_nodes <= FEW_NODES else HEATS[:1]


def _best_start(evaluator: RingEvaluator, weighing: Weighing, is_over: Callable[[], bool]) -> list[Ring]:
    best: list[Ring] = []
    for order in _orders(evaluator):
        rings = _cut(evaluator, weighing, order, is_over)
        if _value(weighing, rings) > _value(weighing, best):
            best = rings
        if best and is_over():
            break
    if not best:  # Only one order of the ends holds the model.
        ring = evaluator.value(largest_pipeline(evaluator.pool)[0])
        best = [ring] if ring else []
    return best


def _most(evaluator: RingEvaluator, is_over: Callable[[], bool]) -> list[Ring]:
    """Return the cuts of the most tokens/s."""
    best: list[Ring] = []
    for order in _orders(evaluator):
        best = max(best, _cut_at(evaluator, order, 1.0, 0.0), key=lambda rings: _sums(rings)[0])
        if is_over():
            break
    return best


def _orders(evaluator: RingEvaluator) -> Iterator[list[int]]:
    """Yield orders worth cutting: like filling times or like speeds together, inside regions and without."""
    pool = evaluator.pool
    nodes, regions, fills = range(len(pool.nodes)), pool.regions, evaluator.fills_s
    yield sorted(nodes, key=lambda i: (regions[i], -fills[i], i))
    yield sorted(nodes, key=lambda i: (regions[i], pool.layer_s[i], i))
    if len(set(regions)) > 1:
        yield sorted(nodes, key=lambda i: (-fills[i], i))


def _cut(
    evaluator: RingEvaluator, weighing: Weighing, order: list[int], is_over: Callable[[], bool]
) -> list[Ring]:
    """Cut an order, first for tokens/s, then at the prices that plan has: the better of both plans."""
    fastest = _cut_at(evaluator, order, 1.0, 0.0)
    if not fastest or is_over():
        return fastest
    priced = _cut_at(evaluator, order, *weighing.prices(*_sums(fastest)))
    return max(priced, fastest, key=lambda rings: _value(weighing, rings))


def _cut_at(evaluator: RingEvaluator, order: list[int], rate_price: float, weight_price: float) -> list[Ring]:
    """Cut an order at prices of rate and weight; cut what is left over again."""
    longest, rings = _longest(evaluator.pool), list[Ring]()
    while True:
        cut = best_cuts(
            evaluator.evaluate, order, rate_price=rate_price, weight_price=weight_price, longest=longest
        )
        if not cut:
            return rings
        rings += cut
        used = {i for ring in cut for i in ring.members}
        order = [i for i in order if i not in used]


def _longest(pool: NodePool) -> int:
    """Return how many of the smallest nodes it takes to hold the model, and two more."""
    held = 0
    for count, room in enumerate(sorted(node.capacity.middle for node in pool.nodes), 1):
        held += room
        if held >= pool.num_layers:
            return count + 2
    return len(pool.nodes)


def _polished(evaluator: RingEvaluator, weighing: Weighing, rings: list[Ring]) -> list[Ring]:
    if not rings:
        return []
    prices = weighing.prices(*_sums(rings))
    thrifty = [_without_idlers(evaluator, ring, *prices) for ring in rings]
    return [evaluator.polish(ring.members, *prices) or ring for ring in thrifty]


def _without_idlers(evaluator: RingEvaluator, ring: Ring, rate_price: float, weight_price: float) -> Ring:
    """Leave out members that the ring is worth as much without: what bounds it is another stage, or a goal."""
    for i in list(ring.members):
        value = ring.rate * rate_price - ring.weight * weight_price
        fewer = evaluator.evaluate([j for j in ring.members if j != i]) if len(ring.members) > 1 else None
        if fewer and fewer.rate * rate_price - fewer.weight * weight_price >= value - 1e-9 * abs(value):
            ring = fewer
    return ring


def _sums(rings: list[Ring]) -> tuple[float, float]:
    return sum(ring.rate for ring in rings), sum(ring.weight for ring in rings)


def _value(weighing: Weighing, rings: list[Ring]) -> float:
    return weighing.value(*_sums(rings))
