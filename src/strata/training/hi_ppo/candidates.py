"""What a local agent may do: keep, share microbatches anew, swap, drop, regroup, place anew, narrow groups.

Each is cheap to make and judged by the same cost model; none is proposed that cannot run. Keeping comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.training.hi_ppo.assignment import AssignmentCosts, Degrees
from strata.training.hi_ppo.binding import NOBODY, Binding, balanced, equal_shares, group_speed, holds
from strata.training.hi_ppo.domain_state import DomainState
from strata.training.hi_ppo.placement import fresh, gathered, node_groups, swap

RESTART_S = 20.0
"""Assumed: to stop at a step's end and connect the processes anew when a device changes its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A binding, how it came about, and how long the domain stands still to get there [s]."""

    name: str
    binding: Binding
    downtime_s: float
    is_legal: bool = True


def candidates(
    part: AssignmentCosts, domain_state: DomainState, current: Binding | None, *,
    restart_s: float = RESTART_S, has_shares: bool = True,
) -> tuple[Candidate, ...]:  # fmt: skip
    """Return what can be done, each binding once. Only KEEP may be illegal: where what it runs on is gone.

    restart_s and has_shares: see `LocalCase`.
    """
    menu: list[Candidate] = []
    if current is not None:
        menu.append(Candidate("keep", current, 0.0, holds(part, domain_state, current)))
    proposals = list(_proposals(part, domain_state, current))
    bindings = _shared(part, domain_state, [devices for _, devices in proposals], has_shares)
    for (name, _), binding in zip(proposals, bindings, strict=True):
        if holds(part, domain_state, binding) and not any(binding.same_as(other.binding) for other in menu):
            moved_s = downtime_s(part, domain_state, current, binding)
            menu.append(Candidate(name, binding, moved_s + (restart_s - RESTART_S) * (moved_s > 0)))
    return tuple(menu)


def _shared(
    part: AssignmentCosts, domain_state: DomainState, placements: Sequence[Ints], has_shares: bool
) -> list[Binding]:
    # Another domain works on the same microbatches of the same copies: its shares are not ours to change.
    if part.assignment.is_whole and has_shares:
        return balanced(part, domain_state, placements)
    total = part.assignment.microbatches
    return [Binding(devices, equal_shares(total, len(devices))) for devices in placements]


def _proposals(
    part: AssignmentCosts, domain_state: DomainState, current: Binding | None
) -> Iterator[tuple[str, Ints]]:
    assignment = part.assignment
    if current is not None:
        yield from _repairs(part, domain_state, current)
    degrees, planned = assignment.degrees, assignment.pipeline.replicas
    usable = _usable(part, domain_state, degrees, planned)
    counts = dict.fromkeys((planned, *((planned - 1, planned - 2) if assignment.is_whole else ())))
    for copies in counts:
        for name, is_tight in (("fresh-tight", True), ("fresh-fast", False)):
            if (
                copies > 0
                and (placed := fresh(domain_state, usable, degrees, copies=copies, is_tight=is_tight)) is not None
            ):
                yield name, placed
    yield from _narrower(part, domain_state)


def _repairs(part: AssignmentCosts, domain_state: DomainState, current: Binding) -> Iterator[tuple[str, Ints]]:
    devices, is_whole = current.devices, part.assignment.is_whole
    usable = _usable(part, domain_state, current.degrees, len(devices))
    speed = _group_speed(domain_state, devices, usable)
    weak = [(int(r), int(s)) for r, s in np.argwhere(speed < speed.max())[np.argsort(speed[speed < speed.max()])]]
    gone = [(r, s) for r, s in weak if speed[r, s] == 0]
    if is_whole:
        yield "rebalance", devices
        yield "regroup", gathered(domain_state, devices)
    if weak:
        swapped = swap(domain_state, devices, usable, weak)
        yield "swap-worst", swap(domain_state, devices, usable, gone or weak[:1])
        yield "swap-all", swapped
        if is_whole:
            yield "swap-regroup", gathered(domain_state, swapped)
    if not is_whole:
        return
    # What is gone and has no spare takes its copy with it; what then is free can still replace what is slow.
    repaired = swap(domain_state, devices, usable, gone)
    pace = _group_speed(domain_state, repaired, usable).min(axis=1)
    for name, kept in (
        ("drop-gone", pace > 0),
        ("drop-slowest", (pace > 0) & (np.arange(len(pace)) != pace.argmin())),
        ("drop-slow", pace >= 0.75 * pace.max()),
    ):
        if not kept.all() and kept.any() and pace.max() > 0:
            rest = repaired[kept]
            yield name, rest
            slow = _group_speed(domain_state, rest, usable)
            again = [(int(r), int(s)) for r, s in np.argwhere(slow < slow.max())]
            if again:
                yield name + "-swap", gathered(domain_state, swap(domain_state, rest, usable, again))


