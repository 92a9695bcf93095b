"""Which devices hold which stage of which copy, how the microbatches are shared, and how fast that is.

The step time is that of `simulate.pipeline`'s recurrence with the speeds and wires of a copy's own devices, run
until the pipeline has filled; from then on each microbatch takes the time of the slowest stage, so that many
microbatches cost no more to judge. It is tested to be less than 1 % short of the recurrence to the end. The
slowest member sets the pace of a tensor-parallel group, and the slowest group that of its copy. Letters: R
copies, S stages, T devices of the widest stage, D devices of the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.simulate import screening
from strata.simulate.pipeline import StageTimes, recurrence_s
from strata.simulate.traffic import card_bytes_per_s
from strata.training.hi_ppo.assignment import Assignment, AssignmentCosts, Degrees, StageCosts
from strata.training.hi_ppo.domain_state import DomainState
from strata.workload.job import Schedule

NOBODY: Final = -1
_FORWARD: Final = ("forward_s", "backward_s", "link_s", "latency_s")


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """devices: [R, S, T] indices, NOBODY past a stage's degree. microbatches: [R] of a step, at least 1 each."""

    devices: Ints
    microbatches: Ints

    @property
    def degrees(self) -> Degrees:
        """Tensor-parallel degree of each stage."""
        return tuple((self.devices[0] != NOBODY).sum(axis=1).tolist())

    @property
    def used(self) -> Ints:
        """All devices used, in order of copy and stage."""
        return np.asarray(self.devices[self.devices != NOBODY])

    def same_as(self, other: Binding) -> bool:
        """Whether both put the same work on the same devices."""
        return np.array_equal(self.devices, other.devices) and np.array_equal(
            self.microbatches, other.microbatches
        )


@dataclass(frozen=True, slots=True, eq=False)
class BindingRate:
    """How fast a binding is. step_s is inf where a device is gone.

    copy_s: [R] each copy's part of the step. work_s: [S] of one microbatch at nominal speed. after_s: gradient
    sum and update, after the last copy.
    """

    step_s: float
    copy_s: Floats
    work_s: Floats
    after_s: float


def planned_binding(assignment: Assignment) -> Binding:
    """Return the binding of the launch files: copy by copy, stage by stage, from the first device on."""
    copies, degrees = assignment.pipeline.replicas, assignment.degrees
    padded = np.full((len(degrees), max(degrees)), NOBODY)
    padded[np.arange(max(degrees)) < np.array(degrees)[:, None]] = np.arange(sum(degrees))
    shift = np.arange(copies)[:, None, None] * sum(degrees)
    return Binding(
        np.where(padded == NOBODY, NOBODY, padded + shift), equal_shares(assignment.microbatches, copies)
    )


def equal_shares(microbatches: int, copies: int) -> Ints:
    """Return [R] numbers that differ by at most 1."""
    return microbatches // copies + (np.arange(copies) < microbatches % copies).astype(np.int64)


def group_speed(domain_state: DomainState, devices: Ints) -> Floats:
    """Return [R, S]: the speed of the slowest device of each group."""
    return np.asarray(np.append(domain_state.speed, np.inf)[devices].min(axis=-1))  # NOBODY reads the last one


def holds(part: AssignmentCosts, domain_state: DomainState, binding: Binding) -> bool:
    """Whether every device is there and has the memory its stage needs."""
    need = part.need_bytes(binding.degrees, len(binding.devices), int(binding.microbatches.max()))
    room = np.append(domain_state.free_memory_bytes, np.inf)[binding.devices].min(axis=-1) * part.memory_share
    return bool((group_speed(domain_state, binding.devices) > 0).all() and (room >= need).all())


def pace(
    part: AssignmentCosts, domain_state: DomainState, binding: Binding, *, is_exact: bool = False
) -> BindingRate:
    """Return `paces` of one binding."""
    return paces(part, domain_state, [binding], is_exact=is_exact)[0]


