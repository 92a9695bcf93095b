from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.evaluation.bench.routing_overload import overload
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo

QUICK = ["bench", "routing", "--decisions", "20", "--horizon", "20"]


@pytest.mark.long("routes over pools of up to 256 nodes")
def test_json_has_a_row_for_every_size_and_router_and_the_load_test():
    result = CliRunner().invoke(cli, [*QUICK, "-o", "json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert [(row["nodes"], row["replicas"], row["strategy"]) for row in answer["rows"]] == [
        (nodes, replicas, strategy)
        for nodes, replicas in ((4, 2), (16, 4), (64, 16), (256, 64))
        for strategy in ("auto", "dp", "rr")
    ]
    for row in answer["rows"]:
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["decisions_per_s"] > 0
    assert {"offered_per_s", "served_per_s", "p99_wait_s"} <= answer["overload"].keys()
    assert answer["peer"]["served_per_s"] == 6.4


@pytest.mark.long("routes over pools of up to 256 nodes")
def test_the_table_fits_a_terminal_and_names_the_peer():
    result = CliRunner().invoke(cli, QUICK)
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.output.splitlines())
    assert "peer: 120-305 ms a decision at 256 nodes" in result.output


@pytest.mark.long("200 s of overload on 256 nodes")
@pytest.mark.parametrize("strategy", ["auto", "dp", "rr"])
def test_a_pool_worth_32_a_second_serves_nearly_all_of_28_with_short_waits(strategy):
    info = ModelInfo.of(model("llama-3.1-8b"))
    load = overload(info, strategy, rate_per_s=28.0, horizon_s=200.0, rng=np.random.default_rng(3))
    assert load.served_per_s >= 0.98 * load.offered_per_s
    assert load.p99_wait_s < 1.0
    assert load.refused == 0


def test_beyond_its_worth_a_pool_serves_what_it_can():
    info = ModelInfo.of(model("llama-3.1-8b"))
    load = overload(info, "rr", rate_per_s=40.0, horizon_s=60.0, rng=np.random.default_rng(3))
    assert load.served_per_s == pytest.approx(32.0, rel=0.05)
