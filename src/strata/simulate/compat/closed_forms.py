"""One chunk of one collective on one dimension, nothing else in the network: the algorithms' closed forms.

Derived from ASTRA-sim 2's native collectives and held against its runs to the nanosecond. Letters of the
formulas: n ranks, m bytes a message, e endpoint delay, hop(m) one message.
"""

from __future__ import annotations

import heapq
from typing import Final

from strata.errors import UsageError
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.network import Dimension, Topology
from strata.simulate.compat.system import GROUP_ENDPOINT_DELAY_NS, Algorithm, Collective, System

_EXACT_HOPS: Final = 1024
"""The longest way on a ring whose exchange is played message by message (about 1 s)."""


def alone_ns(
    collective: Collective,
    algorithm: Algorithm,
    *,
    size_bytes: int,
    dimension: Dimension,
    system: System,
    is_group: bool = False,
) -> int:
    """Return how long the collective takes. `size_bytes`: the whole buffer; of all_gather, one rank's shard.

    is_group: a communicator group smaller than the world on a 1-dimensional network; `dimension.npus` is its
    size. Raises UsageError where no closed form is known.
    """
    delay = GROUP_ENDPOINT_DELAY_NS if is_group else system.endpoint_delay_ns
    n = dimension.npus
    if algorithm is Algorithm.RING:
        message = size_bytes if collective is Collective.ALL_GATHER else size_bytes // n
        hop = dimension.send_ns(message)
        return (
            ring_steps(collective, n) * (hop + delay) + delay + ring_reductions_ns(collective, n, message, system)
        )
    if algorithm is Algorithm.DIRECT:
        return _direct_ns(collective, size_bytes, dimension, system, delay=delay, is_group=is_group)
    return _halving_doubling_ns(collective, size_bytes, dimension, system, delay=delay)


def ring_steps(collective: Collective, n: int) -> int:
    """Return the messages each rank of a ring sends one after another."""
    if collective is Collective.ALL_REDUCE:
        return 2 * (n - 1)
    return n * (n - 1) // 2 if collective is Collective.ALL_TO_ALL else n - 1


def ring_reductions_ns(collective: Collective, n: int, message_bytes: int, system: System) -> int:
    """Return what a rank of a ring spends on adding."""
    adds = collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    return (n - 1) * system.reduction_ns(message_bytes) if adds else 0


def _direct_ns(
    collective: Collective, size_bytes: int, dimension: Dimension, system: System, *, delay: int, is_group: bool
) -> int:
    """Everyone sends to everyone at once; all_reduce does it twice, with a reduction between."""
    n = dimension.npus
    message = size_bytes if collective is Collective.ALL_GATHER else size_bytes // n
    exchange, add = _exchange_ns(dimension, message), system.reduction_ns(message)
    if collective is Collective.ALL_REDUCE:
        return 2 * exchange + 3 * delay + (2 if is_group and n > 2 else 1) * add
    return exchange + 2 * delay + (add if collective is Collective.REDUCE_SCATTER else 0)


def _exchange_ns(dimension: Dimension, message_bytes: int) -> int:
    """Return until the last of n (n - 1) messages sent at once has arrived."""
    n = dimension.npus
    if dimension.backend is AstraBackend.UNAWARE:
        return dimension.send_ns(message_bytes, hops=n // 2 if dimension.topology is Topology.RING else 1)
    if dimension.topology is Topology.SWITCH:
        # The n - 1 messages of a rank follow each other on its uplink; the switch is store-and-forward.
        return (n - 2) * dimension.busy_ns(message_bytes) + 2 * dimension.link_ns(message_bytes)
    if dimension.topology is Topology.RING:
        return _ring_exchange_ns(dimension, message_bytes)
    return dimension.link_ns(message_bytes)


def _ring_exchange_ns(dimension: Dimension, message_bytes: int) -> int:
    """Return the same on a ring of FIFO links.

    All clockwise links are alike, so one stands for all: what leaves it with hops to go comes back to it. The
    clockwise ones carry the longest ways (ties go clockwise).
    """
    busy, arrival = dimension.busy_ns(message_bytes), dimension.link_ns(message_bytes)
    farthest = dimension.npus // 2
    if farthest > _EXACT_HOPS:  # the link is never idle but at its ends
        return farthest * (farthest + 1) // 2 * busy + 2 * (arrival - busy)
    # A heap of its own, not `EventClock`: a message is its hops to go, and nothing else happens.
    waiting = [(0, index, index) for index in range(1, farthest + 1)]  # time, tie-break, hops to go
    serial = len(waiting)
    free = end = 0
    while waiting:
        now, _, hops = heapq.heappop(waiting)
        start = max(now, free)
        free, end = start + busy, start + arrival
        if hops > 1:
            serial += 1
            heapq.heappush(waiting, (end, serial, hops - 1))
    return end


def _halving_doubling_ns(
    collective: Collective, size_bytes: int, dimension: Dimension, system: System, *, delay: int
) -> int:
    """Partners at distance 1, 2, 4...: messages halve on the way there and double on the way back."""
    n = dimension.npus
    if collective is Collective.ALL_TO_ALL or dimension.topology is Topology.RING or n & (n - 1):
        raise UsageError(f"no closed form for halvingDoubling {collective} of {n} on {dimension.topology}")
    rounds = n.bit_length() - 1
    if collective is Collective.ALL_GATHER:
        return sum(dimension.send_ns(size_bytes << i) + delay for i in range(rounds)) + delay
    halves = [size_bytes >> i for i in range(1, rounds + 1)]
    adds = sum(system.reduction_ns(each) for each in halves[1:])
    # Sizes are whole bytes: one step beyond the smallest, and back by doubling.
    doubles = [size_bytes >> rounds + 1 << i for i in range(1, rounds + 1)]
    messages = halves + doubles if collective is Collective.ALL_REDUCE else halves
    return sum(dimension.send_ns(each) + delay for each in messages) + delay + adds
