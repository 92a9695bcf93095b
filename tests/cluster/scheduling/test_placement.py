from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api.crd.compute_node import compute_node, fingerprint_of
from strata.cluster.scheduling.index import Index
from strata.fleet.acu import Need
from strata.fleet.fingerprint import DeviceLoad
from tests.cluster.builders import A100, B3, DIE, PROFILES, choose, claim, cluster, decide, node, quads
from tests.cluster.scheduling.placement_scores import every_placement, score
from tests.support.laws import examples

GIB = 2**30


def placed(asked, *nodes, profiles=PROFILES):
    decision = decide(cluster(*nodes), asked, profiles)
    assert decision.choice is not None, [str(reason) for reason in decision.reasons]
    return decision.choice


def tokens(asked, *nodes, profiles=PROFILES):
    decision = decide(cluster(*nodes), asked, profiles)
    assert decision.choice is None
    return [reason.token for reason in decision.reasons], {
        one.name: [reason.token for reason in one.reasons] for one in decision.alternatives
    }


def devices(placement):
    return [(pod.node, pod.devices) for pod in placement.pods]


# One request, any card


def test_two_910b_stand_for_one_a100_and_the_arithmetic_is_shown():
    asked = claim(1, accelerator=A100, norm="all")
    decision = decide(cluster(node("nv", busy=range(8)), node("npu", B3)), asked, PROFILES)
    assert decision.choice is not None
    assert (decision.choice.profile, decision.choice.devices_per_pod) == ("pytorch-ascend", 2)
    exchanged = next(reason for reason in decision.reasons if reason.token == "exchanged")
    assert "2x Ascend910B3 for 1x A100-SXM4-80GB: 1.27 by memory_bandwidth" in str(exchanged)


def test_the_card_a_job_was_written_for_comes_first():
    asked = claim(1, accelerator=A100)
    assert placed(asked, node("npu", B3, busy=range(7)), node("nv")).profile == "pytorch-nvidia"


def test_substitution_never_leaves_the_gang_waiting():
    asked = claim(1, accelerator=A100, substitution="never")
    reasons, nodes = tokens(asked, node("nv", busy=range(8)), node("npu", B3))
    assert reasons == ["gang-fits-nowhere", "fits-if"]
    assert nodes == {"nv": ["devices-busy"], "npu": ["substitution-not-allowed"]}


def test_substitution_ask_names_the_offer_and_waits():
    asked = claim(1, accelerator=A100, norm="all", substitution="ask")
    decision = decide(cluster(node("nv", busy=range(8)), node("npu", B3)), asked, PROFILES)
    assert decision.choice is None
    assert decision.reasons[0].token == "substitution-wanted"
    assert decision.reasons[0].data["offer"] == "2x Ascend910B3"
    assert decision.alternatives[0].choice is not None
    assert decision.alternatives[0].choice.profile == "pytorch-ascend"


def test_amounts_are_turned_into_devices_of_each_card():
    asked = claim(None, need=Need({"memory": 100 * GIB}))
    assert placed(asked, node("npu", B3)).devices_per_pod == 2
    assert placed(asked, node("nv")).devices_per_pod == 2
    assert placed(claim(None, need=Need({"memory": 130 * GIB})), node("npu", B3)).devices_per_pod == 3


def test_too_few_devices_for_the_amounts_are_refused():
    asked = claim(1, need=Need({"memory": 100 * GIB}))
    assert tokens(asked, node("nv"))[1] == {"nv": ["devices-too-few"]}


def test_a_gang_is_on_one_vendor_only():
    asked = claim(8, 2)
    assert tokens(asked, node("nv"), node("npu", B3))[0][0] == "gang-fits-nowhere"
    assert {pod.node for pod in placed(asked, node("nv"), node("npu", B3), node("npu2", B3)).pods} == {
        "npu",
        "npu2",
    }


