"""Step time of pipelines whose stages go through any fixed orders of work, exactly, many at once.

`pipeline.recurrence_s` is for one forward and one backward in turn; here the orders are those of `order.orders`:
interleaved chunks, backwards split into input and weight gradients, and forwards beside backwards. An operation
starts when its stage has done the one before and what it needs has arrived; a link serves the messages of one
stage and direction in the order they are sent. Which operation waits for which depends on the numbers of stages,
microbatches and chunks alone: it is worked out once, in levels whose operations do not wait for each other, and
each level is done for all pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.clock import Check, unlimited
from strata.simulate.order import KINDS, StageWork, fixed_orders, target
from strata.simulate.timeline import SpanKind
from strata.workload.job import Schedule

MOST_WORK: Final = 1 << 14
"""Operations that are stepped through (some hundredths of a second); of more, the pace is taken from fewer."""

_CELLS: Final = 1 << 22

_WHOLE: Final = len(KINDS)
_BESIDE: Final = _WHOLE + 1
_NOTHING: Final = -1
"""Rows of what operations take beside those of KINDS: whole backwards, forwards beside one, and none."""

Orders = tuple[tuple[StageWork, ...], ...]


@dataclass(frozen=True, slots=True)
class Wires:
    """How long messages take, arrays [P, W] of wires: serialisation and one-way latency [s].

    Wire 2 i leads from stage i to the next, and from the last to the first; wire 2 i + 1 to the one before, and
    from the first to the last. Inside a stage nothing is sent.
    """

    serial_s: Floats
    latency_s: Floats


@dataclass(frozen=True, slots=True)
class _Level:
    """Operations that do not wait for each other: what they are, and what they wait for (0: nothing)."""

    number: Ints
    work: Ints
    after: Ints
    needs: Ints
    needs_wire: Ints
    wire: Ints
    sent_before: Ints


def ordered_s(
    busy_s: Floats, wires: Wires, orders: Orders, *, is_folded: bool = False, check: Check = unlimited
) -> Floats:
    """Return the step time of each pipeline [P] whose stages do `orders`, folded as `order.target` says.

    `busy_s` [P, 3, S]: seconds of one forward, one backward and one weight gradient of a chunk; folded [P, 5, S]:
    those of a whole backward and of a forward beside one, too. What `check` raises ends the work.
    """
    levels, count = _levels(orders, is_folded)
    plans, step_s = len(busy_s), np.zeros(len(busy_s))
    none = np.zeros((1, plans))
    busy = np.concatenate([busy_s.reshape(plans, -1).T, none])
    serial, latency = (np.concatenate([each.T, none]) for each in (wires.serial_s, wires.latency_s))
    rows = max(1, _CELLS // count)
    for first in range(0, plans, rows):
        check()
        part = slice(first, min(first + rows, plans))
        step_s[part] = _run(levels, count, busy[:, part], serial[:, part], latency[:, part])
    return step_s


@lru_cache(maxsize=256)
def planes(schedule: Schedule, stages: int, microbatches: int, chunks: int) -> Floats:
    """Return g [K, 3, S] with step time >= Σ g × busy of every pipeline in these orders; of too many, none.

    The step time is the longest of many sums of operations: convex, so that no step is faster than a plane through
    any of its points says. Those here touch it where all stages take as long, and where one takes longer.
    """
    orders = fixed_orders(schedule, stages, microbatches, chunks)
    if sum(map(len, orders)) * stages * stages > _CELLS:
        return np.empty((0, 3, stages))
    at = np.ones((stages + 1, 3, stages)) + 1e-3 * np.random.default_rng(0).random((stages + 1, 3, stages))
    at[np.arange(stages), :, np.arange(stages)] *= 1.5
    at[:, 2] *= any(work.kind is SpanKind.WEIGHT for order in orders for work in order)
    steps = 1e-7 * np.eye(3 * stages).reshape(-1, 3, stages)
    moved = np.concatenate([at[:, None], at[:, None] + steps], axis=1)
    none = np.zeros((len(at) * moved.shape[1], 2 * stages))
    step_s = ordered_s(moved.reshape(-1, 3, stages), Wires(none, none), orders).reshape(moved.shape[:2])
    counts = ((step_s[:, 1:] - step_s[:, :1]) / 1e-7).round().reshape(at.shape)
    touching = np.isclose((counts * at).sum(axis=(1, 2)), step_s[:, 0], rtol=1e-9)
    return np.unique(counts[touching], axis=0)


def _run(levels: Sequence[_Level], count: int, busy: Floats, serial: Floats, latency: Floats) -> Floats:
    # Row 0 is what has always been: it ended, was sent and arrived at 0.
    end, sent = np.zeros((count + 1, busy.shape[1])), np.zeros((count + 1, busy.shape[1]))
    for level in levels:
        arrived = np.where(level.needs[:, None] > 0, sent[level.needs] + latency[level.needs_wire], 0.0)
        ended = np.maximum(end[level.after], arrived) + busy[level.work]
        end[level.number] = ended
        sent[level.number] = np.maximum(ended, sent[level.sent_before]) + serial[level.wire]
    return np.asarray(end.max(axis=0))


@lru_cache(maxsize=256)
def _levels(orders: Orders, is_folded: bool) -> tuple[list[_Level], int]:
    """Return the operations in levels, and how many there are.

    A backward beside a forward is three: one that waits, the forward that takes the time of both, one that sends.
    """
    stages = len(orders)
    chunks = 1 + max(work.chunk for order in orders for work in order)
    done: dict[tuple[int, StageWork], int] = {}
    waiting: dict[tuple[int, StageWork], int] = {}
    # Lists: NumPy takes ten times as long for one number at a time.
    rows, left = [[0] * 7], list[list[int]]()

    def add(work: int, before: int) -> int:
        rows.append([len(rows), work, before, 0, 0, 0, 0])
        return len(rows) - 1

    for stage, order in enumerate(orders):
        before, first = 0, len(rows)
        for place, work in enumerate(order):
            if work.is_beside:
                waiting[stage, order[place + 1].bare] = before = add(_NOTHING, before)
            at = stage, work.bare
            if at in waiting:
                done[at] = before = add(_NOTHING, before)
                continue
            kind = _BESIDE if work.is_beside else _WHOLE if work.is_whole else KINDS.index(work.kind)
            done[at] = waiting[at] = before = add(kind * stages + stage, before)
        left.append(list(range(len(rows) - 1, first - 1, -1)))
    last_sent: dict[tuple[int, SpanKind | None, int], int] = {}
    for stage, order in enumerate(orders):
        for work in order:
            to = target(stage, work, stages=stages, chunks=chunks, is_folded=is_folded)
            if to is None:
                continue
            number = done[stage, work.bare]
            back = to[0] < stage if is_folded else work.kind is SpanKind.BACKWARD
            wire = -1 if to[0] == stage else 2 * stage + back
            way = (stage, None if is_folded else work.kind, to[0])
            rows[number][5:] = wire, last_sent.get(way, 0)
            rows[waiting[to]][3:5] = number, wire
            last_sent[way] = number
    level = [1] + [0] * (len(rows) - 1)
    while any(left):
        moved = False
        for numbers_left in left:
            while numbers_left:
                number = numbers_left[-1]
                _, _, after_row, needs, _, _, sent_before = rows[number]
                waits = level[after_row], level[needs], level[sent_before]
                if not all(waits):
                    break
                level[numbers_left.pop()] = 1 + max(waits)
                moved = True
        assert moved, "an order of work that waits for itself"
    every, levels = np.array(rows, dtype=np.int64), np.array(level)
    by_level = np.argsort(levels[1:], kind="stable") + 1
    cuts = np.flatnonzero(np.diff(levels[by_level])) + 1
    return [_Level(*every[part].T) for part in np.split(by_level, cuts)], len(rows) - 1
