"""`strata bench cluster --kubeconfig`: gangs on a real API server, by strata, kube-scheduler alone and nobody."""

from __future__ import annotations

import pytest

from strata.cli.output import emit
from strata.cluster.api.kinds import COMPUTE_NODE, JOB, NODE
from strata.errors import StrataError
from strata.evaluation.bench.cluster import PEERS, measure_on, show
from strata.evaluation.bench.real_cluster import double_booked, measure_real
from tests.cluster import objects
from tests.cluster.integration.strata_on_kubernetes import Strata


def test_gangs_are_timed_by_strata_by_kube_scheduler_alone_and_by_nobody_and_nothing_is_left(
    plane, api, tmp_path, capsys
):
    plane.controller_manager()
    with Strata(plane, api, tmp_path) as strata, plane.scheduler():
        strata.webhook()
        strata.controller()
        real = measure_on(str(plane.kubeconfig()), nodes=6, pods=40, seed=1)["real"]
    assert (real["nodes"], real["pods"]) == (6, 40)
    alone, unscheduled = real["peers"]["kube-scheduler"], real["peers"]["nobody"]
    assert real["double_booked"] == alone["double_booked"] == 0
    assert unscheduled["api_calls_per_pod"] < alone["api_calls_per_pod"], "nobody binds them"
    for run in (real, alone, unscheduled):
        assert 0 < run["p50_s"] <= run["p99_s"] <= run["longest_s"]
        assert run["placed_per_s"] > run["gangs_per_s"] > 0
        assert run["api_calls_per_pod"] > 1, "each is made"
        assert run["api_cpu_s_per_pod"] > 0
        assert run["api_watched_bytes_per_pod"] > run["api_written_bytes_per_pod"] > 100
    assert not [each for kind in (NODE, COMPUTE_NODE, JOB) for each in api.list(kind)[0]]
    with pytest.raises(StrataError, match="do not fit"):
        measure_real(api, nodes=1, pods=40, seed=1)
    emit({}, "table", show(FIGURES | {"real": real}))
    assert "kube-scheduler" in capsys.readouterr().out


FIGURES = {"extender": [{"nodes": 1, "p50_ms": 1, "p99_ms": 1, "wall_p50_ms": 1, "wall_p99_ms": 1}],
           "gangs_per_s": {"1": 1.0}, "quality": {}, "quality_overloaded": {}, "peers": PEERS}  # fmt: skip


def test_a_node_with_more_pods_than_devices_is_counted():
    pods = [objects.pod(f"p{i}", on="n1") for i in range(10)]
    assert double_booked(pods, is_managed=False) == 2
