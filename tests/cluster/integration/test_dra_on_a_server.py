"""Device requests of ours through kube-scheduler: cards in order of exchange, and what was allocated is in use."""

from __future__ import annotations

import json

import pytest
import yaml

from strata.cli.main import run
from strata.cluster.api.kinds import COMPUTE_NODE, RESOURCE_CLAIM, RESOURCE_SLICE, name_of
from tests.cluster import objects
from tests.cluster.builders import A100, B3
from tests.cluster.dra.slices_of_others import huawei, nvidia
from tests.cluster.integration.definitions import define
from tests.support.real_processes import until


@pytest.fixture(scope="module")
def slices(plane, api):
    """Node `gpu` with four A100 of NVIDIA\'s driver, node `npu` with eight 910B3 that strata publishes."""
    define(api)
    plane.controller_manager()
    api.create(RESOURCE_SLICE, nvidia("gpu", "NVIDIA A100-SXM4-80GB", 4))
    for name, model, count in (("gpu", A100, 4), ("npu", B3, 8)):
        made = objects.devices(name, model, count)
        if name == "gpu":
            for i, device in enumerate(made["status"]["devices"]):
                device["uuid"] = f"GPU-gpu-{i}"
        api.apply(COMPUTE_NODE, {key: made[key] for key in made if key != "status"})
        api.apply(COMPUTE_NODE, made, subresource="status")
    api.create(RESOURCE_SLICE, huawei("npu", 8))


def submit(plane, namespace, tmp_path, capsys, name, **words):
    """Have the command print what a job asks, have its pod ask that; return where the pod is found."""
    path = tmp_path / f"{name}.yaml"
    job = objects.job(name, suspend=False, accelerator=A100, framework="pytorch", **words)
    job["metadata"] = {key: job["metadata"][key] for key in ("name", "labels", "annotations")}
    path.write_text(yaml.safe_dump(job))
    assert run(["kube", "device-claim", "-f", str(path), "--kubeconfig", str(plane.kubeconfig())]) == 0
    plane.kubectl("apply", "-n", namespace, "-f", "-", given=capsys.readouterr().out)
    del job["metadata"]["labels"]
    spec = job["spec"]["template"]["spec"]
    spec["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": f"{name}-devices"}]
    spec["containers"][0]["resources"] = {"claims": [{"name": "devices"}]}
    plane.kubectl("apply", "-n", namespace, "-f", "-", given=json.dumps(job))
    return f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name%3D{name}"


def node_of(plane, path):
    pods = plane.ask("GET", path)[1]["items"]
    return pods[0]["spec"].get("nodeName") if pods else None


def held(api, namespace):
    """By claim, the devices kube-scheduler gave it."""
    claims, _ = api.list(RESOURCE_CLAIM, namespace=namespace)
    return {
        name_of(claim).partition("-")[0]: {
            (result["pool"], result["device"]) for result in claim["status"]["allocation"]["devices"]["results"]
        }
        for claim in claims
        if (claim.get("status") or {}).get("allocation")
    }


def test_cards_are_taken_in_order_of_exchange_and_what_is_allocated_is_in_use(
    slices, plane, api, nodes, namespace, tmp_path, capsys
):
    for name in ("gpu", "npu"):
        nodes.add(name)
    with plane.scheduler():
        first = submit(plane, namespace, tmp_path, capsys, "first", devices=4, norm="memory")
        until(lambda: node_of(plane, first), lambda: plane.ask("GET", first))
        assert node_of(plane, first) == "gpu", "the card it was written for"
        second = submit(plane, namespace, tmp_path, capsys, "second", devices=2, norm="memory")
        until(lambda: node_of(plane, second), lambda: plane.ask("GET", second))
        assert node_of(plane, second) == "npu", "its own card has no room"
        third = submit(plane, namespace, tmp_path, capsys, "third", devices=1, substitution="never")

        def is_refused():
            pods = plane.ask("GET", third)[1]["items"]
            conditions = pods[0]["status"].get("conditions") or () if pods else ()
            return any(each.get("reason") == "Unschedulable" for each in conditions)

        until(is_refused, lambda: plane.ask("GET", third))
    given = held(api, namespace)
    assert {name: len(devices) for name, devices in given.items()} == {"first": 4, "second": 3}
    assert run(["kube", "acu", "--by", "node", "-o", "json", "--kubeconfig", str(plane.kubeconfig())]) == 0
    shown = json.loads(capsys.readouterr().out)
    by_node = {each["name"]: each for domain in shown["domains"] for each in domain["nodes"]}
    assert by_node["gpu"]["free"]["fp16"] == 0
    share = by_node["npu"]["free"]["fp16"] / by_node["npu"]["total"]["fp16"]
    assert share == pytest.approx(5 / 8)
