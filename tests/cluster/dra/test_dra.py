"""Slices, requests and allocations of Kubernetes' own devices, without a cluster."""

from __future__ import annotations

import json

import pytest
import yaml

from strata.cli.main import run
from strata.cluster.api import kinds
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.dra.allocated import EXTENDED
from strata.cluster.dra.requests import CLASS, device_request
from strata.errors import BadFile
from strata.fleet.discovery.resource_slices import slice_devices, slice_fingerprints
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES, claim
from tests.cluster.dra.slices_of_others import allocated, huawei, nvidia, of_driver

A100_PRODUCT = "NVIDIA A100-SXM4-80GB"


def both():
    """Four A100 by NVIDIA's driver, eight 910B3 by another."""
    return slice_devices([nvidia("gpu", A100_PRODUCT, 4), huawei("npu", 8)])


def test_slices_are_read_as_fingerprints():
    (found,) = slice_fingerprints(slice_devices([nvidia("gpu", A100_PRODUCT, 2)]))
    assert [(device.model, device.vendor, device.uuid) for device in found.devices] == [
        (A100, "NVIDIA", "GPU-gpu-0"),
        (A100, "NVIDIA", "GPU-gpu-1"),
    ]
    assert (found.node, found.devices[1].bus_id) == ("gpu", "0000:11:00.0")
    assert found.devices[0].memory_bytes == 80 * 2**30
    (odd,) = slice_devices([of_driver("gpu.amd.com", "n", [{"name": "x", "attributes": {}}])])
    assert (odd.device.model, odd.device.uuid, odd.device.card) == ("unknown", "n/x", None)


def test_of_a_pool_the_newest_generation_counts_and_slices_of_no_node_do_not():
    old, new = nvidia("gpu", A100_PRODUCT, 4), nvidia("gpu", A100_PRODUCT, 1, generation=2)
    assert len(slice_devices([new, old])) == 1
    del new["spec"]["nodeName"]
    assert len(slice_devices([new])) == 0


def test_a_product_name_stays_text_in_the_expression():
    (device,) = slice_devices([nvidia("gpu", 'x" || true || "', 1)])
    assert json.dumps('x" || true || "') in device.selector
    assert device.selector.startswith('device.driver == "gpu.nvidia.com" && "productName" in ')


def test_cards_of_which_no_node_has_enough_are_not_asked_for():
    """`count: 6` of four was printed, which no node can ever satisfy."""
    request, refusals = device_request(claim(6, accelerator=A100, norm="memory"), both(), PROFILES)
    assert request["exactly"]["count"] == 8
    assert str(refusals[0]) == f"gpu: {A100}: a pod needs 6, but the node has 4 in all"
    with pytest.raises(BadFile, match="the node has 4 in all"):
        device_request(claim(6, accelerator=A100, substitution="never"), both(), PROFILES)


def test_a_claim_asks_for_its_own_card_first_and_then_in_order_of_exchange():
    asked = claim(2, accelerator=A100, norm="memory")
    first, second = device_request(asked, both(), PROFILES)[0]["firstAvailable"]
    assert (first["name"], first["count"], first["deviceClassName"]) == ("0-a100-sxm4-80gb", 2, CLASS)
    assert (second["name"], second["count"]) == ("1-ascend910b3", 3)
    assert B3 in second["selectors"][0]["cel"]["expression"]


@pytest.mark.parametrize("substitution", ["never", "ask"])
def test_who_wants_no_substitute_or_wants_to_be_asked_gets_a_request_for_its_own_card(substitution):
    asked = claim(2, accelerator=A100, substitution=substitution)
    request, _ = device_request(asked, both(), PROFILES)
    assert request["exactly"]["count"] == 2
    assert "firstAvailable" not in request


def test_what_no_card_can_stand_for_is_refused_with_the_reason():
    for asked in (claim(1, vendor="Cambricon"), claim(1, is_fractional=True)):
        with pytest.raises(BadFile) as caught:
            device_request(asked, both(), PROFILES)
        assert len(caught.value.faults) == 1
    with pytest.raises(BadFile, match="no ResourceSlice has devices"):
        device_request(claim(1), [], PROFILES)


def cached(*claims):
    """A node of eight A100 whose agent and whose driver publish them."""
    cache = ClusterCache(PROFILES)
    cache.changed(kinds.NODE, objects.node("gpu"))
    cache.changed(kinds.COMPUTE_NODE, objects.devices("gpu"))
    each = nvidia("gpu", A100_PRODUCT, 8)
    for i, device in enumerate(each["spec"]["devices"]):
        device["attributes"]["uuid"] = {"string": f"GPU-{i}".replace("GPU", "gpu")}
    for slice_ in (each,):
        cache.changed(kinds.RESOURCE_SLICE, slice_)
    for obj in claims:
        cache.changed(kinds.RESOURCE_CLAIM, obj)
    return cache


def free(cache):
    return [place for place, share in enumerate(cache.index.nodes[0].free_share) if share]


def test_devices_that_claims_hold_are_not_free_and_are_again_when_the_claim_goes():
    held = allocated("a", ("gpu.nvidia.com", "gpu", "gpu-2"), ("gpu.nvidia.com", "gpu", "gpu-5"))
    cache = cached()
    assert len(free(cache)) == 8
    cache.changed(kinds.RESOURCE_CLAIM, held)
    assert free(cache) == [0, 1, 3, 4, 6, 7]
    grown = cache.grown
    cache.changed(kinds.RESOURCE_CLAIM, held, is_gone=True)
    assert len(free(cache)) == 8
    assert cache.grown > grown
    cache.listed(kinds.RESOURCE_CLAIM, [held])
    cache.listed(kinds.RESOURCE_CLAIM, [])
    assert len(free(cache)) == 8


def test_who_only_looks_and_what_a_pod_counts_itself_takes_nothing():
    looks = allocated("looks", ("gpu.nvidia.com", "gpu", "gpu-2"))
    looks["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    counted = allocated("counted", ("gpu.nvidia.com", "gpu", "gpu-3"), **{EXTENDED: "true"})
    other = allocated("other", ("nic.example.com", "gpu", "nic-0"))
    assert len(free(cached(looks, counted, other))) == 8


def test_the_command_prints_what_kubectl_applies(tmp_path, capsys):
    snapshot, job = tmp_path / "cluster.json", tmp_path / "job.yaml"
    slices = [nvidia("gpu", A100_PRODUCT, 4), huawei("npu", 8), nvidia("odd", "NVIDIA Odd", 1)]
    snapshot.write_text(json.dumps({"kind": "List", "items": slices}))
    job.write_text(yaml.safe_dump(objects.job("train", devices=1, accelerator=A100, framework="pytorch")))
    command = ["kube", "device-claim", "-f", str(job), "--snapshot", str(snapshot)]
    assert run(command) == 0
    out, error = capsys.readouterr()
    made, template = yaml.safe_load_all(out)
    assert (made["kind"], template["kind"]) == ("DeviceClass", "ResourceClaimTemplate")
    assert template["metadata"] == {"name": "train-devices", "namespace": "default"}
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert [each["count"] for each in request["firstAvailable"]] == [1, 1]
    assert "left out: NVIDIA Odd" in error
    snapshot.write_text(json.dumps({"kind": "List", "items": []}))
    assert run(command) == 2
    assert "no ResourceSlice has devices" in " ".join(capsys.readouterr().err.split())
