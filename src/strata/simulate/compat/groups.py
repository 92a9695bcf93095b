"""Traffic between ranks by number: single messages, and rings in a listed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

from strata.errors import UsageError
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.closed_forms import alone_ns, ring_reductions_ns, ring_steps
from strata.simulate.compat.network import Dimension, FifoLink, Path, Topology
from strata.simulate.compat.system import GROUP_ENDPOINT_DELAY_NS, Algorithm, Collective, System


def differing_dimensions(source: int, dest: int, dimensions: Sequence[Dimension]) -> list[int]:
    """Return the dimensions in which two ranks differ; dimension 0 counts fastest."""
    dimensions_crossed = []
    for index, dimension in enumerate(dimensions):
        if source % dimension.npus != dest % dimension.npus:
            dimensions_crossed.append(index)
        source, dest = source // dimension.npus, dest // dimension.npus
    return dimensions_crossed


def send_ns(source: int, dest: int, size_bytes: int, dimensions: Sequence[Dimension]) -> int:
    """Return how long one message takes, charged in the first dimension in which the ranks differ: so does
    ASTRA-sim, whatever the others would cost."""
    first = differing_dimensions(source, dest, dimensions)[0]
    for dimension in dimensions[:first]:
        source, dest = source // dimension.npus, dest // dimension.npus
    dimension = dimensions[first]
    hops = dimension.ring_hops(source % dimension.npus, dest % dimension.npus)
    return dimension.send_ns(size_bytes, hops=hops)


def path(source: int, dest: int, size_bytes: int, dimensions: Sequence[Dimension]) -> Path:
    """Return the links a message takes; unaware, one of its own that is never busy."""
    dimension = dimensions[0]
    if dimension.backend is AstraBackend.UNAWARE:
        return (FifoLink((source, dest), 0, send_ns(source, dest, size_bytes, dimensions)),)
    ends: list[str | int] = [source, dest]
    if dimension.topology is Topology.SWITCH:
        ends = [source, "switch", dest]
    elif dimension.topology is Topology.RING:
        n = dimension.npus
        step = 1 if (dest - source) % n <= n // 2 else -1
        ends = [(source + step * hop) % n for hop in range(dimension.ring_hops(source, dest) + 1)]
    times = dimension.busy_ns(size_bytes), dimension.link_ns(size_bytes)
    return tuple(FifoLink(wire, *times) for wire in pairwise(ends))


def ring_ns(
    collective: Collective,
    ranks: Sequence[int],
    *,
    size_bytes: int,
    dimensions: Sequence[Dimension],
    system: System,
    is_group: bool,
) -> int:
    """Return how long a ring over `ranks` in this order takes, its messages not in each other's way.

    A message follows the one before it around the ring, so the latest rank has waited for the worst run of
    consecutive hops. is_group: a communicator group smaller than the world, else the world as one ring.
    """
    n = len(ranks)
    if collective is not Collective.ALL_GATHER:
        size_bytes = max(size_bytes, prod(d.npus for d in dimensions)) // n  # never less than a byte a rank
    message = size_bytes
    hops = [send_ns(a, b, message, dimensions) for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True)]
    steps = ring_steps(collective, n)
    sums = list(accumulate(hops + hops, initial=0))
    worst_run = max(sums[start + steps % n] - sums[start] for start in range(n))
    delay = GROUP_ENDPOINT_DELAY_NS if is_group else system.endpoint_delay_ns
    travel_ns = steps // n * sums[n] + worst_run + (steps + 1) * delay
    return travel_ns + ring_reductions_ns(collective, n, message, system)


def group_ns(
    collective: Collective,
    algorithm: Algorithm,
    ranks: Sequence[int],
    *,
    size_bytes: int,
    dimensions: Sequence[Dimension],
    system: System,
) -> int:
    """Return how long a collective of a communicator group smaller than the world takes.

    Raises UsageError where no closed form is known.
    """
    if algorithm is Algorithm.RING:
        return ring_ns(
            collective, ranks, size_bytes=size_bytes, dimensions=dimensions, system=system, is_group=True
        )
    dimension = dimensions[0]
    if len(dimensions) > 1 or dimension.topology is Topology.RING:
        raise UsageError(f"no closed form for a {algorithm} group on {dimension.topology}")
    return alone_ns(
        collective, algorithm, size_bytes=size_bytes, dimension=replace(dimension, npus=len(ranks)),
        system=system, is_group=True,
    )  # fmt: skip