def test_frameworks_choose_profiles_and_profiles_without_an_image_count_for_nothing():
    assert placed(claim(framework="paddle"), node("nv"), node("npu", B3)).profile == "paddle-ascend"
    empty = tuple(replace(profile, image="") for profile in PROFILES)
    assert tokens(claim(), node("nv"), profiles=empty)[1] == {"nv": ["no-profile"]}


def test_a_card_without_the_figure_asked_for_is_refused():
    asked = claim(None, need=Need({"fp16": 1e12}))
    profile = replace(PROFILES[0], models=("Kunlun-P800", "MTT-S5000"))
    assert tokens(asked, node("s", "MTT-S5000"), profiles=(profile,))[1] == {"s": ["figure-missing"]}


# Links, boards, peers


def test_a_pod_gets_devices_that_are_joined_fast():
    asked = claim(4)
    assert devices(placed(asked, node("a", links=quads(), busy=(0,)))) == [("a", (4, 5, 6, 7))]


def test_pods_of_one_node_do_not_spoil_each_others_links():
    asked = claim(2, 2)
    chain = {(i, j): "sys" for i in range(4) for j in range(i + 1, 4)}
    links = chain | {(0, 1): "nvlink", (1, 2): "nvlink", (2, 3): "nvlink"}
    # Taking 1-2 first would leave 0-3, which are far apart.
    assert devices(placed(asked, node("a", count=4, links=links))) == [("a", (0, 1)), ("a", (2, 3))]


def test_where_links_are_alike_devices_of_one_numa_node_are_taken():
    assert devices(placed(claim(4), node("a", busy=(0, 1)))) == [("a", (4, 5, 6, 7))]


@pytest.mark.parametrize("count", [8, 16])
def test_dies_of_a_board_are_taken_together(count):
    asked = claim(2)
    ((_, chosen),) = devices(placed(asked, node("a", DIE, count, dies=2, link="hccs", busy=(0,))))
    assert chosen[0] % 2 == 0
    assert chosen[1] == chosen[0] + 1


@pytest.mark.parametrize("count", [8, 16])
def test_a_single_die_comes_from_a_board_that_is_torn_already(count):
    assert devices(placed(claim(1), node("a", DIE, count, dies=2, link="hccs", busy=(2,)))) == [("a", (3,))]


def test_devices_that_cannot_reach_each_other_talk_through_the_host():
    decision = decide(cluster(node("a", can_p2p=False)), claim(2), PROFILES)
    assert decision.choice is not None
    assert not decision.choice.can_p2p
    assert decision.choice.bandwidth == 12e9
    assert "no-peer-access" in [reason.token for reason in decision.reasons]


def test_a_gang_stays_in_the_nearest_group_that_holds_it():
    nodes = [node(f"n{i}", rdma_group=f"g{i // 2}", rack=f"r{i // 4}") for i in range(8)]
    nodes[0] = replace(nodes[0], free_share=(0.0,) * 8)
    nodes[2] = replace(nodes[2], free_share=(0.0,) * 8)
    placement = placed(claim(8, 2), *nodes)
    assert placement.level == "rdma"
    assert placement.bandwidth == 25e9
    assert placed(claim(8, 3), *nodes).level == "rack"
    assert placed(claim(8, 5), *nodes).level == "any"


def test_a_gang_that_must_stay_near_waits_and_is_told_what_would_help():
    nodes = [node(f"n{i}", rack=f"r{i}") for i in range(3)]
    reasons, of_nodes = tokens(claim(8, 2, group_level="rack"), *nodes)
    assert reasons == ["gang-fits-nowhere", "fits-if", "fits-fewer-pods"]
    assert of_nodes == {f"n{i}": ["room-for-fewer"] for i in range(3)}


