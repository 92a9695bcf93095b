from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile, UsageError
from strata.evaluation.astra_reference.reference import answers, read_rows, score
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.groups import differing_dimensions, ring_ns, send_ns
from strata.simulate.compat.network import Dimension, Topology
from strata.simulate.compat.system import Collective, System
from tests import ROOT

ROOT = ROOT
EXTRACT = ROOT / "benchmarks" / "astra_runs.csv"
REFERENCE = ROOT / ".." / "shared" / "data" / "astra_reference.csv"


def row(scenario, topology, npus, bandwidth, latency, pattern, size, backend, **more):
    names = (
        "scenario",
        "topology",
        "npus",
        "bandwidth_GBps",
        "latency_ns",
        "collective_or_pattern",
        "bytes",
        "backend",
    )
    values = (scenario, topology, npus, bandwidth, latency, pattern, size, backend)
    return dict(zip(names, map(str, values), strict=True)) | more


def twodim(what, pattern, *, size=2**28, topology="Switch+Ring", backend="unaware"):
    return row(f"twodim_8x3_{what}", topology, 24, "50+0.375", "500+50000000", pattern, size, backend)


def one(pattern, *, scenario="", topology="Ring", npus=8, bandwidth=50, latency=500, size=2**20, backend="aware"):
    return row(scenario or pattern, topology, npus, bandwidth, latency, pattern, size, backend)


def ours(*rows):
    return [answer.ours_ns for answer in answers(rows)]


@pytest.mark.parametrize(
    ("case", "expected_ns"),
    [
        (twodim("baseline", "all_reduce:baseline"), 1_098_429_019),
        (twodim("flat_oneRing", "all_reduce:oneRing"), 10_112_098),
        (twodim("group_[0-9-18]", "all_reduce:group"), 7_006_258),
        (twodim("hier_ring-direct", "all_reduce:hier", topology="Switch+FullyConnected"), 164_781_103),
        (twodim("hier_splits4_active4_q2", "all_reduce:hier"), 457_888_342),
        (twodim("p2p_0to1", "p2p", size=2**24), 313_500),
        (twodim("p2p_0to8", "p2p", size=2**24), 91_666_666),
        (twodim("p2p_0to9", "p2p", size=2**24), 313_500),
        (row("pp4x8_gpipe_wan", "Switch", 4, 0.625, 30e6, "p2p fwd10ms bwd20ms", 2**25, "aware"), 3_320_000_000),
        (one("all_reduce:ring", npus=3, bandwidth=0.5820766091, latency=30e6, size=2**30), 2_411_991_446),
        (one("all_reduce:ring", npus=1024, size=2**30), 43_014_091),
    ],
)
def test_a_row_is_answered_from_its_columns(case, expected_ns):
    assert ours(case) == [expected_ns]


@pytest.mark.parametrize(
    ("scenario", "topology", "bandwidth", "latency", "backend", "expected_ns"),
    [
        ("llm32L_pp4dp8_1f1b_splits1", "Switch", 50, 500, "aware", 1_446_458_528),
        ("llm32L_pp4dp8_1f1b_splits64", "Switch", 50, 500, "aware", 1_474_958_720),
        ("llm32L_pp4dp8_1f1b_splits1", "Switch+Ring", "50+50", "500+500", "unaware", 994_575_584),
        ("llm32L_pp4dp8_wan_1f1b_splits4", "Switch+Ring", "50+0.625", "500+30000000", "unaware", 2_365_923_968),
    ],
)
def test_whole_llm_steps_are_met_too(scenario, topology, bandwidth, latency, backend, expected_ns):
    pattern = "1f1b+dp AR 404MiB/layer"
    assert ours(row(scenario, topology, 32, bandwidth, latency, pattern, 2**25, backend)) == [expected_ns]


def test_groups_over_the_slow_dimension_pay_for_it():
    (slow,) = ours(twodim("group_[0-8-16]", "all_reduce:group"))
    assert slow == pytest.approx(1089e6, rel=1e-3)


