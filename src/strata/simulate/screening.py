"""Step time of a pipeline in closed form: millions of plans a second, to choose which deserve the recurrence.

GPipe's is exact. 1F1B's is exact for one slow link between equal stages; over many random slow links it
stays within the band that tests/simulate/test_screening.py states. Letters as in `pipeline`:
f, b forward and backward of a stage, x serialisation and c = x + latency of a link (x', c' backwards).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from array_api_compat import array_namespace, device

from strata.simulate.pipeline import Array, StageTimes


def gpipe_s(times: StageTimes, microbatches: int | Array) -> Array:
    """Return the step time [P] of all forwards, then all backwards: exact.

    Σ(f + b) + Σ(c + c') + (M - 1) (max(f, x) + max(b, x')), maxima over all stages and links: each half
    is a flow shop of one job order, paced by its slowest machine.
    """
    xp = array_namespace(times.forward_s)
    extra = xp.asarray(microbatches, device=device(times.forward_s)) - 1
    pace = _most(xp, times.forward_s, times.link_s) + _most(xp, times.backward_s, times.link_back_s)
    return path_s(times) + extra * pace


def one_f_one_b_s(times: StageTimes, microbatches: int | Array, warmup: Array) -> Array:
    """Return the approximate step time [P] of 1F1B with these warm-ups w ([S] or [P, S]).

    Σ(f + b) + Σ(c + c') + (M - 1) T0 + max(0, max over s < e of n (cycle - k T0)), with T0 = max(f + b, x, x'),
    cycle the round trip from stage s to e, k = w_s - w_e + 1 the microbatches in flight on it, and
    n = floor((M - 1 - w_e) / k) the times it is waited for (the cycle ratio of a marked graph).
    """
    xp = array_namespace(times.forward_s)
    where = device(times.forward_s)
    work, link = _by_stage(xp, times.forward_s + times.backward_s), _by_stage(xp, _round_trips(times))
    stages, plans = work.shape
    last = xp.asarray(microbatches, dtype=work.dtype, device=where) - 1
    depth = xp.broadcast_to(xp.asarray(warmup, dtype=work.dtype, device=where), (plans, stages))
    depth = xp.minimum(_by_stage(xp, depth), last)
    done = xp.cumulative_sum(work, axis=0)
    travelled = xp.cumulative_sum(link, axis=0, include_initial=True)
    pace = _pace(xp, times)
    waited = xp.zeros_like(pace)
    for reach in range(1, stages):
        in_flight = depth[:-reach, :] - depth[reach:, :] + 1
        cycle = (
            done[reach:, :] - done[:-reach, :] + work[:-reach, :] + travelled[reach:, :] - travelled[:-reach, :]
        )
        rounds = xp.floor((last - depth[reach:, :]) / in_flight)
        waited = xp.maximum(waited, xp.max(rounds * (cycle - in_flight * pace), axis=0))
    return path_s(times) + last * pace + waited


def lower_bound_s(times: StageTimes, microbatches: int | Array) -> Array:
    """Return what no warm-up, GPipe included, can beat [P].

    A stage starts when its first microbatch has come down the stages and links before it, then works
    M (f + b), and its last gradient still goes back up the same way. Any one machine (a stage in one
    direction, a link) serves all M microbatches in turn, and besides those M services the way of the
    first microbatch to it and of the last one from it is still to be travelled.
    """
    xp = array_namespace(times.forward_s)
    count = xp.asarray(microbatches, dtype=times.forward_s.dtype, device=device(times.forward_s))
    before, work = stage_bounds_s(times)
    by_stage = xp.max(before + work * xp.reshape(count, (-1, 1)), axis=1)
    slowest = xp.maximum(_most(xp, times.forward_s, times.link_s), _most(xp, times.backward_s, times.link_back_s))
    return xp.maximum(by_stage, path_s(times) + (count - 1) * slowest)


def stage_bounds_s(times: StageTimes) -> tuple[Array, Array]:
    """Return a and t [P, S] with step time >= a_i + M t_i for every stage i: the way up from it, and its work."""
    xp = array_namespace(times.forward_s)
    work = times.forward_s + times.backward_s
    before = xp.cumulative_sum(work, axis=1) - work
    before[:, 1:] += xp.cumulative_sum(_round_trips(times), axis=1)
    return before, work


def ordered_bound_s(times: StageTimes, microbatches: int | Array, virtual_stages: int, weight_s: Array) -> Array:
    """Return what interleaved chunks cannot beat [P], nor ZB-H1 with weight gradients [P, S] of a microbatch.

    A stage starts when the first chunk of the first microbatch has come down the first chunks before it, then
    works M (f + b). Its last gradient of inputs, after which ZB-H1 leaves stage i the weight gradients of i + 1
    microbatches at most (`order.zero_bubble`), still goes back up, and the first stage then has one left.
    """
    xp = array_namespace(times.forward_s)
    count = xp.asarray(microbatches, dtype=times.forward_s.dtype, device=device(times.forward_s))
    work = times.forward_s + times.backward_s
    before, after = (
        (xp.cumulative_sum(part, axis=1) - part) / virtual_stages
        for part in (times.forward_s, times.backward_s - weight_s)
    )
    before[:, 1:] += xp.cumulative_sum(times.link_s + times.latency_s, axis=1)
    after[:, 1:] += xp.cumulative_sum(times.link_back_s + times.latency_back_s, axis=1)
    place = xp.arange(1, work.shape[1] + 1, dtype=work.dtype, device=device(times.forward_s))
    late = xp.minimum(place, xp.reshape(count, (-1, 1))) * weight_s - weight_s[:, :1]
    by_stage = xp.max(before + work * xp.reshape(count, (-1, 1)) + xp.maximum(0 * after, after - late), axis=1)
    path = path_s(times) - xp.sum(weight_s, axis=1)
    if virtual_stages > 1 or work.shape[1] == 1:
        return xp.maximum(by_stage, path)
    inputs = work - weight_s
    slowest = _most(xp, times.forward_s, times.link_s), _most(xp, times.backward_s - weight_s, times.link_back_s)
    paced = (count - 1) * xp.maximum(*slowest)
    # Two microbatches are in flight between neighbours: each round trip lets two pass (`one_f_one_b_s`).
    rounds = xp.floor(xp.reshape(count, (-1, 1)) - 1 - xp.flip(place - 1, axis=0)[1:])
    rounds = xp.floor(xp.maximum(rounds, 0.0 * rounds) / 2)
    waited = xp.max(rounds * (inputs[:, :-1] + inputs[:, 1:] + _round_trips(times)), axis=1)
    return xp.maximum(by_stage, path + xp.maximum(paced, waited))


def folded_bound_s(times: StageTimes, microbatches: int | Array, weight_s: Array) -> Array:
    """Return what DualPipeV cannot beat [P], with weight gradients [P, S] of a microbatch.

    A stage starts when the first half of the first microbatch has come down to it, then works M (f + b); and one
    microbatch goes through all halves, down and back, with the gradients of inputs at least.
    """
    xp = array_namespace(times.forward_s)
    count = xp.asarray(microbatches, dtype=times.forward_s.dtype, device=device(times.forward_s))
    work = times.forward_s + times.backward_s
    before = (xp.cumulative_sum(times.forward_s, axis=1) - times.forward_s) / 2
    by_stage = xp.max(before + work * xp.reshape(count, (-1, 1)), axis=1)
    return xp.maximum(by_stage, path_s(times) - xp.sum(weight_s, axis=1))


def path_s(times: StageTimes) -> Array:
    """Return the time [P] of one microbatch alone: down all stages and links, and back."""
    xp = array_namespace(times.forward_s)
    return xp.sum(times.forward_s + times.backward_s, axis=1) + xp.sum(_round_trips(times), axis=1)


def _round_trips(times: StageTimes) -> Array:
    return times.link_s + times.latency_s + times.link_back_s + times.latency_back_s


def _most(xp: Any, stages: Array, links: Array) -> Array:
    """Return the slowest of the stages and links, which may be none."""
    return xp.max(xp.concat([stages, links], axis=1), axis=1)


def _pace(xp: Any, times: StageTimes) -> Array:
    return _most(xp, times.forward_s + times.backward_s, xp.maximum(times.link_s, times.link_back_s))


def _by_stage(xp: Any, array: Array) -> Array:
    """Return [P, S] as [S, P], copied: reductions over few stages are slow along the short rows."""
    rows = xp.empty(array.shape[::-1], dtype=array.dtype, device=device(array))
    rows[...] = xp.permute_dims(array, (1, 0))
    return rows


def any_split_bound_s(work_s: Array, stages: Array, microbatches: Array | int, *, pieces: Array | int) -> Array:
    """Return what no split of so much work into stages can beat, where a stage's work is done in pieces.

    W / v / (1 - (1 - 1/(v M))^S): a stage waits for a v-th of what is before it, so the bound of whole stages
    holds for v M microbatches of a v-th each (docs/cost-model.md, B3).
    """
    xp = array_namespace(stages)
    each = pieces * microbatches + 0.0 * stages
    left = xp.log1p(-1.0 / xp.where(each > 1, each, 2.0 + 0.0 * each))
    return xp.where(each > 1, work_s / pieces / -xp.expm1(stages * left), work_s + 0.0 * stages)


@lru_cache(maxsize=1 << 14)
def zero_bubble_share(stages: int, microbatches: int, weight_share: float) -> float:
    """Return c with T >= c W under ZB-H1 for every split of work W into so many stages.

    With weight gradients a share of at most w of a stage's work t_i, `ordered_bound_s` says T >= (1 - w) Σ_{j<i}
    t_j + m_i t_i, m_i = M - w min(i + 1, M), and T >= M t_0. Its sum with weights λ_i >= 0, Σ λ = 1, is at least
    c Σ t where λ_i m_i + (1 - w) Σ_{j>i} λ_j >= c: the λ are found from the last stage to the first.
    """
    later, each = 0.0, 1 - weight_share
    for stage in range(stages - 1, -1, -1):
        most = microbatches - weight_share * min(stage + 1, microbatches) if stage else microbatches
        later += max(0.0, 1.0 - each * later) / most
    return 1 / later