def test_a_large_gang_fills_nodes_whole():
    nodes = [node(f"n{i:03d}", rdma_group="g", busy=(0,) if i % 2 else ()) for i in range(80)]
    placement = placed(claim(1, 500), *nodes)
    assert len({(pod.node, pod.devices) for pod in placement.pods}) == 500
    # 280 devices of begun nodes, then the 28 whole nodes that the other 220 pods need.
    assert len({pod.node for pod in placement.pods}) == 40 + 28
    assert tokens(claim(1, 601), *nodes)[0] == ["gang-fits-nowhere", "fits-fewer-pods"]


@pytest.mark.parametrize("bandwidth", [float("nan"), 0.0, -1.0])
def test_a_measured_bandwidth_that_is_none_counts_as_the_slowest_link(bandwidth):
    base = node("a", count=4)
    prints = replace(base.fingerprint, measured={(0, 1): bandwidth, (2, 3): 300e9})
    assert devices(placed(claim(2), replace(base, fingerprint=prints)))[0][1] != (0, 1)
    assert placed(claim(4), replace(base, fingerprint=prints)).bandwidth == 8e9


def test_cards_are_worth_what_most_nodes_measured():
    def measured(name, tflops):
        base = node(name)
        cards = [
            replace(device, card=replace(device.card, fp16_flops_measured=tflops * 1e12))
            for device in base.fingerprint.devices
        ]
        return replace(base, fingerprint=replace(base.fingerprint, devices=tuple(cards)))

    asked = claim(None, need=Need({"fp16": 240e12}))
    assert placed(asked, measured("a", 250), measured("b", 245), measured("slow", 100)).devices_per_pod == 1
    assert placed(asked, measured("a", 100), measured("b", 110), measured("fast", 250)).devices_per_pod == 3


# Whole nodes stay whole


def test_begun_nodes_are_filled_before_whole_ones():
    assert placed(claim(2), node("a"), node("b", busy=(0,)), node("c")).pods[0].node == "b"


def test_of_begun_nodes_the_one_that_gets_fuller_is_taken():
    assert placed(claim(1), node("a", busy=(0,)), node("b", busy=range(7))).pods[0].node == "b"


def test_a_gang_breaks_open_as_few_whole_nodes_as_it_can():
    nodes = [node(f"n{i}", rdma_group="g") for i in range(4)]
    assert {pod.node for pod in placed(claim(2, 4), *nodes).pods} == {"n0"}


# Fractions


def fraction(gib, cores=0.0, **more):
    return claim(None, is_fractional=True, memory_bytes=gib * GIB, cores_share=cores, **more)


def shared(name, *, left_gib, share=0.5):
    fresh = node(name)
    return replace(
        fresh, free_bytes=(left_gib * GIB, *fresh.free_bytes[1:]), free_share=(share, *fresh.free_share[1:])
    )


def test_fractions_go_to_the_fullest_shared_device_that_holds_them():
    nodes = [node("a"), shared("b", left_gib=60), shared("c", left_gib=20)]
    placement = placed(fraction(16, 0.3), *nodes)
    assert devices(placement) == [("c", (0,))]
    assert (placement.pods[0].memory_bytes, placement.cores_share) == (16 * GIB, 0.3)
    assert devices(placed(fraction(30, 0.3), *nodes)) == [("b", (0,))]
    assert devices(placed(fraction(16, 0.6), *nodes)) == [("b", (1,))]


def test_a_fraction_larger_than_any_device_is_refused():
    assert tokens(fraction(90), node("nv"))[1] == {"nv": ["memory-exceeded"]}


def test_a_card_whose_memory_nobody_knows_is_given_whole_only():
    profile = replace(PROFILES[0], models=("Kunlun-P800",))
    assert placed(claim(2), node("xpu", "Kunlun-P800"), profiles=(profile,)).devices_per_pod == 2
    assert tokens(fraction(1), node("xpu", "Kunlun-P800"), profiles=(profile,))[1] == {"xpu": ["fraction-busy"]}


