"""Pipelines in seconds: what each stage and cut takes, and how long a step of many pipelines lasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Check, unlimited
from strata.simulate import screening
from strata.simulate.order import CHUNKED, ORDERED, fixed_orders
from strata.simulate.ordered import MOST_WORK, Wires, ordered_s
from strata.simulate.pipeline import StageTimes, recurrence_s
from strata.simulate.traffic import Hop
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan

NO_HOP: Final = Hop(0.0, 0.0)

BATCH_CELLS: Final = 2**14
"""Stages of all pipelines worked through together: one slot of the recurrence costs about the same for fewer."""


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """One pipeline in seconds: per stage [S] and per cut [S-1], forward and backward direction.

    copies_s: what the gradient sum between its copies adds, the overlap with backward taken off. gather_s: what
    gathering the updated weights adds. tables: the sum of a tied table's gradients, of one copy (`tied_table`).
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    useful_s: tuple[float, ...]
    update_s: float
    there: tuple[Hop, ...]
    back: tuple[Hop, ...]
    copies_s: float = 0.0
    gather_s: float = 0.0
    tables: Hop | None = None

    @property
    def tables_s(self) -> float:
        """What the sum of a tied table's gradients takes."""
        return 0.0 if self.tables is None else self.tables.serial_s + self.tables.latency_s

    @property
    def sync_s(self) -> float:
        """What the gradient sums of one pipeline add: those between copies, then those of a tied table."""
        return self.copies_s + self.tables_s

    @property
    def closing_s(self) -> float:
        """What follows the gradient sums: the update, and the gathering of what it changed."""
        return self.update_s + self.gather_s

    def local(self) -> PipelineTimes:
        """Return the same pipeline with wide-area hops made free: what the WAN costs is the difference."""
        there, back = (tuple(NO_HOP if k.wan_bytes else k for k in cuts) for cuts in (self.there, self.back))
        return replace(self, there=there, back=back)


def operations_s(plan: TrainingPlan, times: PipelineTimes) -> Floats:
    """Return [3, S] how long a stage takes for a forward, a backward and a weight gradient of one chunk, or [5, S]
    (see `ordered.ordered_s`)."""
    return split_work_s(plan, *(np.array(each) for each in (times.forward_s, times.backward_s, times.useful_s)))


def split_work_s(plan: TrainingPlan, forward: Floats, backward: Floats, useful: Floats) -> Floats:
    """Return `operations_s` of whole stages [..., S] as [..., 3, S], or [..., 5, S].

    Where weight gradients are apart they take a third of the useful work, as a forward does: each matrix is
    multiplied with once forward and twice backward (arXiv 2401.10241 §2). A profile may have shorter backwards: of
    those at most half.
    """
    weight = np.zeros_like(forward)
    if plan.schedule in (Schedule.ZERO_BUBBLE, Schedule.DUAL_PIPE_V):
        weight = np.minimum(useful / 3, backward / 2)
    each = [forward, backward - weight, weight]
    if plan.schedule is Schedule.DUAL_PIPE_V:
        each += [backward, forward + backward]
    return np.stack(each, axis=-2) / (plan.virtual_stages if plan.schedule in CHUNKED else 1)


def wrap_hop(cuts: Sequence[Hop]) -> Hop:
    """Return the hop from the last stage back to the first for the next chunk: the slowest of those between."""
    return max(cuts, key=lambda hop: hop.serial_s + hop.latency_s, default=NO_HOP)


def pipelines_s(
    pieces: Sequence[tuple[TrainingPlan, Pipeline]],
    times: Sequence[PipelineTimes],
    *,
    exact: bool,
    check: Check,
) -> Floats:
    """Return the time of each pipeline (or a bound on it), batched over those of equal length or like count."""
    groups: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for index, (plan, pipeline) in enumerate(pieces):
        stages, count, special = len(pipeline.stages), pipeline.microbatches, plan.schedule in ORDERED
        if special and stages > 1:
            key = (str(plan.schedule), stages, plan.virtual_stages, count if exact else 0)
        elif exact and stages > 1:
            key = ("", 0, 1, 0)
        else:
            key = ("", stages, 1, 0)
        groups[key].append(index)
    step_s = np.zeros(len(pieces))
    for (schedule, length, chunks, _), members in groups.items():
        counts = np.array([pieces[i][1].microbatches for i in members])
        own = [times[i] for i in members]
        if schedule and exact:
            step_s[members] = _ordered_s([pieces[i] for i in members], own, check)
        elif schedule:
            work = np.array([operations_s(pieces[i][0], times[i]) for i in members])
            if schedule == Schedule.DUAL_PIPE_V:
                step_s[members] = screening.folded_bound_s(stack(own), counts, work[:, 2] * chunks)
            else:
                step_s[members] = screening.ordered_bound_s(stack(own), counts, chunks, work[:, 2] * chunks)
        elif length == 0:
            step_s[members] = _recurrences_s([pieces[i][1] for i in members], own, check)
        elif exact and length == 1:
            step_s[members] = counts * np.array([item.forward_s[0] + item.backward_s[0] for item in own])
        else:
            step_s[members] = screening.lower_bound_s(stack(own), counts)
    return step_s


