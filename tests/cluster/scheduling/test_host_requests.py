"""CPUs, memory, pods and host ports of a node: a gang has them for all its pods, or is told which it lacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.scheduling.evaluation import TOKENS, evaluate
from strata.cluster.scheduling.host import PodRequests
from strata.cluster.scheduling.index import Index, has_room, released
from tests.cluster.builders import B3, PROFILES, choose, claim, cluster, decide, node
from tests.support.laws import examples

GIB = 2**30


def requests(cpu=0.0, gib=0.0, *, ports=(), **more):
    return PodRequests({"cpu": int(cpu * 1000), "memory": int(gib * GIB), **more, "pods": 1}, frozenset(ports))


def host(name, cpu=64.0, gib=512.0, *, pods=110, used=None, devices=8, model=None, **more):
    """A node with devices, their resource, and so much else, some of it requested."""
    made = node(name, model, devices, **more) if model else node(name, count=devices, **more)
    resource = "huawei.com/Ascend910" if model == B3 else "nvidia.com/gpu"
    allocatable = {"cpu": int(cpu * 1000), "memory": int(gib * GIB), "pods": pods, resource: devices}
    return replace(made, allocatable=allocatable, requested=used or PodRequests())


def decided(asked, *nodes):
    return decide(cluster(*nodes), asked, PROFILES)


def reasons_of(decision):
    return {one.name: [str(reason).partition(": ")[2] for reason in one.reasons] for one in decision.alternatives}


def test_a_node_whose_cpus_are_requested_is_refused_with_figures():
    decision = decided(claim(1, requests=requests(cpu=8)), host("a", cpu=64, used=requests(cpu=62.5)))
    assert decision.choice is None
    assert [reason.token for reason in decision.reasons] == ["gang-fits-nowhere", "fits-if"]
    assert str(decision.reasons[1]).endswith(
        "fits on 1 node with A100-SXM4-80GB if a pod's request of 8 cpu is at most 1.5"
    )
    (alternative,) = decision.alternatives
    assert [reason.token for reason in alternative.reasons] == ["node-resources-busy"]
    assert "cpu: a pod requests 8, but only 1.5 of 64 is left" in str(alternative.reasons[0])


def test_every_resource_that_is_short_is_named():
    asked = claim(1, requests=requests(cpu=8, gib=100, ports=["TCP/29500"]))
    used = requests(cpu=60, gib=500, ports=["TCP/29500"])
    ((_, texts),) = reasons_of(decided(asked, host("a", used=used))).items()
    assert [text.partition(":")[0] for text in texts] == ["cpu", "memory", "host port TCP/29500"]
    full = host("a", pods=4, used=PodRequests({"pods": 4}))
    assert "pods: a pod requests 1, but only 0 of 4 is left" in str(
        decided(asked, full).alternatives[0].reasons[0]
    )


def test_a_node_without_the_vendors_device_plugin_is_told_from_a_busy_one():
    bare = replace(host("a"), allocatable={"cpu": 64000, "memory": 512 * GIB, "pods": 110})
    decision = decided(claim(1, requests=requests(cpu=1)), bare)
    assert [reason.token for reason in decision.reasons] == ["gang-fits-nowhere", "cluster-too-small"]
    assert reasons_of(decision) == {"a": ["nvidia.com/gpu: a pod needs 1, but the node has 0 in all"]}


def test_what_a_node_never_has_is_told_from_what_it_has_not_now():
    decision = decided(claim(1, requests=requests(cpu=100)), host("a", cpu=64))
    assert reasons_of(decision) == {"a": ["cpu: a pod needs 100, but the node has 64 in all"]}


def test_the_number_of_pods_is_not_something_to_ask_less_of():
    full = host("a", pods=4, used=PodRequests({"pods": 4}))
    decision = decided(claim(1, requests=PodRequests({"pods": 1})), full)
    assert [reason.token for reason in decision.reasons] == ["gang-fits-nowhere", "needs-free-devices"]


def test_the_pods_of_a_gang_count_together():
    asked = claim(1, 4, requests=requests(cpu=20))
    nodes = [host("a", cpu=64), host("b", cpu=32)]
    assert Counter(pod.node for pod in decided(asked, *nodes).choice.pods) == {"a": 3, "b": 1}
    assert decided(asked, nodes[0]).choice is None
    fewer = [str(reason) for reason in decided(asked, nodes[0]).reasons]
    assert any("at most 16" in text for text in fewer)
    assert any("fits with 3 pods instead of 4" in text for text in fewer)


def test_two_pods_with_one_host_port_go_to_two_nodes():
    asked = claim(1, 2, requests=requests(ports=["TCP/29500"]))
    assert decided(asked, host("a")).choice is None
    assert {pod.node for pod in decided(asked, host("a"), host("b")).choice.pods} == {"a", "b"}


def test_fractions_count_their_nodes_cpus_too():
    asked = claim(
        None, 3, is_fractional=True, memory_bytes=8 * GIB, cores_share=0.1, requests=requests(cpu=20, gib=1)
    )
    assert Counter(pod.node for pod in decided(asked, host("a", cpu=40), host("b")).choice.pods)["a"] <= 2
    assert decided(asked, host("a", cpu=40)).choice is None


def test_a_device_plugin_that_offers_nothing_gets_no_pod():
    bare = replace(host("a"), allocatable={"cpu": 64000, "memory": 512 * GIB, "pods": 110})
    decision = decided(claim(1, requests=requests(cpu=1)), bare)
    assert decision.choice is None
    assert "nvidia.com/gpu: a pod needs 1, but the node has 0 in all" in str(decision.alternatives[0].reasons[0])


def test_a_resource_no_node_has_keeps_a_pod_waiting_and_is_named():
    asked = claim(1, requests=requests(cpu=1, **{"rdma/hca": 1}))
    decision = decided(asked, host("a"))
    assert "rdma/hca: a pod needs 1, but the node has 0 in all" in str(decision.alternatives[0].reasons[0])
    assert decided(replace(asked), node("unknown")).choice is not None, "of a node nobody knows, nothing counts"


def test_what_a_substitute_requests_is_its_own_resource():
    asked = claim(1, accelerator="A100-SXM4-80GB", norm="all", requests=requests(cpu=1))
    placement = decided(asked, host("npu", model=B3)).choice
    assert placement.requests.amounts["huawei.com/Ascend910"] == 2
    assert "nvidia.com/gpu" not in placement.requests.amounts


def test_extenders_are_told_the_same_word():
    index = Index.of(cluster(host("a", cpu=4), host("b", cpu=4, busy=range(8))))
    token, score = evaluate(index, claim(1, requests=requests(cpu=8)), PROFILES).nodes
    assert [TOKENS[number] for number in token] == ["node-resources-busy", "devices-busy"]
    assert not score.any()


@st.composite
def clusters(draw):
    def some(number):
        cpu, gib, pods = draw(st.integers(0, 16)), draw(st.integers(0, 16)), draw(st.integers(0, 6))
        return host(f"n{number}", cpu, gib, pods=pods, devices=4, busy=draw(st.sets(st.integers(0, 3))))

    return [some(number) for number in range(draw(st.integers(1, 4)))]


def claims():
    def made(cpu, gib, pods, devices, ports, is_fraction):
        asked = claim(devices, pods, requests=requests(cpu / 2, gib, ports=["TCP/1"] if ports else ()))
        return replace(asked, devices=None, is_fractional=True, memory_bytes=GIB) if is_fraction else asked

    return st.builds(
        made,
        *(st.integers(0, 12), st.integers(0, 6), st.integers(1, 6), st.sampled_from([1, 1, 2])),
        *(st.booleans(), st.booleans()),
    )


@examples(120)
@given(clusters(), st.lists(claims(), min_size=1, max_size=6))
def test_never_more_is_requested_than_is_allocatable_and_what_is_given_back_can_be_had_again(nodes, asked):
    index = Index.of(cluster(*nodes))
    before, placed = index, []
    for each in asked:
        placement = choose(index, each, PROFILES).placement
        if placement is None:
            continue
        assert has_room(index, placement)
        assert len(placement.pods) == each.pods
        index = index.placed(placement)
        placed.append(placement)
        for state in index.nodes:
            assert all(state.requested.amounts.get(name, 0) <= most for name, most in state.allocatable.items())
        if each.requests.ports:
            assert len(placement.nodes) == each.pods
            assert not has_room(index, placement)
    for placement in reversed(placed):
        index = index.with_nodes(released(index, placement))
    assert (index.unrequested == before.unrequested).all()


@examples(120)
@given(clusters(), claims())
def test_a_gang_waits_only_where_pods_put_one_by_one_find_no_node_either(nodes, asked):
    """Pods alike do not compete by order: as many fit as each node holds."""
    count = asked.devices or 1

    def held(state):
        free = [b for b, s in zip(state.free_bytes, state.free_share, strict=True) if s == 1]
        devices = sum(int(b // asked.memory_bytes) for b in free) if asked.is_fractional else len(free) // count
        amounts = dict(asked.requests.amounts)
        if not asked.is_fractional:
            amounts["nvidia.com/gpu"] = count
        by_host = [state.allocatable[name] // amount for name, amount in amounts.items() if amount]
        return min(devices, *by_host, *([1] if asked.requests.ports else []))

    fits = sum(map(held, nodes)) >= asked.pods
    assert (choose(Index.of(cluster(*nodes)), asked, PROFILES).placement is not None) is fits