def paces(
    part: AssignmentCosts, domain_state: DomainState, bindings: Sequence[Binding], *, is_exact: bool = False
) -> list[BindingRate]:
    """Return the step times of the part on its own, its neighbours in other domains never waited for.

    is_exact: by the recurrence to the end, which takes a time that grows with the microbatches.
    """
    rows, combined = [_stage_times(part, domain_state, binding) for binding in bindings], []
    times = StageTimes(*(np.concatenate([getattr(row, name) for row in rows]) for name in _FORWARD))
    microbatches = np.concatenate([binding.microbatches for binding in bindings])
    ends = np.cumsum([len(binding.devices) for binding in bindings])[:-1]
    all_s = _copies_s(part, times, microbatches, is_exact=is_exact)
    for binding, copy_s in zip(bindings, np.split(all_s, ends), strict=True):
        costs = part.costs(binding.degrees, len(binding.devices))
        speed, work = group_speed(domain_state, binding.devices), costs.forward_s + costs.backward_s
        if not speed.all():
            combined.append(BindingRate(np.inf, np.full(len(speed), np.inf), work, 0.0))
            continue
        after_s = _sync_s(part, domain_state, binding, costs) + float((costs.update_s / speed).max())
        combined.append(BindingRate(float(copy_s.max()) + after_s, copy_s, work, after_s))
    return combined


def _stage_times(part: AssignmentCosts, domain_state: DomainState, binding: Binding) -> StageTimes:
    """Return the times of each copy [R, S], a group that cannot work taken as good."""
    costs, speed = part.costs(binding.degrees, len(binding.devices)), group_speed(domain_state, binding.devices)
    speed = np.where(speed > 0, speed, 1.0)
    return StageTimes(
        costs.forward_s / speed, costs.backward_s / speed, *_hops(part, domain_state, binding, costs)
    )


def _copies_s(part: AssignmentCosts, times: StageTimes, microbatches: Ints, *, is_exact: bool) -> Floats:
    plan = part.assignment.plan
    if plan.schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE):
        # Approximate: a binding changes which devices are slow, hardly the bubble between pieces.
        weight_s = np.minimum(times.forward_s, times.backward_s / 2) * (plan.schedule is Schedule.ZERO_BUBBLE)
        return np.asarray(screening.ordered_bound_s(times, microbatches, plan.virtual_stages, weight_s))
    if plan.schedule is Schedule.DUAL_PIPE_V:
        weight_s = np.minimum(times.forward_s, times.backward_s / 2)
        return np.asarray(screening.folded_bound_s(times, microbatches, weight_s))
    if plan.schedule is Schedule.GPIPE:
        return np.asarray(screening.gpipe_s(times, microbatches))
    first = microbatches if is_exact else np.minimum(microbatches, _filled(part))
    slowest_s = (times.forward_s + times.backward_s).max(axis=1)
    return np.asarray(recurrence_s(times, first, part.warmup) + (microbatches - first) * slowest_s)


def _hops(
    part: AssignmentCosts, domain_state: DomainState, binding: Binding, costs: StageCosts
) -> tuple[Floats, Floats]:
    """Return serialisation and latency [R, S-1]: inside a node where two stages share one, else by its card."""
    domain, node = part.domain, domain_state.node[binding.devices[:, :, 0]]
    near = node[:, 1:] == node[:, :-1]
    ranks = np.array(binding.degrees[:-1], dtype=np.float64)
    inside = costs.message_bytes / (ranks * domain.intra_bandwidth_bytes_per_s)
    card = np.array([card_bytes_per_s(domain, count) for count in binding.degrees[:-1]])
    across = costs.message_bytes / card
    return (
        np.where(near, inside, across),
        np.where(near, domain.intra_latency_s, domain.network_latency_s),
    )


def _sync_s(part: AssignmentCosts, domain_state: DomainState, binding: Binding, costs: StageCosts) -> float:
    """Return the exposed gradient sum between copies (`traffic.replica_ring_s`, on the wires really used)."""
    copies, domain = len(binding.devices), part.domain
    if copies == 1:
        return 0.0
    zero_stage = part.assignment.plan.zero_stage
    if zero_stage >= 2:
        return float(costs.sum_s.max())
    node = domain_state.node[binding.devices[:, :, 0]]
    near = (node == node[:1]).all(axis=0)
    # The rings that leave a node they have a member in share its card, one for each rank of such a stage.
    held = (node[:, :, None] == np.unique(node)).any(axis=0)  # [S, nodes]
    rings = np.where(near, 0, binding.degrees) @ held
    wire = domain.network_bandwidth_bytes_per_s / np.maximum(1, np.where(held, rings, 0).max(axis=1))
    stays_inside = held.sum(axis=1) < copies  # a hop between two members of one node
    wire = np.where(stays_inside, np.minimum(wire, domain.intra_bandwidth_bytes_per_s), wire)
    bandwidth = np.where(near, domain.intra_bandwidth_bytes_per_s, wire)
    latency = np.where(near, domain.intra_latency_s, domain.network_latency_s)
    rounds = 1 if zero_stage else 2  # ZeRO gathers weights, not gradients
    ring = rounds * (copies - 1) * (costs.gradient_bytes / copies / bandwidth + latency)
    return float(np.maximum(0.0, ring - costs.backward_s).max())