def test_a_gang_of_fractions_is_all_or_nothing():
    one = node("a", count=1)
    assert len(placed(fraction(40, pods=2), one).pods) == 2
    reasons, nodes = tokens(fraction(40, pods=3), one)
    assert reasons == ["gang-fits-nowhere", "fits-fewer-pods"]
    assert nodes == {"a": ["room-for-fewer"]}


def test_a_fractions_acu_become_a_share_of_the_cores():
    asked = replace(fraction(8), need=Need({"fp16": 125.75e12}))
    assert placed(asked, node("nv")).cores_share == pytest.approx(0.5)
    assert tokens(replace(asked, need=Need({"fp16": 400e12})), node("nv"))[1] == {"nv": ["more-than-one-device"]}


def test_whole_devices_are_not_taken_where_somebody_has_a_part():
    assert devices(placed(claim(7), shared("a", left_gib=60))) == [("a", tuple(range(1, 8)))]
    assert tokens(claim(8), shared("a", left_gib=60))[1] == {"a": ["devices-busy"]}


# Nodes that are closed


def test_sick_devices_are_not_used():
    assert devices(placed(claim(4), node("a", sick=(0, 1, 2, 3)))) == [("a", (4, 5, 6, 7))]
    assert tokens(claim(8), node("a", sick=(0,)))[1] == {"a": ["devices-unhealthy"]}


def test_a_sick_device_is_not_the_reason_where_the_others_are_busy():
    held = node("a", count=4, busy=(0, 1, 2, 3), sick=(3,))
    assert tokens(claim(1), held)[1] == {"a": ["devices-busy"]}
    (alternative,) = decide(
        cluster(node("a", count=4, busy=(0, 1, 2), sick=(3,))), claim(1), PROFILES
    ).alternatives
    assert str(alternative.reasons[0]) == (
        "a: 1 of 4 devices are below health 0.5 and 0 of the others are free, but a pod needs 1"
    )


def test_a_node_that_is_too_small_for_a_pod_is_not_called_busy():
    reasons, nodes = tokens(claim(9, 4), node("a"), node("b", busy=(0,)))
    assert nodes == {"a": ["request-exceeds-node"], "b": ["request-exceeds-node"]}
    assert reasons == ["gang-fits-nowhere", "cluster-too-small"]
    assert tokens(claim(8), node("a", busy=(0,)))[0] == ["gang-fits-nowhere", "needs-free-devices"]


def test_idle_devices_that_the_plugin_does_not_offer_are_not_called_busy():
    down = node("a", count=4, busy=(0, 1, 2, 3), withheld=frozenset({1, 2, 3}))
    assert tokens(claim(2), down)[1] == tokens(fraction(8), down)[1] == {"a": ["devices-withheld"]}
    assert tokens(claim(4), down)[1] == {"a": ["devices-busy"]}
    broken = node("a", count=4, busy=(0, 1, 2, 3), sick=(1,), withheld=frozenset({1}))
    assert tokens(claim(1), broken)[1] == {"a": ["devices-unhealthy"]}


def test_a_node_whose_agent_is_silent_is_not_said_to_be_cordoned():
    assert tokens(claim(), node("a", is_schedulable=False, is_silent=True))[1] == {"a": ["agent-silent"]}


def test_waiting_is_not_advised_where_only_repair_or_a_label_helps():
    assert tokens(claim(8), node("a", sick=(0,)))[0] == ["gang-fits-nowhere", "cluster-too-small"]
    chosen = tuple(replace(p, node_selector={"pool": "train"}) for p in PROFILES)
    assert tokens(claim(), node("a"), profiles=chosen)[0] == ["gang-fits-nowhere", "cluster-too-small"]


def test_nan_health_is_not_well():
    base = node("a")
    bad = replace(base.fingerprint.devices[0], health=float("nan"))
    prints = replace(base.fingerprint, devices=(bad, *base.fingerprint.devices[1:]))
    assert tokens(claim(8), replace(base, fingerprint=prints))[1] == {"a": ["devices-unhealthy"]}


