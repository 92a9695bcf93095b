"""Step time of a pipeline, exactly: a recurrence over forwards, backwards and messages, many plans at once.

Every stage works through a fixed order: `w` forwards, then one forward and one backward in turn, then the
backwards that are left (1F1B; `w >= microbatches - 1` is GPipe). Links are full duplex and FIFO, sends are
asynchronous: a message holds its link for `link_s` and arrives `latency_s` later. Nothing is averaged, so
the one-way latency that classic 1F1B pays *per microbatch* across a WAN is there.

Letters: P plans, S stages, M microbatches. Arrays are NumPy's or torch's; the answer is of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array

from strata.clock import Check, unlimited
from strata.errors import UsageError

Array = Any

MOST_MICROBATCHES: Final = 1 << 16
"""The recurrence steps through so many (a second of work); of more, the pace is taken from STEADY of them."""

STEADY: Final = 1 << 12

BETWEEN_CHECKS: Final = 1 << 11
"""Slots of the recurrence between two calls of `check`: some hundredths of a second."""

# Stages of the plans worked on together: on a CPU their state should stay in the cache, elsewhere in 64 MB.
_CACHE_CELLS: Final = 2**14
_MEMORY_CELLS: Final = 2**23


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one microbatch costs on each stage and on each link, for P plans of S stages.

    forward_s, backward_s      [P, S]    compute of one microbatch [s]
    link_s, latency_s          [P, S-1]  activations to the next stage: serialisation, one-way latency [s]
    link_back_s, latency_back_s          the same for gradients to the previous stage; default: as forward
    """

    forward_s: Array
    backward_s: Array
    link_s: Array
    latency_s: Array
    link_back_s: Array = None
    latency_back_s: Array = None

    def __post_init__(self) -> None:
        for back, there in (("link_back_s", self.link_s), ("latency_back_s", self.latency_s)):
            if getattr(self, back) is None:
                object.__setattr__(self, back, there)
        plans, stages = self.forward_s.shape
        assert self.backward_s.shape == (plans, stages), "backward_s must be [P, S]"
        for name in ("link_s", "latency_s", "link_back_s", "latency_back_s"):
            assert getattr(self, name).shape == (plans, stages - 1), f"{name} must be [P, S-1]"


def classic_warmup(stages: int) -> tuple[int, ...]:
    """Return the forwards each stage runs before its first backward in 1F1B (arXiv 2006.09503, fig. 2b)."""
    return tuple(range(stages - 1, -1, -1))


def latency_aware_warmup(times: StageTimes, microbatches: int | Array) -> Array:
    """Return the warm-ups [P, S] that hide each link's round trip behind work, at most `microbatches`.

    w_i - w_{i+1} = 1 + ceil(round trip of link i / period), period = max(max(f+b), max x): the microbatches
    that must be in flight for the sender never to wait. Stage i keeps w_i + 1 activations in memory.
    """
    xp = array_namespace(times.forward_s)
    period = xp.max(times.forward_s + times.backward_s, axis=1)
    steps = xp.ones_like(times.forward_s, dtype=xp.int64)
    steps[:, -1] = 0
    if times.link_s.shape[1]:
        serial = xp.maximum(times.link_s, times.link_back_s)
        period = xp.maximum(period, xp.max(serial, axis=1))
        round_trip = times.link_s + times.latency_s + times.link_back_s + times.latency_back_s
        steps[:, :-1] += xp.astype(xp.ceil(round_trip / period[:, None]), xp.int64)
    warmup = xp.flip(xp.cumulative_sum(xp.flip(steps, axis=1), axis=1), axis=1)
    return xp.minimum(warmup, _counts(xp, microbatches, times)[:, None])


