from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from strata.cli import main
from strata.cli.main import cli
from strata.cluster.api import kinds
from tests.cluster.builders import A100, B3
from tests.cluster.objects import RESOURCE, devices, node, pod


def typed(kind: kinds.ObjectKind, obj):
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


@pytest.fixture
def snapshot(tmp_path) -> str:
    objects = []
    for name, model, zone in (("n0", A100, "a"), ("n1", A100, "a"), ("n2", B3, "b")):
        one = node(name, model)
        one["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone
        objects += [typed(kinds.NODE, one), typed(kinds.COMPUTE_NODE, devices(name, model))]
    objects.append(pod("p0", on="n0", resource=RESOURCE[A100], count=6))
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(cli, ["kube", "acu", *arguments], catch_exceptions=False)


def test_json_has_the_whole_vector_by_domain_vendor_and_node(snapshot):
    said = json.loads(run("--snapshot", snapshot, "-o", "json").stdout)
    assert said["total"].keys() == {"fp16", "fp32", "memory", "memory_bandwidth", "link_bandwidth"}
    assert said["used"]["fp16"] == pytest.approx(600)
    assert [(one["name"], one["devices"]) for one in said["domains"]] == [("a", 16), ("b", 8)]
    assert [one["name"] for one in said["domains"][0]["nodes"]] == ["n0", "n1"]
    assert [one["name"] for one in said["domains"][1]["vendors"]] == ["Huawei"]
    assert said["trust"]["fp16"] == "calibrated"
    for what in ("total", "used", "free", "out"):
        for figure, amount in said[what].items():
            assert sum(one[what][figure] for one in said["domains"]) == pytest.approx(amount)


@pytest.mark.parametrize(("key", "first"), [("domain", "a"), ("vendor", "Huawei"), ("node", "n0")])
def test_the_table_has_a_row_of_what_was_asked_for_and_fits_80_columns(snapshot, key, first):
    answer = run("--snapshot", snapshot, "--by", key)
    header, row, *_ = answer.stdout.splitlines()
    assert header.split()[0] == key
    assert row.split()[0] == first
    table = answer.stdout.partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert table[-1].split()[:6] == ["total", "24", "2596", "600", "1996", "0"]


def test_a_cluster_without_nodes_is_empty_and_not_an_error(tmp_path):
    path = tmp_path / "none.json"
    path.write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    answer = run("--snapshot", str(path))
    assert answer.exit_code == 0
    assert "total" in answer.stdout


def test_a_node_that_cannot_be_read_is_named_and_left_out(tmp_path, snapshot):
    broken = devices("n3")
    broken["status"]["devices"][0]["health"] = "well"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(typed(kinds.COMPUTE_NODE, broken)))
    answer = run("--snapshot", snapshot, "--snapshot", str(path), "-o", "json")
    assert "n3" in answer.stderr
    assert json.loads(answer.stdout)["devices"] == 24


def test_an_allocatable_that_is_text_is_refused_with_its_place(tmp_path, capsys):
    odd = typed(kinds.NODE, node("n0"))
    odd["status"]["allocatable"] = "x"
    path = tmp_path / "cluster.json"
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [odd, typed(kinds.COMPUTE_NODE, devices("n0"))]})
    )
    assert main.run(["kube", "acu", "--snapshot", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {path}: items[0].status.allocatable: should be a mapping",
        "try: kubectl get nodes,pods,computenodes -A -o json > FILE",
    ]