def test_taints_close_a_node_unless_the_profile_tolerates_them():
    tainted = node("a", taints=("sick=yes:NoSchedule",))
    _, nodes = tokens(claim(), tainted)
    assert nodes == {"a": ["node-tainted"]}
    tolerant = tuple(replace(p, tolerations=({"key": "sick", "operator": "Exists"},)) for p in PROFILES)
    assert placed(claim(), tainted, profiles=tolerant).pods[0].node == "a"
    assert placed(claim(), node("a", taints=("slow=yes:PreferNoSchedule",))).pods[0].node == "a"


def test_closed_nodes_are_named_and_what_they_could_do():
    reasons, nodes = tokens(claim(), node("a", is_schedulable=False), node("none", count=0))
    assert reasons == ["gang-fits-nowhere", "fits-if"]
    assert nodes == {"a": ["node-closed"], "none": ["no-devices"]}


def test_taints_are_what_to_change_where_every_node_has_some():
    decision = decide(cluster(node("a", taints=("team=x:NoSchedule",))), claim(), PROFILES)
    assert [str(reason) for reason in decision.reasons[1:]] == [
        "job: fits on 1 node with A100-SXM4-80GB if every closed or tainted node is open to it"
    ]


def test_node_selectors_choose_nodes():
    chosen = tuple(replace(p, node_selector={"pool": "train"}) for p in PROFILES)
    assert placed(claim(), node("a"), node("b", labels={"pool": "train"}), profiles=chosen).pods[0].node == "b"
    assert tokens(claim(), node("a"), profiles=chosen)[1] == {"a": ["node-unlabelled"]}


def test_every_node_that_was_not_chosen_has_its_reason():
    decision = decide(
        cluster(node("a"), node("b", busy=(0,)), node("npu", B3)), claim(1, accelerator=A100), PROFILES
    )
    assert {one.name for one in decision.alternatives} == {"a", "npu"}
    assert all(one.reasons for one in decision.alternatives)


def test_a_better_card_that_has_no_room_for_the_gang_does_not_seem_to_score_lower():
    decision = decide(
        cluster(node("n0", A100, 4, busy=(0, 1)), node("n1", B3)), claim(1, 4, accelerator=A100), PROFILES
    )
    assert decision.choice is not None
    assert {pod.node for pod in decision.choice.pods} == {"n1"}
    assert [reason.token for reason in decision.alternatives[0].reasons] == ["room-for-fewer"]


def test_the_node_that_is_offered_does_not_seem_to_have_too_little_room():
    asked = claim(1, 4, accelerator=A100, substitution="ask")
    decision = decide(cluster(node("n0", A100, 4, busy=(0, 1)), node("n1", B3), node("n2", B3)), asked, PROFILES)
    said = {each.name: [reason.token for reason in each.reasons] for each in decision.alternatives[1:]}
    offered = decision.alternatives[0].choice.nodes
    assert said.pop(*offered) == ["substitution-wanted"]
    assert said == {"n0": ["room-for-fewer"], ({"n1", "n2"} - set(offered)).pop(): ["scores-lower"]}


def test_an_empty_cluster_is_an_answer():
    assert tokens(claim())[0] == ["gang-fits-nowhere"]


# Laws


@st.composite
def small_clusters(draw):
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2, 4))
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
        links = {pair: draw(st.sampled_from(["nvlink", "pix", "sys"])) for pair in pairs}
        some = st.sets(st.integers(0, count - 1))
        group = draw(st.sampled_from(["", "g0", "g1"]))
        nodes.append(
            node(
                f"n{number}",
                count=count,
                links=links,
                busy=draw(st.one_of(st.just(set()), some)),
                sick=draw(st.one_of(st.just(set()), st.just(set()), some)),
                dies=draw(st.sampled_from([1, 1, 2])),
                rdma_group=group,
                rack=draw(st.sampled_from(["", "r0"])) if not group else "r0",
            )
        )
    return cluster(*nodes)