def test_a_group_of_the_world_is_the_world_but_for_the_endpoint_delay():
    ring = (Dimension(Topology.RING, 4, 50.0, 500.0, AstraBackend.AWARE),)
    times = [
        ring_ns(
            Collective.ALL_REDUCE, range(4), size_bytes=2**20, dimensions=ring,
            system=System(endpoint_delay_ns=110), is_group=is_group,
        )
        for is_group in (False, True)
    ]  # fmt: skip
    assert times[0] - times[1] == 7 * 100


def test_a_group_on_a_ring_pays_the_way_back():
    case = row("group_[0-1-2-3]", "Ring", 8, 50, 500, "all_reduce:ring", 2**24, "aware")
    around, straight = ours(case, {**case, "scenario": "group_[0-1-3-2]", "npus": "4"})
    assert around > straight


def test_a_direct_group_reduces_once_more():
    case = row("group_[0-1-2]", "Switch", 8, 50, 500, "all_reduce:direct", 3 * 2**20, "unaware")
    (found,) = ours(case)
    switch = Dimension(Topology.SWITCH, 8, 50.0, 500.0, AstraBackend.UNAWARE)
    assert found == 2 * switch.send_ns(2**20) + 2 * System().reduction_ns(2**20) + 30


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (one("all_reduce:halvingDoubling", topology="Switch", npus=6), "not a power of two, hangs"),
        (one("all_to_all:halvingDoubling", topology="Switch"), "knows no all_to_all"),
        (one("all_reduce:halvingDoubling", scenario="group_[0-1-2]", topology="Switch"), "of 3 ranks"),
        (one("all_reduce:ring", npus=2), "Ring of 2 aborts"),
        (twodim("hier_ring-ring", "all_reduce:hier", backend="aware"), "one dimension only"),
        (twodim("p2p_0to24", "p2p"), "no rank 24"),
        (twodim("p2p_3to3", "p2p"), "no route"),
        (twodim("group_[0-8-8]", "all_reduce:group"), "a rank twice"),
        (one("all_reduce:direct", scenario="group_[0-1-2]"), "no closed form for a direct group"),
        (one("1f1b+dp", scenario="llm32L_pp4dp8"), "too little of its trace"),
        (one("AR 9MiB/layer", scenario="llm32L_pp3dp8_1f1b_splits1"), "32 layers on 3 stages"),
        (one("AR 9MiB/layer", scenario="llm32L_pp4dp8_1f1b_splits1"), "no rank 31"),
        (one("gossip", scenario="strange"), "'gossip' of 'strange'"),
        (one("all_reduce:ring", topology="Torus"), "no topology 'Torus'"),
        (one("all_reduce:tree"), "tree is not one algorithm"),
        (one("all_reduce:ring", bandwidth=0), "network.yml needs"),
        (one("all_reduce:ring", latency="nan"), "network.yml needs"),
        (one("all_reduce:ring", bandwidth="fast"), "not a number"),
        (one("all_reduce:ring", npus="inf"), "npus 'inf'"),
        (one("all_reduce:ring", size=0), "bytes '0'"),
        (one("all_reduce:ring", size=""), "nothing in column bytes"),
        (one("all_reduce:hier", topology="Switch+Ring", scenario="twodim_24"), "does not say how 8"),
        (one("p2p fwd1ms bwd2ms", scenario="pp4x8_zigzag"), "zigzag"),
        (one("p2p fwd1ms", scenario="pp4x8_gpipe"), "how long bwd"),
        (one("p2p fwd1ms bwd2ms", scenario="pp9x8_gpipe"), "no rank 8"),
    ],
)  # fmt: skip
def test_a_row_without_an_answer_says_why(case, reason):
    (answer,) = answers([case])
    assert answer.ours_ns is None
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("case", "doubt"),
    [
        (twodim("p2p_0to9", "p2p"), "all others are free"),
        (twodim("group_[0-9-18]", "all_reduce:group"), "all others are free"),
        (twodim("hier_splits4_active4_q1", "all_reduce:hier"), "4 chunks at once"),
        (row("pp4x8_gpipe", "Switch", 4, 50, 500, "p2p fwd1ms bwd2ms", 2**20, "aware"), "store-and-forward"),
    ],
)
def test_an_answer_not_to_be_believed_says_so(case, doubt):
    (answer,) = answers([case])
    assert answer.ours_ns
    assert doubt in answer.doubt


