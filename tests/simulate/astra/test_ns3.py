"""The packet-level backend: its files, its network, and a run of a fake binary (no real one can be here)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import StrataError
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import AstraBackend, Binaries
from strata.simulate.astra.lower import Aggregation, Refused
from strata.simulate.astra.lower_ns3 import lower_ns3
from strata.simulate.astra.ns3 import Cable, Ns3Network, config_txt, topology_txt
from strata.simulate.astra.referee import compare, simulate_astra
from strata.simulate.astra.run import self_check
from strata.simulate.astra.validate import check_traces
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.simulate.astra.fake_astra import script
from tests.support.builders import GBPS, domain, fleet, job, layers, link

DOMAINS = [domain(name, 16) for name in "abc"]
LINKS = [*link("a", "b", 5, 30), *link("b", "c", 3, 50), *link("a", "c", 2, 80)]
MODEL = StepModel(fleet(*DOMAINS, links=LINKS), job(layers(mparams=1.0)))
CHAIN = TrainingPlan((Pipeline((Stage("a", 0, 4, 2, 2), Stage("b", 4, 3, 2, 1), Stage("c", 7, 3, 2)), 1, 4),), 2)
UNEQUAL = TrainingPlan((Pipeline((Stage("a", 0, 10, 2),), 2, 4), Pipeline((Stage("b", 0, 10, 2),), 3, 4)), 2)


def between(network, count):
    """Cables between switches."""
    return [cable for cable in network.cables if cable.a >= count]


def test_every_pair_of_domains_keeps_its_own_link():
    low = lower_ns3(MODEL, CHAIN)
    network, labels = low.scenario, low.labels
    wide = {(c.a - 3, c.b - 3): (c.bandwidth_bytes_per_s / GBPS, c.latency_s) for c in between(network, 3)}
    assert wide == {(0, 1): (5.0, 0.03), (0, 2): (2.0, 0.08), (1, 2): (3.0, 0.05)}
    assert [label[-3:] for label in labels] == ["(a)", "(b)", "(c)"]
    check_traces(network.traces, network.groups)


def test_unequal_domains_sum_in_one_ring():
    low = lower_ns3(MODEL, UNEQUAL)
    network, labels, notes = low.scenario, low.labels, low.notes
    assert len(labels) == 5
    assert network.groups == ()  # the ring is the whole world
    assert any("one ring over all of them" in note for note in notes)
    check_traces(network.traces, network.groups)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 4))
def test_whatever_is_lowered_passes_the_checks_and_every_rank_has_a_cable(names, copies, microbatches):
    count = len(names)
    cuts = [10 * i // count for i in range(count + 1)]
    stages = tuple(Stage(n, cuts[i], cuts[i + 1] - cuts[i], 2, count - 1 - i) for i, n in enumerate(names))
    plan = TrainingPlan((Pipeline(stages, copies, microbatches),), 2)
    low = lower_ns3(MODEL, plan, aggregation=Aggregation.MEAN)
    network, labels = low.scenario, low.labels
    check_traces(network.traces, network.groups)
    assert sorted(cable.a for cable in network.cables if cable.a < len(labels)) == list(range(len(labels)))


def test_a_link_unlike_in_its_two_directions_is_refused_until_an_aggregation_is_named():
    links = [LINKS[0], replace(LINKS[1], bandwidth_bytes_per_s=GBPS), *LINKS[2:]]
    model = StepModel(fleet(*DOMAINS, links=links), MODEL.job)
    with pytest.raises(Refused, match="a single link type for link a-b"):
        lower_ns3(model, CHAIN)
    low = lower_ns3(model, CHAIN, aggregation=Aggregation.MIN)
    network, notes = low.scenario, low.notes
    assert between(network, 3)[0].bandwidth_bytes_per_s == GBPS
    assert any(note.startswith("link a-b: ") for note in notes)


def test_a_message_beyond_an_int_is_refused():
    model = StepModel(fleet(*DOMAINS), job(layers(hidden_mib=1024)))
    with pytest.raises(Refused) as caught:
        lower_ns3(model, CHAIN)
    assert [reason.token for reason in caught.value.reasons] == ["astra-message-too-large"]
    assert caught.value.reasons[0].data == {"size": "2GiB"}


def test_the_graph_is_written_line_by_line():
    network = Ns3Network(1, (Cable(0, 2, 5 * GBPS, 0.015), Cable(1, 2, 3.5 * GBPS, 1e-6)), ((), ()))
    assert topology_txt(network) == "3 1 2\n2\n0 2 5000000000bps 15000000ns 0\n1 2 3500000000bps 1000ns 0\n"


def test_every_rate_has_its_congestion_thresholds():
    lines = dict(line.split(" ", 1) for line in config_txt([5 * GBPS, 400 * GBPS, 5 * GBPS]).splitlines())
    assert lines["KMAX_MAP"] == "2 5000000000 400 400000000000 6400"
    assert lines["KMIN_MAP"] == "2 5000000000 100 400000000000 1600"
    assert lines["PMAX_MAP"] == "2 5000000000 0.2 400000000000 0.2"
    assert (lines["ENABLE_TRACE"], lines["QLEN_MON_END"]) == ("0", "1")


FAKE = """#!/bin/sh
# Says what the known case takes, for as many ranks as there are traces, once all files are there.
for file in config.txt topology.txt logical.json flow.txt flow_trace.txt system.json remote_memory.json; do
  test -s $file || exit 7
done
echo "$@" | grep -q -- --logical-topology-configuration=logical.json || exit 8
rank=0
while test -e trace.$rank.et; do
  echo "sys[$rank] finished, {ns} cycles, exposed communication 1 cycles."
  rank=$((rank + 1))
done
"""


def test_a_plan_is_run_on_ns3_and_compared(tmp_path):
    binaries = Binaries(ns3=script(tmp_path / "ns3", FAKE.format(ns=61_740_000)))
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = simulate_astra(MODEL, UNEQUAL, binaries=binaries, environment=environment, backend=AstraBackend.NS3)
    assert (result.backend, result.step_s, len(result.ranks)) == (AstraBackend.NS3, 0.06174, 5)
    assert "round trip" in result.notes[0]
    found = compare(MODEL, UNEQUAL, binaries=binaries, environment=environment)
    assert [row.result is not None for row in found] == [False, False, True]


def test_a_packet_simulator_far_from_the_known_case_does_not_pass(tmp_path):
    binary = script(tmp_path / "ns3", FAKE.format(ns=31_700_000))
    with pytest.raises(StrataError, match="takes 61740000 ns, and it says 31700000 ns"):
        self_check(binary, AstraBackend.NS3, {"XDG_CACHE_HOME": str(tmp_path)})