@examples(100)
@given(small_clusters(), st.integers(1, 3), st.integers(1, 2))
def test_no_placement_of_a_small_cluster_is_better(snapshot, pods, count):
    decision = decide(snapshot, claim(count, pods), PROFILES)
    best = max(
        (score(snapshot, every) for every in every_placement(snapshot, pods=pods, devices=count)),
        default=None,
    )
    if best is None:
        assert decision.choice is None
        return
    assert decision.choice is not None
    number = {one.name: position for position, one in enumerate(snapshot.nodes)}
    mine = tuple((number[pod.node], pod.devices) for pod in decision.choice.pods)
    assert decision.choice.score == pytest.approx(score(snapshot, mine))
    assert decision.choice.score >= 0.98 * best


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()), max_size=12),
    st.integers(1, 5),
)
def test_gangs_are_placed_whole_or_not_at_all_and_no_device_is_given_twice(asked, size):
    index = Index.of(cluster(*[node(f"n{i}", count=4, rdma_group=f"g{i // 2}") for i in range(size)]))
    whole, parts = set(), {}
    for count, pods, is_part in asked:
        job = fraction(10.0 * count, 0.2 * count, pods=pods) if is_part else claim(count, pods)
        placement = choose(index, job, PROFILES).placement
        if placement is None:
            continue
        assert len(placement.pods) == pods
        for pod in placement.pods:
            assert len(pod.devices) == (1 if is_part else count)
            for device in pod.devices:
                key = (pod.node, device)
                assert key not in whole
                if is_part:
                    parts[key] = parts.get(key, 0.0) + 0.2 * count
                    assert parts[key] <= 1 + 1e-6
                else:
                    assert key not in parts
                    whole.add(key)
        index = index.placed(placement)


@examples(40)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=8))
def test_an_updated_index_answers_as_a_new_one(asked):
    index = Index.of(cluster(*[node(f"n{i}", count=4, rdma_group=f"g{i // 2}") for i in range(4)]))
    for count, pods in asked:
        fresh = Index.of(cluster(*index.nodes))
        mine, theirs = (choose(one, claim(count, pods), PROFILES).placement for one in (index, fresh))
        assert mine == theirs
        if mine is not None:
            index = index.placed(mine)


def test_an_update_leaves_the_old_index_as_it_was():
    index = Index.of(cluster(node("a")))
    placement = choose(index, claim(8), PROFILES).placement
    assert placement is not None
    after = index.placed(placement)
    assert choose(after, claim(1), PROFILES).placement is None
    assert choose(index, claim(8), PROFILES).placement == placement


def test_a_node_built_otherwise_needs_a_new_index():
    index = Index.of(cluster(node("a")))
    with pytest.raises(ValueError, match="node b"):
        index.with_nodes([node("b")])
    with pytest.raises(ValueError, match="node a"):
        index.with_nodes([node("a", count=4)])
    assert choose(index.with_nodes([node("a", is_schedulable=False)]), claim(), PROFILES).placement is None


def test_equal_questions_have_equal_digests():
    one, two = (decide(Index.of(cluster(node("a"))), claim(), PROFILES) for _ in range(2))
    other = decide(Index.of(cluster(node("a", busy=(0,)))), claim(), PROFILES)
    assert one.inputs_digest == two.inputs_digest != other.inputs_digest


def test_cards_that_keep_a_lower_clock_at_work_are_exchanged_at_less():
    def at(share):
        found = node("a").fingerprint
        load = DeviceLoad(9, median_sm_clock_share=share)
        devices = tuple(replace(device, load=load) for device in found.devices)
        read = fingerprint_of(compute_node(replace(found, devices=devices), at="2026-11-26T10:00:00Z"))
        return replace(node("a"), fingerprint=read)

    asked = claim(None, need=Need({"fp16": 240e12}))
    assert placed(asked, at(1.0)).devices_per_pod == 1
    assert placed(asked, at(0.5)).devices_per_pod == 2
