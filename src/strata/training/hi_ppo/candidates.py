"""What a local agent may do: keep, share microbatches anew, swap, drop, regroup, place anew, narrow groups.

Each is cheap to make and judged by the same cost model; none is proposed that cannot run. Keeping comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.training.hi_ppo.assignment import Degrees, Part
from strata.training.hi_ppo.binding import NOBODY, Binding, balanced, equal_shares, group_speed, holds
from strata.training.hi_ppo.placement import fresh, gathered, swap
from strata.training.hi_ppo.site import Site

RESTART_S = 20.0
"""Assumed: to stop at a step's end and connect the processes anew when a device changes its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A binding, how it came about, and how long the domain stands still to get there [s]."""

    name: str
    binding: Binding
    downtime_s: float
    is_legal: bool = True


def candidates(part: Part, site: Site, current: Binding | None) -> tuple[Candidate, ...]:
    """Return what can be done, each binding once. Only KEEP may be illegal: where what it runs on is gone."""
    found: list[Candidate] = []
    if current is not None:
        found.append(Candidate("keep", current, 0.0, holds(part, site, current)))
    proposals = list(_proposals(part, site, current))
    bindings = _shared(part, site, [devices for _, devices in proposals])
    for (name, _), binding in zip(proposals, bindings, strict=True):
        if holds(part, site, binding) and not any(binding.same_as(other.binding) for other in found):
            found.append(Candidate(name, binding, downtime_s(part, site, current, binding)))
    return tuple(found)


def _shared(part: Part, site: Site, placements: Sequence[Ints]) -> list[Binding]:
    # Another domain works on the same microbatches of the same copies: its shares are not ours to change.
    if part.assignment.is_whole:
        return balanced(part, site, placements)
    total = part.assignment.microbatches
    return [Binding(devices, equal_shares(total, len(devices))) for devices in placements]


def _proposals(part: Part, site: Site, current: Binding | None) -> Iterator[tuple[str, Ints]]:
    assignment = part.assignment
    if current is not None:
        yield from _repairs(part, site, current)
    degrees, planned = assignment.degrees, assignment.pipeline.replicas
    usable = _usable(part, site, degrees, planned)
    counts = dict.fromkeys((planned, *((planned - 1, planned - 2) if assignment.is_whole else ())))
    for copies in counts:
        for name, is_tight in (("fresh-tight", True), ("fresh-fast", False)):
            if (
                copies > 0
                and (placed := fresh(site, usable, degrees, copies=copies, is_tight=is_tight)) is not None
            ):
                yield name, placed
    yield from _narrower(part, site)


def _repairs(part: Part, site: Site, current: Binding) -> Iterator[tuple[str, Ints]]:
    devices, is_whole = current.devices, part.assignment.is_whole
    usable = _usable(part, site, current.degrees, len(devices))
    speed = _group_speed(site, devices, usable)
    weak = [(int(r), int(s)) for r, s in np.argwhere(speed < speed.max())[np.argsort(speed[speed < speed.max()])]]
    gone = [(r, s) for r, s in weak if speed[r, s] == 0]
    if is_whole:
        yield "rebalance", devices
        yield "regroup", gathered(site, devices)
    if weak:
        swapped = swap(site, devices, usable, weak)
        yield "swap-worst", swap(site, devices, usable, gone or weak[:1])
        yield "swap-all", swapped
        if is_whole:
            yield "swap-regroup", gathered(site, swapped)
    if not is_whole:
        return
    # What is gone and has no spare takes its copy with it; what then is free can still replace what is slow.
    repaired = swap(site, devices, usable, gone)
    pace = _group_speed(site, repaired, usable).min(axis=1)
    for name, kept in (
        ("drop-gone", pace > 0),
        ("drop-slowest", (pace > 0) & (np.arange(len(pace)) != pace.argmin())),
        ("drop-slow", pace >= 0.75 * pace.max()),
    ):
        if not kept.all() and kept.any() and pace.max() > 0:
            rest = repaired[kept]
            yield name, rest
            slow = _group_speed(site, rest, usable)
            again = [(int(r), int(s)) for r, s in np.argwhere(slow < slow.max())]
            if again:
                yield name + "-swap", gathered(site, swap(site, rest, usable, again))


def _narrower(part: Part, site: Site) -> Iterator[tuple[str, Ints]]:
    """Yield groups of half and a quarter of the devices, and as many copies as that frees where those are ours."""
    assignment = part.assignment
    planned = assignment.pipeline.replicas
    for divisor in (2, 4):
        if any(ranks % divisor for ranks in assignment.degrees):
            return
        degrees = tuple(ranks // divisor for ranks in assignment.degrees)
        most = min(divisor * planned, assignment.microbatches) if assignment.is_whole else planned
        usable = _usable(part, site, degrees, most)
        for copies in range(most, planned - 1, -1):
            placed = fresh(site, usable, degrees, copies=copies, is_tight=False)
            if placed is not None:
                yield f"tensor-parallel-{max(degrees)}", placed
                break


def _usable(part: Part, site: Site, degrees: Degrees, copies: int) -> Bools:
    """Return [D]: devices that answer, are not taken, and have the memory of the largest stage."""
    most = -(-part.assignment.microbatches // copies)
    need = part.need_bytes(degrees, copies, most).max()
    return np.asarray((site.speed > 0) & (site.free_memory_bytes * part.memory_share >= need))


def _group_speed(site: Site, devices: Ints, usable: Bools) -> Floats:
    """Return [R, S], 0 for a group with a device that cannot be used."""
    there = np.append(usable, True)[devices].all(axis=-1)
    return np.where(there, group_speed(site, devices), 0.0)


def downtime_s(part: Part, site: Site, before: Binding | None, after: Binding) -> float:
    """Return how long training stands still: a restart, and the node that loads most over its network card.

    A device that keeps its stage, shard and degree loads nothing; under ZeRO only if its copy and their number
    stay too. Sharing microbatches anew is free. Weights come from another copy or a checkpoint at the speed of
    the card: assumed.
    """
    if before is not None and np.array_equal(before.devices, after.devices):
        return 0.0
    has_zero = part.assignment.plan.zero_stage > 0
    held = _roles(before, len(site.health), has_zero) if before is not None else np.full(len(site.health), NOBODY)
    role = _roles(after, len(site.health), has_zero)
    load = part.costs(after.degrees, len(after.devices)).load_bytes
    stage = np.zeros(len(site.health), dtype=np.int64)
    place = after.devices != NOBODY
    stage[after.devices[place]] = np.nonzero(place)[1]
    moved = np.where((role != NOBODY) & (role != held), load[stage], 0.0)
    return RESTART_S + float(np.bincount(site.node, moved).max()) / part.domain.network_bandwidth_bytes_per_s


def _roles(binding: Binding, devices: int, has_zero: bool) -> Ints:
    """Return [D]: a number for what each device holds, NOBODY for nothing; like numbers are like contents."""
    copy, stage, rank = np.indices(binding.devices.shape)
    degree = np.array(binding.degrees)[None, :, None]
    number = (stage * 4096 + rank) * 4096 + degree
    if has_zero:
        number = (number * 4096 + copy) * 4096 + len(binding.devices)
    found = np.full(devices, NOBODY)
    place = binding.devices != NOBODY
    found[binding.devices[place]] = np.broadcast_to(number, binding.devices.shape)[place]
    return found
