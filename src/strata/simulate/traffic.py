"""Which wires a plan's messages use: hops between stages, and gradient sums inside one domain.

Devices are laid out copy by copy, stage by stage, so a hop leaves its node only at a node boundary; the
launch files use the same layout. Copies of a pipeline cross the same wide-area link at the same time and
share it; ranks of one node share its network card, and rings share it where they pass through a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from strata.fleet.fleet import Domain, Fleet, Link
from strata.workload.plan import Pipeline


@dataclass(frozen=True, slots=True)
class Hop:
    """One message from a stage to the next: time on the wire, one-way latency, and whether it is wide-area.

    `wan_bytes` and `egress_usd` are of one microbatch of one copy, forward direction or backward. `least_s`: the
    time the sender's card and the uplinks of both sites need, however fast the link between is.
    """

    serial_s: float
    latency_s: float
    wan_bytes: float = 0.0
    egress_usd: float = 0.0
    least_s: float = 0.0


def card_bytes_per_s(domain: Domain, ranks: int) -> float:
    """Return what the devices of one stage have of their nodes' network cards [B/s]."""
    return domain.network_bandwidth_bytes_per_s * ranks / domain.devices_per_node


def wan_hop(
    fleet: Fleet,
    source: str,
    dest: str,
    message_bytes: float,
    *,
    copies: int,
    ranks: int,
    flows: tuple[int, int] = (1, 1),
) -> Hop:
    """Return the hop of one message between two domains, `copies` of it sharing the link. KeyError: no link.

    `flows`: hops that leave the source, and that reach the destination, at the same time: they share its uplink.
    """
    link = fleet.links[source, dest]
    least_s = message_bytes / card_bytes_per_s(fleet.domain(source), ranks)
    for name, shared_by in zip((source, dest), flows, strict=True):
        uplink = fleet.domain(name).uplink_bytes_per_s
        if uplink is not None:
            least_s = max(least_s, copies * shared_by * message_bytes / uplink)
    serial_s = max(least_s, copies * link.serialisation_s(message_bytes))
    return Hop(serial_s, link.latency_s, message_bytes, message_bytes * link.price_usd_per_byte, least_s)


def hops(fleet: Fleet, pipeline: Pipeline, message_bytes: Sequence[float]) -> list[tuple[Hop, Hop]]:
    """Return the forward and backward hop of every cut of a pipeline; one message size per cut."""
    stages, hops = pipeline.stages, []
    in_domain = Counter(stage.domain for stage in stages)
    placed: Counter[str] = Counter()
    # Activations leave a site one way and gradients the other, and both use its uplink.
    crossings = Counter(name for a, b in pairwise(stages) if a.domain != b.domain for name in (a.domain, b.domain))
    for here, there, size in zip(stages, stages[1:], message_bytes, strict=False):
        placed[here.domain] += 1
        if here.domain == there.domain:
            hop = inner_hop(fleet.domain(here.domain), here.num_devices, placed[here.domain],
                             in_domain[here.domain], size)  # fmt: skip
            hops.append((hop, hop))
        else:
            copies, flows = pipeline.replicas, (crossings[here.domain], crossings[there.domain])
            hops.append((
                wan_hop(fleet, here.domain, there.domain, size,
                        copies=copies, ranks=here.num_devices, flows=flows),
                wan_hop(fleet, there.domain, here.domain, size,
                        copies=copies, ranks=there.num_devices, flows=flows[::-1]),
            ))  # fmt: skip
    return hops


def inner_hop(domain: Domain, ranks: int, position: int, stages: int, message_bytes: float) -> Hop:
    """Return the hop after the `position`-th of a copy's `stages` in one domain; 0: from its first to its last."""
    node = domain.devices_per_node
    if stages * ranks <= node or (ranks < node and position * ranks % node):
        return Hop(message_bytes / (ranks * domain.intra_bandwidth_bytes_per_s), domain.intra_latency_s)
    return Hop(message_bytes / card_bytes_per_s(domain, ranks), domain.network_latency_s)


def replica_ring_s(
    domain: Domain, shard_bytes: float, *, replicas: int, copy_devices: int, side_by_side: int = 1
) -> float:
    """Return the ring all-reduce of one device's gradient shard between the copies of a stage [s].

    2 (R-1)/R × bytes / bandwidth + 2 (R-1) latency (Thakur et al. 2005, §4.4). `copy_devices` is how many
    devices of the domain one copy takes: when all copies lie in one node the sum stays there.
    """
    if replicas == 1:
        return 0.0
    bandwidth, latency = replica_wire(
        domain, replicas=replicas, copy_devices=copy_devices, side_by_side=side_by_side
    )
    return 2 * (replicas - 1) * (shard_bytes / replicas / bandwidth + latency)


def replica_wire(
    domain: Domain, *, replicas: int, copy_devices: int, side_by_side: int = 1
) -> tuple[float, float]:
    """Return bandwidth [B/s] and one-way latency [s] of one device on the ring between a stage's copies.

    Copies lie one after another, so a ring passes all its members in a node before it leaves it: it crosses each
    node boundary once. There is a ring for every device of a copy, all at the same time, and a node's card is
    shared by those that pass through it: one for each of its devices where a copy fills the node, else one for
    each device of a copy. Where `side_by_side` members of a ring are neighbours in one copy (pieces of a sequence
    have the same weights), so many fewer rings pass. (Derived; MosaicML's 13B takes as long on 16 to 64 cards as
    on the 8 of one node.)
    """
    if replicas * copy_devices <= domain.devices_per_node * side_by_side:
        return domain.intra_bandwidth_bytes_per_s, domain.intra_latency_s
    rings = max(1.0, min(copy_devices, domain.devices_per_node) / side_by_side)
    share = domain.network_bandwidth_bytes_per_s / rings
    if copy_devices >= domain.devices_per_node and side_by_side == 1:
        return share, domain.network_latency_s
    return min(share, domain.intra_bandwidth_bytes_per_s), domain.network_latency_s


def links_used(fleet: Fleet, pipeline: Pipeline) -> list[Link]:
    """Return the wide-area links the pipeline's activations and gradients cross."""
    links = []
    for here, there in pairwise(pipeline.stages):
        if here.domain != there.domain:
            links += [fleet.links[here.domain, there.domain], fleet.links[there.domain, here.domain]]
    return links