def balanced(part: AssignmentCosts, domain_state: DomainState, placements: Sequence[Ints]) -> list[Binding]:
    """Bind each placement [R, S, T] with the microbatches that end its copies as early as possible together.

    Each copy's time for 1, 2, … microbatches is the one `paces` gives, so that no other shares are faster.
    """
    bindings = [
        Binding(devices, equal_shares(part.assignment.microbatches, len(devices))) for devices in placements
    ]
    open_rows = [
        k for k, devices in enumerate(placements) if len(devices) > 1 and group_speed(domain_state, devices).all()
    ]
    if open_rows:
        # All in one go: the recurrence takes its time by microbatches, hardly by copies.
        tables = _copy_tables_s(part, [_stage_times(part, domain_state, bindings[k]) for k in open_rows])
        for k, table in zip(open_rows, tables, strict=True):
            bindings[k] = Binding(placements[k], _shares(table, part.assignment.microbatches))
    return bindings


def _copy_tables_s(part: AssignmentCosts, placements: Sequence[StageTimes]) -> list[Floats]:
    """Return each placement's times [R, M] of its copies for 1 … M microbatches, M enough to fill the pipeline.

    One by one, because until it has filled a microbatch takes less than the slowest stage does: on a straight
    line a copy with few microbatches is given one too many.
    """
    until = _filled(part) + 1
    columns = (np.concatenate([getattr(times, name) for times in placements]) for name in _FORWARD)
    rows = StageTimes(*(np.repeat(column, until, axis=0) for column in columns))
    table = _copies_s(part, rows, np.tile(np.arange(1, until + 1), len(rows.forward_s) // until), is_exact=False)
    ends = np.cumsum([len(times.forward_s) for times in placements])[:-1]
    return np.split(table.reshape(-1, until), ends)


def _shares(table_s: Floats, total: int) -> Ints:
    """Share `total` microbatches by a table of `_copy_tables_s`: the earliest ends first, at least 1 a copy.

    On the straight lines that the tables end in the common end is a division; no copy takes less time than its
    line. So by then no more than `total` are done, and the few that are left go where they end first.
    """
    copies, until = table_s.shape
    if total < copies:
        return equal_shares(total, copies)
    more_s = table_s[:, -1] - table_s[:, -2]  # for each microbatch beyond the table
    begin = until - table_s[:, -1] / more_s  # microbatches of the line at time 0
    shares = np.ones(copies, dtype=bool)
    while True:
        end_s = (total - (~shares).sum() - begin[shares].sum()) / (1 / more_s[shares]).sum()
        late = shares & (begin + end_s / more_s < 1)  # so slow a copy has its one microbatch, whenever that ends
        if not late.any() or not (shares & ~late).any():
            break
        shares &= ~late
    beyond = np.floor((end_s - table_s[:, -1]) / more_s).astype(np.int64)
    counts = np.maximum(1, np.where(beyond >= 0, until + beyond, (table_s <= end_s).sum(axis=1)))
    left = total - int(counts.sum())
    if left <= 0:
        return counts if left == 0 else equal_shares(total, copies)
    ahead = counts + np.arange(1, left + 1)[:, None]  # [left, R]
    copy = np.broadcast_to(np.arange(copies), ahead.shape)
    inside_s = table_s[copy, np.minimum(ahead, until) - 1]
    ends_s = inside_s + np.maximum(0, ahead - until) * more_s
    first = np.lexsort((copy.ravel(), ends_s.ravel()))[:left]
    return np.asarray(counts + np.bincount(first % copies, minlength=copies))


def _filled(part: AssignmentCosts) -> int:
    """Return the microbatches after which each takes the time of the slowest stage."""
    return int(part.warmup.max()) + 1 + len(part.warmup)