def _ordered_s(
    pieces: Sequence[tuple[TrainingPlan, Pipeline]], times: Sequence[PipelineTimes], check: Check
) -> Floats:
    """Return the exact time of pipelines of one schedule and as many stages, chunks and microbatches."""
    plan, pipeline = pieces[0]
    busy_s = np.array([operations_s(plan, item) for (plan, _), item in zip(pieces, times, strict=True)])
    rows = [_wires(item.there, item.back) for item in times]
    serial, latency = (np.array(each) for each in zip(*rows, strict=True))
    return in_order_s(plan, pipeline, busy_s, Wires(serial, latency), check=check)


def wires(there: Sequence[Hop], back: Sequence[Hop], pipelines: int) -> Wires:
    """Return the wires of some pipelines [P] over the same cuts."""
    serial, latency = (np.broadcast_to(row, (pipelines, len(row))) for row in _wires(there, back))
    return Wires(serial, latency)


def _wires(there: Sequence[Hop], back: Sequence[Hop]) -> tuple[Floats, Floats]:
    rows = np.zeros((2, 2 * len(there) + 2))
    for way, hops_ in enumerate(((*there, wrap_hop(there)), (wrap_hop(back), *back))):
        rows[:, way::2] = [[hop.serial_s for hop in hops_], [hop.latency_s for hop in hops_]]
    return rows[0], rows[1]


def in_order_s(
    plan: TrainingPlan, pipeline: Pipeline, busy_s: Floats, wires: Wires, *, check: Check = unlimited
) -> Floats:
    """Return the time of pipelines that all go through the orders of one, from `operations_s` of each
    [P, 3, S].

    Exact up to MOST_WORK operations; of more, the pace is that of fewer microbatches: estimated (see `pipeline`).
    """

    def taking(count: int) -> Floats:
        check()
        every = fixed_orders(plan.schedule, len(pipeline.stages), count, plan.virtual_stages)
        is_folded = plan.schedule is Schedule.DUAL_PIPE_V
        return ordered_s(busy_s, wires, every, is_folded=is_folded, check=check)

    group = len(pipeline.stages)
    most = max(4, MOST_WORK // (6 * group * plan.virtual_stages) // group // 2 * 2) * group
    if pipeline.microbatches <= most:
        return taking(pipeline.microbatches)
    # Whole groups of S, and what is left over beside them: interleaved chunks go through in groups.
    over = (pipeline.microbatches - most) % group
    whole, half = taking(most + over), taking(most // 2 + over)
    return whole + (pipeline.microbatches - most - over) * (whole - half) / (most - most // 2)


def _recurrences_s(pipelines: Sequence[Pipeline], times: Sequence[PipelineTimes], check: Check) -> Floats:
    """Return the exact time of each pipeline: those of like count in one batch, whatever their lengths."""
    # Plans that share a batch have many a pipeline in common.
    alike: dict[object, int] = {}
    warmups = [tuple(stage.warmup for stage in pipeline.stages) for pipeline in pipelines]
    same = [
        alike.setdefault((pipeline.microbatches, depth, t.forward_s, t.backward_s, t.there, t.back), len(alike))
        for pipeline, depth, t in zip(pipelines, warmups, times, strict=True)
    ]
    first = np.unique(same, return_index=True)[1]
    counts = np.array([pipeline.microbatches for pipeline in pipelines])
    longest = max(map(len, warmups))
    rows = max(1, BATCH_CELLS // longest)
    step_s, order = np.zeros(len(pipelines)), first[np.argsort(counts[first], kind="stable")]
    for chunk in (order[at : at + rows] for at in range(0, len(order), rows)):
        width = max(len(warmups[i]) for i in chunk)
        warmup = np.zeros((len(chunk), width), dtype=np.int64)
        for row, i in enumerate(chunk):
            depth = warmups[i]
            # The stages filled in before take no time; their warm-ups only have to fall strictly, too.
            ahead = range(depth[0] + width - len(depth), depth[0], -1)
            warmup[row] = [*ahead, *depth]
        step_s[chunk] = recurrence_s(stack([times[i] for i in chunk]), counts[chunk], warmup, check=check)
    return step_s[first[same]]


def stack(times: Sequence[PipelineTimes]) -> StageTimes:
    """Return pipelines as one batch of arrays; shorter ones begin with stages and links that take no time."""
    stages = max(len(item.forward_s) for item in times)

    def filled(rows: Sequence[Sequence[float]], width: int) -> Floats:
        return np.array([[*(0.0,) * (width - len(row)), *row] for row in rows]).reshape(len(times), width)

    def hop(name: str, *, back: bool) -> Floats:
        return filled([[getattr(h, name) for h in (t.back if back else t.there)] for t in times], stages - 1)

    return StageTimes(
        filled([t.forward_s for t in times], stages), filled([t.backward_s for t in times], stages),
        hop("serial_s", back=False), hop("latency_s", back=False),
        hop("serial_s", back=True), hop("latency_s", back=True),
    )  # fmt: skip
