"""Whole plans and hand-written traces, played as ASTRA-sim would play them."""

from __future__ import annotations

import pytest

from strata.errors import UsageError
from strata.simulate.analytic import StepModel
from strata.simulate.astra import chakra
from strata.simulate.astra.chakra import Node, NodeType
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.astra.files import GIB, AstraDimension, Scenario
from strata.simulate.astra.lower import Refused, lower
from strata.simulate.compat.plan_step import astra_compatible_plan, finish_ns
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.evaluation.astra_reference.steps import astra_compatible_step
from tests.support.builders import domain, fleet, job

MODEL = StepModel(fleet(domain("a", 16), domain("b", 16), domain("c", 16)), job())
MS = 10**6


def chain(names, *, copies=1, microbatches=4):
    count = len(names)
    cuts = [10 * i // count for i in range(count + 1)]
    stages = tuple(Stage(name, cuts[i], cuts[i + 1] - cuts[i], 2, count - 1 - i) for i, name in enumerate(names))
    return Pipeline(stages, copies, microbatches)


def comp(number, duration_us, *waits):
    return Node(number, NodeType.COMP, data_deps=waits, duration_us=duration_us)


def message(number, kind, source, dest, size, *waits):
    attrs = {"comm_src": source, "comm_dst": dest, "comm_size": size, "comm_tag": 7}
    return Node(number, kind, data_deps=waits, attrs=attrs)


def send(number, source, dest, size, *waits):
    return message(number, NodeType.COMM_SEND, source, dest, size, *waits)


def receive(number, source, dest, size, *waits):
    return message(number, NodeType.COMM_RECV, source, dest, size, *waits)


def all_reduce(number, size, *waits, group=""):
    attrs = {"comm_type": int(chakra.ChakraCollective.ALL_REDUCE), "comm_size": size}
    return Node(number, NodeType.COMM_COLL, data_deps=waits, attrs=attrs | ({"pg_name": group} if group else {}))


def play(*traces, topology="FullyConnected", backend="aware", groups=(), latency_s=1e-3):
    dim = AstraDimension(len(traces), GIB, latency_s, topology)
    return finish_ns(Scenario((dim,), traces, groups), AstraBackend(backend))


def test_sends_of_a_rank_follow_each_other_where_both_directions_overlap():
    # ASTRA-sim takes 66.5 ms: 4 (1 + 15.625).
    size = 2**24
    there = tuple(send(i, 0, 1, size) for i in range(4)) + tuple(receive(4 + i, 1, 0, size) for i in range(4))
    back = tuple(send(i, 1, 0, size) for i in range(4)) + tuple(receive(4 + i, 0, 1, size) for i in range(4))
    assert play(there, back) == pytest.approx((66_500_000,) * 2, abs=4)


def test_three_senders_wait_for_the_port_of_one_receiver():
    # ASTRA-sim takes 64.5 ms: a + m/B + 3 m/B + a; unaware 17.6: 2 a + m/B.
    size = 2**24
    sinks = tuple(receive(i, i + 1, 0, size) for i in range(3))
    traces = sinks, *((send(0, rank, 0, size),) for rank in (1, 2, 3))
    assert play(*traces, topology="Switch")[0] == pytest.approx(64_500_000, abs=4)
    assert play(*traces, topology="Switch", backend="unaware")[0] == pytest.approx(17_625_000, abs=4)


def test_a_message_takes_the_shorter_way_round_a_ring():
    for dest, hops in ((1, 1), (3, 3), (4, 2), (5, 1)):
        traces = [(comp(0, 1),)] * 6
        traces[0], traces[dest] = (send(0, 0, dest, 2**20),), (receive(0, 0, dest, 2**20),)
        assert play(*traces, topology="Ring")[dest] == pytest.approx(hops * 1_976_562, abs=hops)


def test_a_message_that_came_early_waits_for_its_receive():
    late = comp(0, 50_000), receive(1, 0, 1, 2**20, 0)
    early_ns, late_ns = play((send(0, 0, 1, 2**20),), late)
    assert (early_ns, late_ns) == (1_976_562, 50 * MS)


def test_a_collective_waits_for_the_last_and_holds_the_slot():
    alone = play((all_reduce(0, 2**20),), (all_reduce(0, 2**20),))[0]
    late = play((all_reduce(0, 2**20),), (comp(0, 30_000), all_reduce(1, 2**20, 0)))
    assert late == (30 * MS + alone,) * 2
    busy = play((all_reduce(0, 2**20), send(1, 0, 1, 2**20)), (all_reduce(0, 2**20), receive(1, 0, 1, 2**20)))
    assert busy[0] == alone + 1_976_562


def test_groups_sum_among_themselves():
    pair, idle = (all_reduce(0, 2**20, group="1"),), (comp(0, 5),)
    found = play(idle, pair, pair, groups=((1, 2),))
    assert found[0] == 5_000
    assert found[1] == found[2] == play((all_reduce(0, 2**20),), (all_reduce(0, 2**20),))[0]


def test_the_lowest_ready_node_goes_first():
    first, second = comp(0, 10), comp(1, 1)
    assert play((first, second, send(2, 0, 1, 1, 1)), (receive(0, 0, 1, 1),))[1] == 11_000 + MS


def test_ranks_that_wait_for_ever_are_named():
    with pytest.raises(UsageError, match=r"ranks \[0\] wait"):
        play((receive(0, 1, 0, 8),), (send(0, 1, 0, 9),))


def test_a_pipeline_plan_takes_what_its_stages_and_cuts_say():
    plan = TrainingPlan((chain("abc", microbatches=6),), 2)
    times = MODEL.times(plan, plan.pipelines[0])
    expected_s = astra_compatible_step(
        forward_s=times.forward_s, backward_s=times.backward_s,
        message_bytes=[hop.serial_s for hop in times.there], bandwidth_bytes_per_s=[1.0] * 2,
        latency_s=[hop.latency_s for hop in times.there], microbatches=6,
    )  # fmt: skip
    found_s, lowered = astra_compatible_plan(MODEL, plan)
    assert found_s - times.update_s == pytest.approx(expected_s, rel=1e-4)
    assert len(lowered.labels) == 3


@pytest.mark.parametrize(
    "plan",
    [
        TrainingPlan((chain("a", copies=4), chain("b", copies=4), chain("c", copies=4)), 2),
        TrainingPlan((chain("aa", copies=2), chain("bb", copies=2)), 2),
        TrainingPlan((chain("a"),), 2),
    ],
    ids=["copies", "nested", "one"],
)
def test_a_plan_takes_no_less_than_its_compute_and_all_its_ranks_end(plan):
    found_s, lowered = astra_compatible_plan(MODEL, plan)
    times = MODEL.times(plan, plan.pipelines[0])
    busy_s = plan.pipelines[0].microbatches * (times.forward_s[0] + times.backward_s[0])
    assert found_s >= busy_s - 1e-5
    ends = finish_ns(lowered.scenario, lowered.backend)
    assert all(ends)


def test_what_astra_sim_cannot_say_is_refused_here_too():
    plan = TrainingPlan((chain("ab"),), 2, schedule=Schedule.INTERLEAVED, virtual_stages=2)
    with pytest.raises(Refused):
        astra_compatible_plan(MODEL, plan)
    with pytest.raises(Refused):
        lower(MODEL, plan)