def test_an_answer_to_be_believed_has_no_doubt():
    assert [
        a.doubt for a in answers([twodim("p2p_0to8", "p2p"), twodim("hier_ring-ring", "all_reduce:hier")])
    ] == [None] * 2


def test_rows_that_failed_or_say_nothing_are_not_scored():
    case = row("all_reduce/Ring/ring", "Ring", 8, 50, 500, "all_reduce:ring", 2**28, "aware")
    rows = [
        {**case, "reported_ns": "9197541", "status": "ok"},
        {**case, "reported_ns": "10000000", "status": "ok"},
        {**case, "reported_ns": "", "status": "ok"},
        {**case, "reported_ns": "", "status": "crash(abort)"},
        case,
    ]
    found = answers(rows)
    assert [answer.ours_ns for answer in found] == [9_197_541] * 5
    assert "crash(abort)" in found[3].reason
    result = score(found)
    assert (result.rows, result.exact) == (2, 1)
    assert result.worst == pytest.approx(0.0802459)


def test_no_answer_is_the_worst_error():
    assert score(answers([twodim("p2p_0to99", "p2p") | {"reported_ns": "5", "status": "ok"}])).worst == 1.0


def test_families_are_the_first_part_of_a_scenario():
    names = [
        "all_reduce/Ring/ring",
        "wan_ring3_true5Gbps",
        "twodim_8x3_baseline",
        "pp4x8_1f1b",
        "llm32L_x",
        "scale_ring",
    ]
    rows = [row(name, "Ring", 8, 50, 500, "all_reduce:ring", 2**20, "aware") for name in names]
    assert [a.family for a in answers(rows)] == ["all_reduce", "wan", "twodim", "pp", "llm", "scale"]


def test_a_table_without_its_columns_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("scenario,topology\nx,Ring\n")
    with pytest.raises(BadFile, match="no column 'npus'"):
        read_rows(str(path))
    with pytest.raises(UsageError, match="no such file"):
        read_rows(str(tmp_path / "absent.csv"))


@given(st.integers(0, 23), st.integers(0, 23))
def test_ranks_count_dimension_0_fastest(a, b):
    dims = tuple(Dimension(Topology.RING, n, 1.0, 10.0, AstraBackend.UNAWARE) for n in (8, 3))
    assert differing_dimensions(a, b, dims) == [
        i for i, (x, y) in enumerate(zip((a % 8, a // 8), (b % 8, b // 8), strict=True)) if x != y
    ]
    if a != b:
        assert send_ns(a, b, 1000, dims) == send_ns(b, a, 1000, dims)


RUNS = [
    EXTRACT,
    pytest.param(
        REFERENCE,
        marks=pytest.mark.skipif(not REFERENCE.exists(), reason="the whole table of ASTRA-sim runs is not here"),
    ),
]


@pytest.mark.parametrize("table", RUNS, ids=lambda table: table.stem)
def test_every_run_is_met_to_the_nanosecond(table):
    rows = read_rows(str(table))
    found = answers(rows)
    assert [a for a in found if a.error] == []
    assert score(found).rows >= 50
    assert all(a.reason for a, r in zip(found, rows, strict=True) if r["status"] != "ok")


def test_sends_that_wait_for_each_other_cost_a_third_of_a_pipeline_on_a_wan():
    found = [a for a in answers(read_rows(str(EXTRACT))) if a.topology != "Switch" and "_wan" in a.scenario]
    more = {a.scenario: a.ours_ns / a.default_ns - 1 for a in found if a.family == "pp"}
    assert more == pytest.approx(
        {
            "pp4x8_gpipe_wan_small": 0.446,
            "pp4x8_gpipe_wan": 0.323,
            "pp4x8_1f1b_wan_small": 0.030,
            "pp4x8_1f1b_wan": 0.106,
        },
        abs=5e-4,
    )
