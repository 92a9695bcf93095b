"""Traffic between ranks by number: single messages, and rings in a listed order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from strata.simulate.compat.closed_forms import ring_reductions_ns, ring_steps
from strata.simulate.compat.network import Dimension
from strata.simulate.compat.system import GROUP_ENDPOINT_DELAY_NS, Collective, System


def differing_dimensions(source: int, dest: int, dimensions: Sequence[Dimension]) -> list[int]:
    """Return the dimensions in which two ranks differ; dimension 0 counts fastest."""
    found = []
    for index, dimension in enumerate(dimensions):
        if source % dimension.npus != dest % dimension.npus:
            found.append(index)
        source, dest = source // dimension.npus, dest // dimension.npus
    return found


def send_ns(source: int, dest: int, size_bytes: int, dimensions: Sequence[Dimension]) -> int:
    """Return how long one message takes, charged in the first dimension in which the ranks differ: so does
    ASTRA-sim, whatever the others would cost."""
    first = differing_dimensions(source, dest, dimensions)[0]
    for dimension in dimensions[:first]:
        source, dest = source // dimension.npus, dest // dimension.npus
    dimension = dimensions[first]
    hops = dimension.ring_hops(source % dimension.npus, dest % dimension.npus)
    return dimension.send_ns(size_bytes, hops=hops)


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