def _narrower(part: AssignmentCosts, domain_state: DomainState) -> Iterator[tuple[str, Ints]]:
    """Yield groups of half and a quarter of the devices, and as many copies as that frees where those are ours."""
    assignment = part.assignment
    planned = assignment.pipeline.replicas
    for divisor in (2, 4):
        if any(ranks % divisor for ranks in assignment.degrees):
            return
        degrees = tuple(ranks // divisor for ranks in assignment.degrees)
        most = min(divisor * planned, assignment.microbatches) if assignment.is_whole else planned
        usable = _usable(part, domain_state, degrees, most)
        copies = min(most, len(node_groups(domain_state, usable, max(degrees))) // len(degrees))
        placed = fresh(domain_state, usable, degrees, copies=copies, is_tight=False)
        if copies >= planned and placed is not None:
            yield f"tensor-parallel-{max(degrees)}", placed


def _usable(part: AssignmentCosts, domain_state: DomainState, degrees: Degrees, copies: int) -> Bools:
    """Return [D]: devices that answer, are not taken, and have the memory of the largest stage."""
    most = -(-part.assignment.microbatches // copies)
    need = part.need_bytes(degrees, copies, most).max()
    return np.asarray((domain_state.speed > 0) & (domain_state.free_memory_bytes * part.memory_share >= need))


def _group_speed(domain_state: DomainState, devices: Ints, usable: Bools) -> Floats:
    """Return [R, S], 0 for a group with a device that cannot be used."""
    there = np.append(usable, True)[devices].all(axis=-1)
    return np.where(there, group_speed(domain_state, devices), 0.0)


def downtime_s(part: AssignmentCosts, domain_state: DomainState, before: Binding | None, after: Binding) -> float:
    """Return how long training stands still: a restart, and the node that loads most over its network card.

    A device that keeps its stage, shard and degree loads nothing; under ZeRO only if its copy and their number
    stay too. Sharing microbatches anew is free. Weights come from another copy or a checkpoint at the speed of
    the card: assumed.
    """
    if before is not None and np.array_equal(before.devices, after.devices):
        return 0.0
    has_zero = part.assignment.plan.zero_stage > 0
    held = (
        _roles(before, len(domain_state.health), has_zero)
        if before is not None
        else np.full(len(domain_state.health), NOBODY)
    )
    role = _roles(after, len(domain_state.health), has_zero)
    load = part.costs(after.degrees, len(after.devices)).load_bytes
    stage = np.zeros(len(domain_state.health), dtype=np.int64)
    place = after.devices != NOBODY
    stage[after.devices[place]] = np.nonzero(place)[1]
    moved = np.where((role != NOBODY) & (role != held), load[stage], 0.0)
    return (
        RESTART_S + float(np.bincount(domain_state.node, moved).max()) / part.domain.network_bandwidth_bytes_per_s
    )


def _roles(binding: Binding, devices: int, has_zero: bool) -> Ints:
    """Return [D]: a number for what each device holds, NOBODY for nothing; like numbers are like contents."""
    copy, stage, rank = np.indices(binding.devices.shape)
    degree = np.array(binding.degrees)[None, :, None]
    number = (stage * 4096 + rank) * 4096 + degree
    if has_zero:
        number = (number * 4096 + copy) * 4096 + len(binding.devices)
    ranks = np.full(devices, NOBODY)
    place = binding.devices != NOBODY
    ranks[binding.devices[place]] = np.broadcast_to(number, binding.devices.shape)[place]
    return ranks
