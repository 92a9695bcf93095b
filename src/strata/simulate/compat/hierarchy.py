"""A collective of the whole world: its chunks, their phases over the dimensions, the queues they wait in."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strata.errors import UsageError
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.closed_forms import alone_ns
from strata.simulate.compat.network import Dimension, Topology
from strata.simulate.compat.system import Algorithm, Collective, System

Half = Literal["first", "last", "any"]
Queue = tuple[int, int]
"""A dimension and one of its queues."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a chunk does on one dimension, in which half of its queues, and for how long."""

    dimension: int
    half: Half
    duration_ns: int


def collective_ns(
    collective: Collective,
    algorithms: Sequence[Algorithm],
    *,
    size_bytes: int,
    dimensions: Sequence[Dimension],
    system: System,
) -> int:
    """Return how long a collective over all ranks takes, one algorithm a dimension.

    `size_bytes`: the whole buffer; of all_gather, one rank's shard. Raises UsageError where no closed form
    is known, among them several chunks at once on congestion-aware links other than a ring all_reduce's.
    """
    chunk, count = chunks(collective, size_bytes, math.prod(d.npus for d in dimensions), system)
    duration_ns = _flow_shop_ns(_phases(collective, algorithms, chunk, dimensions, system), count, system)
    if count == 1 or system.chunks_at_once == 1 or dimensions[0].backend is AstraBackend.UNAWARE:
        return duration_ns
    known = (Collective.ALL_REDUCE, Algorithm.RING, Topology.RING, 1)
    if (collective, algorithms[0], dimensions[0].topology, system.queues) != known:
        raise UsageError(
            "no closed form for several chunks at once on congestion-aware links but a ring all_reduce"
        )
    ring, steps = dimensions[0], 2 * (dimensions[0].npus - 1)
    wire_ns = steps * count * ring.busy_ns(chunk // ring.npus)
    return max(duration_ns, int(wire_ns + ring.latency_ns) + 2 * system.endpoint_delay_ns)


def chunks(collective: Collective, size_bytes: int, ranks: int, system: System) -> tuple[int, int]:
    """Return the bytes of a chunk and how many there are; what does not divide becomes one more whole chunk.

    A chunk is at least a byte a rank, except of all_gather.
    """
    chunk = max(1, size_bytes // system.splits)
    if collective is not Collective.ALL_GATHER and chunk < ranks:
        return ranks, system.splits
    return chunk, math.ceil(size_bytes / chunk)


def _phases(
    collective: Collective,
    algorithms: Sequence[Algorithm],
    size_bytes: int,
    dimensions: Sequence[Dimension],
    system: System,
) -> list[Phase]:
    """Return the phases of one chunk in order.

    all_reduce with localBWAware: reduce_scatter up the dimensions, all_reduce in the last, all_gather down.
    Everything else, and all_reduce with baseline, visits each dimension once, all_gather in falling order.
    """
    phases: list[Phase] = []
    last = len(dimensions) - 1

    def add(what: Collective, index: int, half: Half) -> None:
        nonlocal size_bytes
        dimension = dimensions[index]
        taken = alone_ns(what, algorithms[index], size_bytes=size_bytes, dimension=dimension, system=system)
        phases.append(Phase(index, half, taken))
        if what is Collective.REDUCE_SCATTER:
            size_bytes //= dimension.npus
        elif what is Collective.ALL_GATHER:
            size_bytes *= dimension.npus

    if collective is Collective.ALL_REDUCE and system.is_bandwidth_aware:
        for index in range(last):
            add(Collective.REDUCE_SCATTER, index, "first")
        add(Collective.ALL_REDUCE, last, "first")
        for index in reversed(range(last)):
            add(Collective.ALL_GATHER, index, "last")
        return phases
    order = range(last + 1)
    for index in reversed(order) if collective is Collective.ALL_GATHER else order:
        add(collective, index, "any")
    return phases


def _flow_shop_ns(phases: Sequence[Phase], count: int, system: System) -> int:
    """Return when the last of `count` chunks has been through all phases.

    A queue serves some chunks at a time, of those that wait the youngest first (LIFO): 0, then count - 1 down.
    Chunks take the queues of a phase's half in turn.
    """
    halves = [(phase.dimension, *_half(phase.half, system.queues)) for phase in phases]
    waiting: dict[Queue, list[tuple[int, int]]] = defaultdict(list)
    busy: dict[Queue, int] = defaultdict(int)
    # Plain tuples, not `EventClock`: one kind of event, and a collective has up to a million of them.
    events: list[tuple[int, int, int, int]] = []  # when served, tie-break, chunk, phase
    serial = itertools.count()
    now = 0

    def queue(chunk: int, phase: int) -> Queue:
        dimension, first, length = halves[phase]
        return dimension, first + chunk % length

    def serve(line: Queue) -> None:
        while waiting[line] and busy[line] < system.chunks_per_queue:
            youth, phase = heapq.heappop(waiting[line])
            busy[line] += 1
            heapq.heappush(events, (now + phases[phase].duration_ns, next(serial), -youth, phase))

    def enter(chunk: int, phase: int) -> None:
        heapq.heappush(waiting[queue(chunk, phase)], (-chunk, phase))

    for chunk in range(count):
        enter(chunk, 0)
        serve(queue(chunk, 0))
    while events:
        now, _, chunk, phase = heapq.heappop(events)
        busy[queue(chunk, phase)] -= 1
        if phase + 1 < len(phases):
            enter(chunk, phase + 1)
            serve(queue(chunk, phase))
            serve(queue(chunk, phase + 1))
        else:
            serve(queue(chunk, phase))
    return now


def _half(half: Half, queues: int) -> tuple[int, int]:
    """Return the first queue of a half and how many it has; a single queue is both halves."""
    if half == "any" or queues == 1:
        return 0, queues
    return (0, queues // 2) if half == "first" else (queues // 2, queues - queues // 2)
