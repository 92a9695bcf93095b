from __future__ import annotations

from dataclasses import replace

import pytest

from strata.simulate.traffic import (
    card_bytes_per_s,
    hops,
    links_used,
    replica_ring_s,
    replica_wire,
    wan_hop,
)
from strata.workload.plan import Pipeline, Stage
from tests.support.builders import GBPS, domain, fleet


def pipeline(*stages: tuple[str, int], replicas: int = 1) -> Pipeline:
    return Pipeline(tuple(Stage(name, i, 1, ranks) for i, (name, ranks) in enumerate(stages)), replicas, 4)


def test_copies_share_the_link_they_cross_at_the_same_time():
    joined = fleet(domain("a"), domain("b"), gbps=5, ms=30)
    one, four = (wan_hop(joined, "a", "b", 1e8, copies=copies, ranks=8) for copies in (1, 4))
    assert one.serial_s == pytest.approx(1e8 / (5 * GBPS))
    assert four.serial_s == pytest.approx(4 * one.serial_s)
    assert one.latency_s == 0.03
    assert one.wan_bytes == four.wan_bytes == 1e8
    assert one.egress_usd == pytest.approx(1e8 * 0.02e-9)


def test_a_fast_link_still_waits_for_the_card_it_leaves_by():
    joined = fleet(domain("a"), domain("b"), gbps=1e6)
    hop = wan_hop(joined, "a", "b", 1e9, copies=1, ranks=2)
    assert hop.serial_s == pytest.approx(1e9 / (50e9 * 2 / 8))
    assert card_bytes_per_s(domain("a"), 16) == 100e9  # of two nodes


def test_a_hop_leaves_its_node_only_at_a_node_boundary():
    inside = fleet(domain("a", 8, per_node=4))
    cuts = [there for there, _ in hops(inside, pipeline(("a", 2), ("a", 2), ("a", 2)), [1e6, 1e6])]
    assert [cut.latency_s for cut in cuts] == [5e-6, 10e-6]
    assert all(cut.wan_bytes == 0 for cut in cuts)


def test_forward_and_backward_take_the_link_of_their_own_direction():
    joined = fleet(domain("a"), domain("b"))
    slow_back = joined.with_links([replace(joined.links["b", "a"], bandwidth_bytes_per_s=1e6, latency_s=1.0)])
    ((there, back),) = hops(slow_back, pipeline(("a", 8), ("b", 8)), [1e6])
    assert back.serial_s == pytest.approx(1.0)
    assert there.latency_s == 0.03
    assert back.latency_s == 1.0
    used = links_used(slow_back, pipeline(("a", 8), ("b", 8)))
    assert {(link.source, link.dest) for link in used} == {("a", "b"), ("b", "a")}


def test_a_missing_link_is_no_hop():
    with pytest.raises(KeyError):
        hops(fleet(domain("a"), domain("b"), links=[]), pipeline(("a", 8), ("b", 8)), [1e6])


@pytest.mark.parametrize(
    ("replicas", "bandwidth", "latency"), [(2, 300e9, 5e-6), (4, 300e9, 5e-6), (5, 50e9 / 2, 10e-6)]
)
def test_copies_sum_their_gradients_inside_a_node_while_all_of_them_fit_in_it(replicas, bandwidth, latency):
    found = replica_ring_s(domain("a", 16), 1e9, replicas=replicas, copy_devices=2)
    assert found == pytest.approx(2 * (replicas - 1) * (1e9 / replicas / bandwidth + latency))


def test_one_copy_has_nothing_to_sum():
    assert replica_ring_s(domain("a"), 1e9, replicas=1, copy_devices=8) == 0.0


@pytest.mark.parametrize("copy_devices", [1, 2, 3, 4, 8, 12, 16])
def test_rings_share_the_card_of_a_node_as_a_count_over_the_layout_says(copy_devices):
    """Rings that leave each node, counted device by device: copies lie one after another."""
    site, replicas = domain("a", 192), 12
    ring = [device % copy_devices for device in range(replicas * copy_devices)]
    nodes = [ring[first : first + 8] for first in range(0, len(ring), 8)]
    through = max(len({r for r in node if node.count(r) < replicas}) for node in nodes)
    found, _ = replica_wire(site, replicas=replicas, copy_devices=copy_devices)
    assert found == pytest.approx(50e9 / through)


def test_a_site_in_the_middle_sends_both_ways_over_its_uplink():
    middle = replace(domain("b"), uplink_bytes_per_s=5 * GBPS)
    joined = fleet(domain("a"), middle, domain("c"), gbps=100)
    (to_b, from_b), (to_c, _) = hops(joined, pipeline(("a", 8), ("b", 8), ("c", 8), replicas=3), [1e8, 1e8])
    # Activations to c and gradients to a leave b together; three copies each.
    assert from_b.serial_s == to_c.serial_s == to_b.serial_s == pytest.approx(2 * 3 * 1e8 / (5 * GBPS))
    assert wan_hop(joined, "a", "c", 1e8, copies=3, ranks=8).serial_s == pytest.approx(3 * 1e8 / (100 * GBPS))
