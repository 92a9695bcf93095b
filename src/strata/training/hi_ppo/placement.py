"""Where tensor-parallel groups can go: groups never span nodes, and broken nodes are filled before whole ones."""

from __future__ import annotations

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.training.hi_ppo.assignment import Degrees
from strata.training.hi_ppo.binding import NOBODY, group_speed
from strata.training.hi_ppo.domain_state import DomainState


def node_groups(domain_state: DomainState, free: Bools, ranks: int) -> Ints:
    """Return [G, ranks]: the free devices of each node in groups, fastest together; a rest too small is left."""
    devices = np.flatnonzero(free)
    devices = devices[np.lexsort((-domain_state.speed[devices], domain_state.node[devices]))]
    node = domain_state.node[devices]
    first = np.searchsorted(node, node)
    last = np.searchsorted(node, node, side="right")
    rank = np.arange(len(devices)) - first
    kept = rank < (last - first) // ranks * ranks
    return np.asarray(devices[kept].reshape(-1, ranks))


def fresh(domain_state: DomainState, free: Bools, degrees: Degrees, *, copies: int, is_tight: bool) -> Ints | None:
    """Return devices [copies, S, T] placed anew, None where so many groups are not free.

    is_tight: nodes with the fewest free devices first, as long as no device in them is slowed; else the fastest
    groups. Like speeds share a copy either way, so that one slow copy does less and the others wait for none.
    """
    ranks, wanted = max(degrees), copies * len(degrees)
    groups = node_groups(domain_state, free, ranks)
    if len(groups) < wanted:
        return None
    speed, node = domain_state.speed[groups].min(axis=1), domain_state.node[groups[:, 0]]
    room = _room(domain_state, free, groups)
    order = np.lexsort((node, room, speed < speed.max())) if is_tight else np.lexsort((room, -speed))
    chosen = order[:wanted]
    chosen = chosen[np.lexsort((node[chosen], -speed[chosen]))]
    devices = groups[chosen].reshape(copies, len(degrees), ranks)
    return np.where(np.arange(ranks) < np.array(degrees)[:, None], devices, NOBODY)


def swap(domain_state: DomainState, devices: Ints, usable: Bools, groups: list[tuple[int, int]]) -> Ints:
    """Return the devices with some groups (copy, stage) made faster from what is free, in the order given.

    First single members against free devices of their node; or the whole group to another node, when that is
    faster still. A group that nothing free improves stays.
    """
    devices, speed = devices.copy(), np.where(usable, domain_state.speed, 0.0)
    free = usable.copy()
    free[devices[devices != NOBODY]] = False
    elsewhere: dict[int, Ints] = {}
    for copy, stage in groups:
        ranks = int((devices[copy, stage] != NOBODY).sum())
        if ranks not in elsewhere:
            elsewhere[ranks] = _spare_groups(domain_state, free, ranks)
        old = devices[copy, stage, :ranks].copy()
        new = _within_node(domain_state, old, speed, free)
        untouched = free[elsewhere[ranks]].all(axis=1)
        if untouched.any():
            moved = elsewhere[ranks][untouched.argmax()]
            if speed[moved].min() > speed[new].min():
                new = moved
        if speed[new].min() > speed[old].min():
            devices[copy, stage, :ranks] = new
            free[old], free[new] = usable[old], False
    return devices


def _within_node(domain_state: DomainState, group: Ints, speed: Floats, free: Bools) -> Ints:
    first = int(domain_state.node[group[0]]) * domain_state.domain.devices_per_node
    spares = first + np.flatnonzero(free[first : first + domain_state.domain.devices_per_node])
    spares = spares[np.argsort(-speed[spares], kind="stable")]
    new = group.copy()
    for place, spare in zip(np.argsort(speed[group], kind="stable"), spares, strict=False):
        if speed[spare] > speed[new[place]]:
            new[place] = spare
    return new


def _spare_groups(domain_state: DomainState, free: Bools, ranks: int) -> Ints:
    """Return the groups [G, ranks] of free devices, fastest first, of like ones those in the fullest nodes."""
    groups = node_groups(domain_state, free, ranks)
    return np.asarray(
        groups[np.lexsort((_room(domain_state, free, groups), -domain_state.speed[groups].min(axis=1)))]
    )


def _room(domain_state: DomainState, free: Bools, groups: Ints) -> Ints:
    """Return [G]: free devices in the node of each group."""
    return np.asarray(
        np.bincount(domain_state.node[free], minlength=int(domain_state.node[-1]) + 1)[
            domain_state.node[groups[:, 0]]
        ]
    )


def gathered(domain_state: DomainState, devices: Ints) -> Ints:
    """Return the same groups, of each stage the fastest in the first copy and the slowest in the last.

    Copies hold the same weights, so groups of one stage trade copies without loading anything (but shards of
    the optimizer, under ZeRO).
    """
    order = np.argsort(-group_speed(domain_state, devices), axis=0, kind="stable")
    return np.asarray(np.take_along_axis(devices, order[:, :, None], axis=0))
