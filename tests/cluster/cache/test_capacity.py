"""The unified view: sums that add up, fractions, and what nobody can have now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.cache.capacity import by, parts, summary
from strata.decision import Trust
from strata.fleet.acu import FIGURES
from strata.fleet.catalogue import accelerators
from tests.cluster.builders import A100, B3, node

MODELS = [card.name for card in accelerators()]


def test_an_a100_is_a_hundred_of_compute_and_memory():
    total = summary("all", parts([node("n0", A100, 2, busy=(0,))]))
    assert total.total["fp16"] == pytest.approx(200)
    assert total.used["fp16"] == total.free["fp16"] == pytest.approx(100)
    assert total.total["memory"] == pytest.approx(200)
    assert total.devices == 2


def test_a_fraction_uses_its_share_of_the_cores_and_its_bytes():
    one = node("n0", A100, 1)
    gib = one.free_bytes[0] / 4
    total = summary("all", parts([replace(one, free_bytes=(3 * gib,), free_share=(0.7,))]))
    assert total.used["memory"] == pytest.approx(25)
    assert total.used["fp16"] == total.used["memory_bandwidth"] == pytest.approx(30)


def test_what_is_free_of_an_unwell_device_or_a_closed_node_is_out():
    sick = summary("all", parts([node("n0", A100, 4, busy=(0,), sick=(0, 1))]))
    assert (sick.used["fp16"], sick.out["fp16"], sick.free["fp16"]) == pytest.approx((100, 100, 200))
    closed = summary("all", parts([node("n0", A100, 4, busy=(0,), is_schedulable=False)]))
    assert (closed.used["fp16"], closed.out["fp16"], closed.free["fp16"]) == pytest.approx((100, 300, 0))


def test_what_a_device_plugin_does_not_offer_is_out_and_not_in_use():
    withheld = node("n0", A100, 4, busy=(0, 2, 3), withheld=frozenset({2, 3}))
    total = summary("all", parts([withheld]))
    assert (total.used["fp16"], total.out["fp16"], total.free["fp16"]) == pytest.approx((100, 200, 100))


def test_a_sum_is_as_trustworthy_as_its_worst_part():
    mixed = summary("all", parts([node("n0", A100, 1), node("n1", "H100-SXM5-80GB", 1)]))
    assert mixed.trust["fp16"] is Trust.ASSUMED


def test_devices_the_catalogue_does_not_know_are_counted_and_not_guessed():
    known = node("n0", A100, 2)
    devices = tuple(replace(device, card=None) for device in known.fingerprint.devices)
    strange = replace(known, fingerprint=replace(known.fingerprint, node="n1", devices=devices))
    total = summary("all", parts([known, strange]))
    assert total.devices == 4
    assert total.total["fp16"] == pytest.approx(200)
    assert total.unknown == dict.fromkeys(FIGURES, 2)


def test_a_device_that_the_catalogue_does_not_know_is_not_free_while_it_is_used():
    known = node("n0", A100, 3, busy=(0,), sick=(1,))
    devices = tuple(replace(device, card=None) for device in known.fingerprint.devices)
    strange = replace(known, fingerprint=replace(known.fingerprint, devices=devices))
    assert [[part.is_free for part in parts([each])] for each in (known, strange)] == [[False, False, True]] * 2


def test_a_node_stands_where_its_labels_say():
    nodes = [
        node("n0", labels={"topology.kubernetes.io/region": "east", "topology.kubernetes.io/zone": "e1"}),
        node("n1", labels={"topology.kubernetes.io/zone": "w1"}),
        node("n2", B3),
    ]
    assert [one.name for one in by(parts(nodes), lambda part: part.domain)] == ["default", "east", "w1"]


@st.composite
def nodes(draw):
    found = []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.sampled_from([1, 2, 8]))
        shares = st.lists(st.floats(0, 1), min_size=count, max_size=count)
        one = node(
            f"n{number}",
            draw(st.sampled_from(MODELS)),
            count,
            sick=draw(st.sets(st.integers(0, count - 1))),
            is_schedulable=draw(st.booleans()),
            labels={"topology.kubernetes.io/zone": draw(st.sampled_from("ab"))},
        )
        sizes = [device.memory_bytes for device in one.fingerprint.devices]
        free_bytes = tuple(size * share for size, share in zip(sizes, draw(shares), strict=True))
        found.append(replace(one, free_bytes=free_bytes, free_share=tuple(draw(shares))))
    return found


@given(some=nodes())
def test_nothing_is_lost_or_counted_twice(some):
    devices = parts(some)
    whole = summary("all", devices)
    for figure in FIGURES:
        assert whole.total[figure] == pytest.approx(whole.used[figure] + whole.free[figure] + whole.out[figure])
        assert min(whole.used[figure], whole.free[figure], whole.out[figure]) >= 0
        for key in ("domain", "vendor", "node", "model"):
            groups = by(devices, lambda part, key=key: getattr(part, key))
            assert sum(one.devices for one in groups) == whole.devices
            for what in ("total", "used", "free", "out"):
                assert sum(getattr(one, what)[figure] for one in groups) == pytest.approx(
                    getattr(whole, what)[figure]
                )
            assert sum(one.unknown.get(figure, 0) for one in groups) == whole.unknown.get(figure, 0)
