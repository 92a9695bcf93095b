"""Our traces, run by the fake's rules, take what a real ASTRA-sim was measured to take for the same step.

The numbers are our own measurements of both analytical backends (4 stages, 8 microbatches, forward 10 ms, backward
20 ms; 8 x 3 ranks). The fake stands in for the binary, so this holds the traces and the fake against each other
and both against the real thing.
"""

from __future__ import annotations

import pytest

from strata.simulate.astra.chakra import ChakraCollective, Node, NodeType
from strata.simulate.astra.files import AstraDimension, Scenario, encode_traces, network_yml, write_traces
from strata.simulate.astra.program import Sum, Worker, traces
from tests.simulate.astra.fake_astra import Simulator

STAGES, MICROBATCHES = 4, 8
GIB = 2.0**30


def workers(message_bytes, *, forwards_first):
    def warmup(stage):
        return MICROBATCHES if forwards_first else STAGES - 1 - stage

    return [
        Worker(
            (0, 0, s), "x", 10_000, 20_000, 0, warmup(s), MICROBATCHES,
            message_bytes if s else 0, message_bytes if s < STAGES - 1 else 0, (),
        )
        for s in range(STAGES)
    ]  # fmt: skip


def run(folder, dims, each, groups=()):
    import json

    import yaml

    write_traces(folder, encode_traces(each))
    named = {str(number): list(ranks) for number, ranks in enumerate(groups, 1)}
    system = json.loads(Scenario(dims, tuple(each)).files()["system.json"])
    return Simulator(yaml.safe_load(network_yml(dims)), system, named, f"{folder}/trace").run()[0]


@pytest.mark.parametrize(
    ("forwards_first", "message_bytes", "bandwidth", "latency_s", "measured_ns"),
    [
        pytest.param(True, 2**25, 0.625, 30e-3, 1_720_000_000, id="gpipe-wan"),
        pytest.param(True, 2**20, 0.625, 30e-3, 751_250_000, id="gpipe-wan-small"),
        pytest.param(False, 2**25, 0.625, 30e-3, 1_780_000_000, id="1f1b-wan"),
        pytest.param(False, 2**20, 0.625, 30e-3, 859_687_500, id="1f1b-wan-small"),
    ],
)
def test_a_pipeline_takes_what_astra_sim_was_measured_to_take(
    tmp_path, forwards_first, message_bytes, bandwidth, latency_s, measured_ns
):
    work = workers(message_bytes, forwards_first=forwards_first)
    each, _ = traces(work, {worker.key: worker.key[2] for worker in work}, num_ranks=STAGES, num_dims=1)
    finish = run(tmp_path, (AstraDimension(STAGES, bandwidth * GIB, latency_s),), each)
    assert max(finish.values()) == measured_ns


@pytest.mark.parametrize(
    ("size", "algorithms", "measured_ns"),
    [(2**24, ("direct", "ring"), 207_030_196), (2**28, ("direct", "ring"), 312_467_047),
     (2**30, ("direct", "ring"), 649_864_956), (2**30, ("ring", "ring"), 681_381_024)],
)  # fmt: skip
def test_a_sum_over_the_grid_takes_what_astra_sim_was_measured_to_take(tmp_path, size, algorithms, measured_ns):
    attrs = {"comm_type": int(ChakraCollective.ALL_REDUCE), "comm_size": size, "involved_dim": (True, True)}
    dims = (AstraDimension(8, 50 * GIB, 500e-9, "FullyConnected", algorithms[0]),
            AstraDimension(3, 0.375 * GIB, 50e-3, "FullyConnected", algorithms[1]))  # fmt: skip
    finish = run(tmp_path, dims, ((Node(0, NodeType.COMM_COLL, attrs=attrs),),) * 24)
    assert max(finish.values()) == measured_ns


def test_a_rank_without_work_computes_for_a_microsecond():
    each, groups = traces([], {}, num_ranks=2, num_dims=1)
    assert [[node.duration_us for node in nodes] for nodes in each] == [[1], [1]]
    assert groups == ()


def test_only_a_sum_of_fewer_than_all_ranks_is_a_group():
    def copies(count, of):
        members = tuple((0, copy, 0) for copy in range(count))
        sums = (Sum(ChakraCollective.ALL_REDUCE, members, 8),)
        work = [Worker((0, copy, 0), "x", 1, 1, 0, 0, 1, 0, 0, sums) for copy in range(count)]
        return traces(work, {worker.key: worker.key[1] for worker in work}, num_ranks=of, num_dims=1)

    everyone, none = copies(3, 3)
    assert none == ()
    assert "pg_name" not in everyone[0][-1].attrs
    some, groups = copies(3, 4)
    assert groups == ((0, 1, 2),)
    assert some[0][-1].attrs["pg_name"] == "1"
