from __future__ import annotations

import numpy as np
import pytest

from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.scheduling.index import Index
from strata.evaluation.placement.baselines import BASELINES, choose_like
from strata.evaluation.placement.quality import Gang, ours, policies, replay
from strata.evaluation.placement.synthetic import synthetic_cluster, synthetic_trace
from tests.cluster.builders import A100, B3, PROFILES, claim, cluster, node, quads


@pytest.fixture(scope="module")
def qualities():
    empty = Index.of(synthetic_cluster(48, np.random.default_rng(0)))
    trace = synthetic_trace(150, np.random.default_rng(1), rate_per_s=0.05)
    return {name: replay(empty, trace, bundled_profiles(), policy=policy) for name, policy in policies().items()}


def test_on_a_half_full_cluster_less_is_broken_slow_and_stranded_than_with_others(qualities):
    mine = qualities.pop("strata")
    for other in qualities.values():
        assert mine.placed == other.placed == 150
        assert mine.fragmentation < other.fragmentation
        assert mine.bandwidth > other.bandwidth
        assert mine.stranded_acu <= other.stranded_acu
        assert mine.wait_s <= other.wait_s


def test_a_trace_leaves_the_cluster_as_it_was():
    empty = Index.of(cluster(node("a")))
    gangs = [Gang(0.0, 5.0, claim(8)), Gang(1.0, 5.0, claim(8))]
    quality = replay(empty, gangs, PROFILES, policy=ours)
    assert (quality.placed, quality.wait_s) == (2, 2.0)
    assert quality.stranded_acu == 0.0
    assert ours(empty, claim(8), PROFILES) is not None


def test_what_is_free_while_a_gang_waits_is_stranded():
    empty = Index.of(cluster(node("a"), node("b", B3, busy=range(8))))
    gangs = [
        Gang(0.0, 10.0, claim(4)),
        Gang(0.0, 10.0, claim(8)),
        Gang(0.0, 10.0, claim(1, accelerator=B3, substitution="never")),
    ]
    quality = replay(empty, gangs, PROFILES, policy=ours)
    assert quality.stranded_acu == pytest.approx((400 * 10 + 0 * 10) / 20)
    assert quality.placed == 2


def test_baselines_choose_as_they_are_known_to():
    index = Index.of(cluster(node("a"), node("b", busy=(0, 1, 2)), node("c", count=4, busy=(0, 1))))
    chosen = {name: choose_like(name, index, claim(2), PROFILES) for name in BASELINES}
    assert {name: one.pods[0].node for name, one in chosen.items()} == {
        "binpack": "c",
        "spread": "a",
        "hami-like": "c",
    }


def test_baselines_do_not_look_at_links_and_the_router_does():
    index = Index.of(cluster(node("a", links=quads(), busy=(0, 1, 2))))
    assert choose_like("binpack", index, claim(4), PROFILES).pods[0].devices == (3, 4, 5, 6)
    assert ours(index, claim(4), PROFILES).pods[0].devices == (4, 5, 6, 7)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_place_gangs_whole_or_not_at_all(name):
    index = Index.of(cluster(node("a"), node("b", busy=(0,))))
    assert choose_like(name, index, claim(8, 2), PROFILES) is None
    assert len(choose_like(name, index, claim(4, 3), PROFILES).pods) == 3


def test_the_same_seed_makes_the_same_cluster_and_trace():
    one, two = (synthetic_cluster(4, np.random.default_rng(3), busy=0.5) for _ in range(2))
    assert one == two
    assert {
        device.model
        for state in synthetic_cluster(48, np.random.default_rng(0)).nodes
        for device in state.fingerprint.devices
    } == {A100, "A100-PCIe-80GB", B3}
