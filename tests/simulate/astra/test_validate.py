"""What must not reach ASTRA-sim, because it would hang or answer wrongly and exit with 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.errors import UsageError
from strata.simulate.astra.chakra import ChakraCollective, Node, NodeType
from strata.simulate.astra.files import AstraDimension, Scenario
from strata.simulate.astra.validate import check_scenario, trace_faults

MESSAGE = {"comm_src": 0, "comm_dst": 1, "comm_size": 10, "comm_tag": 7}
SEND = Node(0, NodeType.COMM_SEND, attrs=MESSAGE)
RECV = Node(0, NodeType.COMM_RECV, attrs=MESSAGE)
COMP = Node(1, NodeType.COMP, duration_us=1)
WIRE = AstraDimension(2, 2.0**30, 1e-6)


def reduce(node_id=0, **attrs):
    known = {"comm_type": int(ChakraCollective.ALL_REDUCE), "comm_size": 64, "involved_dim": (True,)}
    return Node(node_id, NodeType.COMM_COLL, attrs={**known, **attrs})


def with_attrs(node, **attrs):
    return replace(node, attrs={**node.attrs, **attrs})


def without(node, name):
    return replace(node, attrs={key: value for key, value in node.attrs.items() if key != name})


GOOD = ((SEND, COMP), (RECV, COMP))


def test_matched_messages_and_sums_pass():
    both = tuple((*nodes, reduce(2), reduce(3, pg_name="1")) for nodes in GOOD)
    check_scenario(Scenario((WIRE,), both, ((1, 0),)), is_aware=True)


@pytest.mark.parametrize(
    ("traces", "fault"),
    [
        pytest.param(((SEND,), (COMP,)), "tag 7, 10 bytes: sent 1x, received 0x", id="no-receive"),
        pytest.param(((COMP,), (RECV,)), "sent 0x, received 1x", id="no-send"),
        pytest.param(((SEND,), (with_attrs(RECV, comm_size=11),)), "received 0x", id="other-size"),
        pytest.param(((SEND,), (with_attrs(RECV, comm_tag=8),)), "received 0x", id="other-tag"),
        pytest.param(((without(SEND, "comm_tag"),), (RECV,)), "comm_tag is None", id="no-tag"),
        pytest.param(((with_attrs(SEND, comm_tag=5 * 10**8),), (RECV,)), "below 500000000", id="tag-wraps"),
        pytest.param(((with_attrs(SEND, comm_size=0),), (RECV,)), "at least 1 byte", id="no-bytes"),
        pytest.param(((with_attrs(SEND, comm_dst=2),), (RECV,)), "comm_dst is 2", id="nobody"),
        pytest.param(((with_attrs(SEND, comm_dst=0),), (RECV,)), "comm_dst is 0", id="to-itself"),
        pytest.param(((), (COMP,)), "rank 0: an empty trace", id="empty"),
        pytest.param(((COMP, COMP), (COMP,)), "ids are not unique", id="twice"),
        pytest.param(((replace(COMP, data_deps=(5,)),), (COMP,)), "depends on node 5", id="dangling"),
        pytest.param(
            ((replace(COMP, id=1, data_deps=(2,)), replace(COMP, id=2, ctrl_deps=(1,))), (COMP,)),
            "2 nodes wait for each other", id="circle",
        ),
        pytest.param(((Node(0, NodeType.METADATA),), (COMP,)), "a METADATA node", id="metadata"),
        pytest.param(((Node(0, NodeType.INVALID),), (COMP,)), "a INVALID node", id="invalid"),
        pytest.param(((with_attrs(COMP, is_cpu_op=True),), (COMP,)), "is_cpu_op", id="cpu"),
        pytest.param(((reduce(),), (COMP,)), "group 0: its ranks do not issue", id="alone"),
        pytest.param(((reduce(),), (reduce(comm_size=65),)), "group 0: its ranks", id="other-sum"),
        pytest.param(((reduce(comm_type=1),), (reduce(comm_type=1),)), "comm_type is 1", id="not-implemented"),
        pytest.param(((reduce(pg_name="2"),), (COMP,)), "no group '2'", id="no-group"),
        pytest.param(((reduce(pg_name="1"),), (COMP,)), "group 1 does not hold this rank", id="not-a-member"),
    ],
)  # fmt: skip
def test_a_fault_of_traces_is_named(traces, fault):
    assert any(fault in found for found in trace_faults(traces, [(1,)]))


@pytest.mark.parametrize(
    ("change", "is_aware", "fault"),
    [
        ({"size": 1}, False, "at least 2 are needed"),
        ({"size": 3}, False, "2 traces for a network of 3 ranks"),
        ({"bandwidth_bytes_per_s": 0.0}, False, "bandwidth: 0.0"),
        ({"latency_s": float("nan")}, False, "latency: nan"),
        ({"topology": "Torus"}, False, "unknown topology 'Torus'"),
        ({"algorithm": "magic"}, False, "unknown algorithm 'magic'"),
        ({"topology": "Ring"}, True, "a Ring of 2"),
    ],
)
def test_a_fault_of_the_network_is_named(change, is_aware, fault):
    with pytest.raises(UsageError, match=fault):
        check_scenario(Scenario((replace(WIRE, **change),), GOOD), is_aware=is_aware)


def test_the_unaware_backend_takes_a_ring_of_two():
    check_scenario(Scenario((replace(WIRE, topology="Ring"),), GOOD), is_aware=False)


@pytest.mark.parametrize(("ranks", "is_wrong"), [(6, True), (8, False)])
def test_halving_doubling_needs_a_power_of_two(ranks, is_wrong):
    scenario = Scenario((AstraDimension(ranks, 1e9, 0.0, algorithm="halvingDoubling"),), ((reduce(),),) * ranks)
    if is_wrong:
        with pytest.raises(UsageError, match="between 6 ranks never ends"):
            check_scenario(scenario, is_aware=True)
    else:
        check_scenario(scenario, is_aware=True)


def test_a_group_of_three_cannot_halve():
    group = tuple((reduce(pg_name="1"),) if rank < 3 else (COMP,) for rank in range(4))
    scenario = Scenario((AstraDimension(4, 1e9, 0.0, algorithm="halvingDoubling"),), group, ((0, 1, 2),))
    with pytest.raises(UsageError, match="group 1: halvingDoubling between 3"):
        check_scenario(scenario, is_aware=True)


def grid(source, dest, groups=()):
    message = {"comm_src": source, "comm_dst": dest, "comm_size": 10, "comm_tag": 7}
    kind = {source: NodeType.COMM_SEND, dest: NodeType.COMM_RECV}
    traces = tuple((Node(0, kind[r], attrs=message) if r in kind else COMP,) for r in range(24))
    return Scenario((AstraDimension(8, 1e11, 0.0), AstraDimension(3, 1e9, 0.03)), traces, groups)


def test_a_message_to_the_same_place_in_another_domain_passes():
    check_scenario(grid(0, 8, [(0, 8, 16), (0, 1, 2)]), is_aware=False)


def test_a_diagonal_message_would_cross_the_wan_for_nothing():
    with pytest.raises(UsageError, match="0 to 9 crosses 2 dimensions"):
        check_scenario(grid(0, 9), is_aware=False)


def test_a_diagonal_group_would_cross_the_wan_for_nothing():
    with pytest.raises(UsageError, match="group 1 crosses 2 dimensions"):
        check_scenario(grid(0, 8, [(0, 9, 18)]), is_aware=False)


def test_the_aware_backend_has_one_dimension():
    with pytest.raises(UsageError, match="one dimension, not 2"):
        check_scenario(grid(0, 8), is_aware=True)


def test_five_dimensions_need_the_involved_ones_named():
    dims = (WIRE,) * 5
    plain = without(reduce(), "involved_dim")
    with pytest.raises(UsageError, match="half would hang"):
        check_scenario(Scenario(dims, ((plain,),) * 32), is_aware=False)
    check_scenario(Scenario(dims, ((reduce(),),) * 32), is_aware=False)


def test_of_many_faults_the_first_are_shown():
    with pytest.raises(UsageError, match="and 3 more"):
        check_scenario(Scenario((replace(WIRE, size=8),), ((),) * 8), is_aware=False)