def recurrence_s(
    times: StageTimes, microbatches: int | Array, warmup: Array, *, check: Check = unlimited
) -> Array:
    """Return the exact step time of each plan [P], in seconds.

    microbatches: one count, or [P]. warmup: forwards before the first backward, [S] or [P, S] or one
    number, falling by at least 1 from stage to stage where below `microbatches - 1` (above that all values
    mean "all forwards first"). Raises UsageError on another warm-up. `check` is called every BETWEEN_CHECKS slots:
    what it raises ends the work, which for very many microbatches takes seconds.

    A stage's idle time is this minus M (f_i + b_i): the first stage starts first and ends last.
    """
    xp = array_namespace(times.forward_s)
    plans, stages = times.forward_s.shape
    counts = _counts(xp, microbatches, times)
    if plans and int(xp.max(counts)) > MOST_MICROBATCHES:
        return _steady_s(xp, times, counts, warmup)
    depth = _strict_warmup(xp, warmup, counts, times)
    rows = max(1, (_CACHE_CELLS if is_numpy_array(times.forward_s) else _MEMORY_CELLS) // stages)
    # Plans of like depth share a chunk, so that few slots have idle plans.
    order = xp.argsort(depth[:, 0], stable=True)
    step_s = xp.zeros_like(times.forward_s[:, 0])
    for first in range(0, plans, rows):
        chunk = order[first : first + rows]
        step_s[chunk] = _wave(xp, _take(times, chunk), counts[chunk], depth[chunk, :], check)
    return step_s


def _steady_s(xp: Any, times: StageTimes, counts: Array, warmup: Array) -> Array:
    """Return the step time of pipelines of very many microbatches: that of STEADY, then at the pace of these.

    The recurrence is linear over (max, +), so each further microbatch takes the same time on average once the
    first have passed (Baccelli et al. 1992, "Synchronization and Linearity", §3.7); that takes some dozens.
    """
    whole, half = (recurrence_s(times, xp.minimum(counts, n), warmup) for n in (STEADY, STEADY // 2))
    left = xp.astype(xp.maximum(counts - STEADY, xp.zeros_like(counts)), whole.dtype)
    return whole + left * (whole - half) / (STEADY - STEADY // 2)


def _counts(xp: Any, microbatches: int | Array, times: StageTimes) -> Array:
    counts = xp.asarray(microbatches, dtype=xp.int64, device=device(times.forward_s))
    return xp.broadcast_to(counts, times.forward_s.shape[:1])


def _take(times: StageTimes, chunk: Array) -> StageTimes:
    return StageTimes(*(getattr(times, name)[chunk, :] for name in StageTimes.__slots__))


def _strict_warmup(xp: Any, warmup: Array, counts: Array, times: StageTimes) -> Array:
    """Return an equal warm-up [P, S] that falls strictly: from M-1 on all depths mean the same order."""
    given = xp.asarray(warmup, dtype=xp.int64, device=device(times.forward_s))
    depth = xp.asarray(xp.broadcast_to(given, times.forward_s.shape), copy=True)
    full = counts - 1
    depth = xp.minimum(depth, full[:, None])
    for i in range(depth.shape[1] - 2, -1, -1):
        depth[:, i] = xp.where(depth[:, i] >= full, xp.maximum(depth[:, i], depth[:, i + 1] + 1), depth[:, i])
    if bool(xp.any(depth < 0)) or bool(xp.any(depth[:, :-1] <= depth[:, 1:])):
        raise UsageError(
            "warm-up must fall by at least 1 from stage to stage, and end at 0 or above",
            hint=f"{list(classic_warmup(times.forward_s.shape[1]))}, the classic 1F1B warm-up",
        )
    return depth


def _wave(xp: Any, times: StageTimes, counts: Array, depth: Array, check: Check) -> Array:
    """Run one chunk. F(i,m) happens in slot 2m+i, B(i,m) in slot 2m+i+2w_i+1.

    In this order an operation comes after all it waits for, and within a slot all forwards (stages of one
    parity) and all backwards (the other parity) are independent: the loop runs over slots alone. F(i,m)
    needs a message of the slot before; B(i,m) one of 2(w_i-w_{i+1})-1 slots before, kept in a ring.
    """
    plans, stages = times.forward_s.shape
    stage = xp.arange(stages, device=device(depth))[:, None]
    depth = xp.permute_dims(depth, (1, 0))  # (S, P) from here on: plans lie side by side in memory
    delay = xp.ones_like(depth)
    delay[:-1, :] = 2 * (depth[:-1, :] - depth[1:, :]) - 1
    free = xp.zeros((stages, plans), dtype=times.forward_s.dtype, device=device(times.forward_s))
    forward = _Direction(
        xp, times.forward_s, times.link_s, times.latency_s, free, stage + 0 * depth, counts, to_next=True
    )
    backward = _Direction(
        xp, times.backward_s, times.link_back_s, times.latency_back_s, free, stage + 2 * depth + 1, counts,
        to_next=False,
    )  # fmt: skip
    forward_arrival = xp.zeros((stages + 1, plans), dtype=free.dtype, device=device(free))  # row i: at stage i
    slots_kept = int(xp.max(delay)) + 1  # even, as delays are odd
    ring = xp.zeros((slots_kept, stages + 1, plans), dtype=free.dtype, device=device(free))  # row i: sent by i
    flat, size = xp.reshape(ring, (-1,)), (stages + 1) * plans
    source = (stage + 1) * plans + xp.arange(plans, device=device(depth))[None, :] - delay * size
    # Where in the ring a backward's message is, by slot of the ring and every second stage.
    places = [source[1 - at % 2 :: 2, :] + at * size for at in range(slots_kept if slots_kept > 2 else 0)]
    places = [xp.where(place < 0, place + slots_kept * size, place) for place in places]
    for slot in range(len(backward.rows)):
        if slot % BETWEEN_CHECKS == BETWEEN_CHECKS - 1:
            check()
        if slot < len(forward.rows) and (rows := forward.rows[slot]):
            after = slice(rows.start + 1, rows.stop + 1, 2)
            forward_arrival[after, :] = forward.work(forward_arrival[rows, :], rows, slot)
        if rows := backward.rows[slot]:
            if slots_kept == 2:
                arrival = ring[(slot - 1) % 2, rows.start + 1 : rows.stop + 1 : 2, :]
            else:
                arrival = flat[places[slot % slots_kept][rows.start // 2 : (rows.stop + 1) // 2, :]]
            ring[slot % slots_kept, rows, :] = backward.work(arrival, rows, slot)
    return free[0, :]


class _Direction:
    """All forwards, or all backwards, of a chunk: times by stage (S, P), and when links and stages are `free`."""

    def __init__(
        self, xp: Any, busy: Array, link: Array, latency: Array, free: Array, start: Array, counts: Array,
        *, to_next: bool,
    ) -> None:  # fmt: skip
        self.xp, self.free = xp, free
        self._of_rows: dict[tuple[int, int], list[Array]] = {}
        plans, stages = busy.shape
        senders = slice(0, stages - 1) if to_next else slice(1, stages)
        self.busy, self.serial, self.latency, self.link_free = (
            xp.zeros((stages, plans), dtype=busy.dtype, device=device(busy)) for _ in range(4)
        )
        self.busy[...] = xp.permute_dims(busy, (1, 0))
        self.serial[senders, :] = xp.permute_dims(link, (1, 0))
        self.latency[senders, :] = xp.permute_dims(latency, (1, 0))
        self.start, self.stop = start, start + 2 * counts[None, :]
        bounds = ((xp.min, self.start), (xp.max, self.stop), (xp.max, self.start), (xp.min, self.stop))
        some_from, some_to, all_from, all_to = (
            np.array([int(value) for value in reduce(slots, axis=1)]) for reduce, slots in bounds
        )
        slots = np.arange(int(some_to.max()))[:, None]
        active = (some_from <= slots) & (slots < some_to) & ((slots - some_from) % 2 == 0)
        first, last = active.argmax(axis=1), stages - 1 - active[:, ::-1].argmax(axis=1)
        #: The stages with an operation in each slot, as a slice of step 2, None where there is none.
        self.rows = [
            slice(a, b + 1, 2) if any_ else None
            for a, b, any_ in zip(first.tolist(), last.tolist(), active.any(axis=1).tolist(), strict=True)
        ]
        # Between the first and the last active stage every second one is in turn, and may have plans that idle.
        in_turn = (np.arange(stages) >= first[:, None]) & (np.arange(stages) <= last[:, None])
        in_turn &= (np.arange(stages) - first[:, None]) % 2 == 0
        busy_all = (all_from <= slots) & (slots < all_to)
        self.all_busy = (busy_all | ~in_turn).all(axis=1).tolist()

    def work(self, arrival: Array, rows: slice, slot: int) -> Array:
        """Run the operations of these stages: updates `free` and the links, returns when messages arrive."""
        if (key := (rows.start, rows.stop)) not in self._of_rows:
            whole = self.busy, self.serial, self.latency, self.free, self.link_free, self.start, self.stop
            self._of_rows[key] = [each[rows, :] for each in whole]
        busy, serial, latency, free, link_free, start, stop = self._of_rows[key]
        if not self.all_busy[slot]:
            # A plan without an operation here does one of length 0. Its link may be moved up to `free`,
            # which delays nothing: the next message of this stage is sent later than that.
            active = self.xp.astype((start <= slot) & (slot < stop), busy.dtype)
            busy, serial, arrival = busy * active, serial * active, arrival * active
        end = self.xp.maximum(free, arrival) + busy
        sent = self.xp.maximum(end, link_free) + serial
        free[...] = end
        link_free[...] = sent
        return sent + latency
