"""What a real API server makes of our definitions: it takes them, and refuses what our readers refuse."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from strata.cluster.agent.publish import Publisher
from strata.cluster.api.actions import Apply, Ref
from strata.cluster.api.applier import Applier
from strata.cluster.api.crd.compute_claim import claim_of, claim_status
from strata.cluster.api.crd.compute_node import compute_node, fingerprint_of
from strata.cluster.api.crd.manifests import crds, profiles
from strata.cluster.api.crd.runtime_profile import profile_of
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, CRD, RUNTIME_PROFILE, meta, name_of
from strata.cluster.api.older_definitions import AGAIN_S
from strata.cluster.api.profile_schema import bundled_profiles
from strata.errors import BadFile
from strata.fleet.fingerprint import Probe
from strata.fleet.rdma import RdmaPort
from tests.cluster.builders import A100, B3, PROFILES, claim, cluster, decide, node
from tests.cluster.integration.definitions import define, is_served
from tests.support.real_processes import until

NOW, LATER = "2026-11-21T20:00:00Z", "2026-11-21T20:00:30.125Z"


@pytest.fixture
def defined(api):
    """A client of a server that knows our kinds."""
    define(api)
    return api


def _true(conditions):
    return {condition["type"] for condition in conditions or () if condition["status"] == "True"}


def changed(obj, *path, value):
    obj = copy.deepcopy(obj)
    inner = obj
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return obj


def refused(call, *arguments, **more):
    with pytest.raises(ApiFailed) as failed:
        call(*arguments, **more)
    assert failed.value.status in (400, 422), failed.value
    return str(failed.value)


def whole(fingerprint, at=NOW):
    return dict(compute_node(fingerprint, at=at, version="1"))


def publish(api, obj):
    api.apply(COMPUTE_NODE, {key: obj[key] for key in obj if key != "status"})
    return api.apply(COMPUTE_NODE, obj, subresource="status")


def test_the_definitions_are_taken_twice_and_are_structural(defined):
    for crd in crds():
        again = defined.apply(CRD, crd)
        assert meta(again)["generation"] == 1
        assert "NonStructuralSchema" not in _true(again["status"]["conditions"])


def test_every_bundled_profile_is_taken_and_read_back_as_it_was(defined):
    made = [defined.apply(RUNTIME_PROFILE, profile) for profile in profiles()]
    assert [profile_of(one) for one in made] == list(bundled_profiles())


def test_a_fingerprint_comes_back_from_the_server_as_it_was(defined, plane):
    first, second = (
        node("n1", B3, links={(0, 1): "hccs", (2, 7): "sys"}).fingerprint,
        node("n2", count=4).fingerprint,
    )
    for fingerprint in (first, second):
        publish(defined, whole(fingerprint))
    assert [fingerprint_of(defined.get(COMPUTE_NODE, name)) for name in ("n1", "n2")] == [first, second]
    lines = plane.kubectl("get", "cnode").splitlines()
    assert lines[0].split() == ["NAME", "DEVICES", "MODEL", "ACU", "HEALTH", "AGE"]
    assert lines[2].split()[:4] == ["n2", "4", A100, "400"]


def test_devices_stay_in_the_order_their_agent_gives_them(defined):
    fingerprint = node("n3", count=4).fingerprint
    obj = whole(fingerprint)
    publish(defined, obj)
    turned = changed(obj, "status", "devices", value=list(reversed(obj["status"]["devices"])))
    publish(defined, turned)
    fewer = changed(turned, "status", "devices", value=turned["status"]["devices"][1:])
    status = publish(defined, changed(fewer, "status", "links", value=[]))["status"]
    assert [device["uuid"] for device in status["devices"]] == ["n3-2", "n3-1", "n3-0"]


def test_an_agent_newer_than_the_definitions_publishes_what_they_take_and_says_the_rest_once(api, caplog):
    """As after an upgrade of the agents alone; and the other way round once the definitions have followed."""
    older = copy.deepcopy([dict(crd) for crd in crds()])
    status = next(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        for crd in older
        if crd["spec"]["names"]["kind"] == "ComputeNode"
    )
    del status["ports"], status["devices"]["items"]["properties"]["probe"]
    for crd in older:
        api.apply(CRD, crd)
    until(lambda: is_served(api, COMPUTE_NODE), lambda: "our kinds")
    until(lambda: "ports" not in fields_of(api), lambda: "the older schema")
    devices = tuple(replace(device, probe=Probe(1.7e9, 1e12)) for device in node("n8").fingerprint.devices)
    ports = (RdmaPort("mlx5_0", 1, "infiniband", is_active=True, rate_bytes_per_s=25e9),)
    fingerprint = replace(node("n8").fingerprint, devices=devices, ports=ports)
    now_s = 0.0
    publisher = Publisher(api, clock=lambda: now_s)

    for _ in range(3):
        publisher(fingerprint)
    part = api.get(COMPUTE_NODE, "n8")
    assert fingerprint_of(part).devices == node("n8").fingerprint.devices
    lacks = "lacks status.devices.probe, status.ports"
    assert [message for message in caplog.messages if lacks in message] == caplog.messages[:1]
    assert lacks in part["status"]["notes"][-1]

    for crd in crds():
        api.apply(CRD, crd)
    until(lambda: "ports" in fields_of(api), lambda: "the newer schema")
    now_s = AGAIN_S
    publisher(fingerprint)
    publisher(fingerprint)
    assert fingerprint_of(api.get(COMPUTE_NODE, "n8")) == fingerprint


def test_a_controller_newer_than_the_definitions_writes_what_they_take_of_a_claim(api, caplog):
    older = copy.deepcopy(next(dict(crd) for crd in crds() if crd["spec"]["names"]["kind"] == "ComputeClaim"))
    properties = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["status"]["properties"]["decision"]
    api.apply(CRD, older)
    until(lambda: is_served(api, COMPUTE_CLAIM), lambda: "our kinds")
    until(lambda: "decision" not in fields_of(api, COMPUTE_CLAIM), lambda: "the older schema")
    decision = decide(cluster(node("n1")), claim(9), PROFILES)
    status = claim_status(decision, None, now=NOW, generation=1)
    ref = Ref(COMPUTE_CLAIM, "job-train", "default")
    applier = Applier(api, clock=lambda: 0.0, new_id=lambda: "x", instance="test")
    actions = (Apply(ref, {"spec": {"devices": 9}}), Apply(ref, {"status": status}, "status"))
    assert applier.do(actions) == ()
    assert applier.do(actions) == ()
    written = api.get(COMPUTE_CLAIM, "job-train", "default")["status"]
    assert written["conditions"][0]["reason"] == "GangFitsNowhere"
    assert "decision" not in written
    assert [message for message in caplog.messages if "lacks status.decision" in message] == caplog.messages[:1]
    for crd in crds():
        api.apply(CRD, crd)
    until(lambda: "decision" in fields_of(api, COMPUTE_CLAIM), lambda: "the newer schema")


def fields_of(api, kind=COMPUTE_NODE):
    try:
        return api.schema(kind)["properties"]["status"]["properties"]
    except ApiFailed:  # it is published a moment after the kind is served
        return {"ports": None, "decision": None}


DEVICE = ("status", "devices", 1)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ((*DEVICE, "health"), 1.5, "status.devices[1].health"),
        ((*DEVICE, "memoryBytes"), -1, "status.devices[1].memoryBytes"),
        ((*DEVICE, "uuid"), "bad-0", "status.devices[1]"),
        ((*DEVICE, "uuid"), "", "status.devices[1].uuid"),
        ((*DEVICE, "acu", "fp16", "trust"), "sure", "status.devices[1].acu.fp16.trust"),
        ((*DEVICE, "acu", "fp16", "value"), 1e-4, "status.devices[1].acu.fp16.value"),
        (("status", "observedAt"), "yesterday", "status.observedAt"),
        (("status", "links", 0), {"a": 1, "b": 0}, "the smaller place first"),
        (("status", "links", 0), {"a": 0, "b": 2}, "the smaller place first"),
    ],
)
def test_a_status_our_reader_refuses_is_refused_by_the_server(defined, path, value, field):
    good = whole(node("bad", count=2).fingerprint)
    defined.apply(COMPUTE_NODE, {key: good[key] for key in good if key != "status"})
    bad = changed(good, *path, value=value)
    with pytest.raises(BadFile):
        fingerprint_of(bad)
    # By merge patch: of a server-side apply, two keys that are alike are refused before anything is validated.
    said = refused(defined.patch, COMPUTE_NODE, "bad", body={"status": bad["status"]}, subresource="status")
    assert field in said


PROFILE = next(profile for profile in profiles() if name_of(profile) == "pytorch-ascend-a2")
MOUNT = ("spec", "mounts", 0, "hostPath")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (MOUNT, "/opt/../etc/shadow", "spec.mounts[0].hostPath"),
        (MOUNT, "/etc", "not for pods"),
        (MOUNT, "//etc", "spec.mounts[0].hostPath"),
        (MOUNT, "/", "spec.mounts[0].hostPath"),
        (MOUNT, "/var/run/docker.sock", "not for pods"),
        (("spec", "mounts", 0, "containerPath"), "up/../../x", "spec.mounts[0].containerPath"),
        (("spec", "codeMount"), "/a:/etc", "spec.codeMount"),
        (("spec", "env"), {"A\nB": "x"}, "spec.env"),
        (("spec", "env"), {"A": "x\nLD_PRELOAD=y"}, "spec.env.A"),
        (("spec", "env"), {"A": "$$(SECRET)"}, "spec.env.A"),
        (("spec", "devicesEnv"), "A B", "spec.devicesEnv"),
        (("spec", "image"), "x:1 --privileged", "spec.image"),
        (("spec", "image"), None, "spec.image"),
        (("spec", "resource"), "gpu", "spec.resource"),
        (("spec", "entrypoints"), {"../sh": ["sh"]}, "spec.entrypoints"),
    ],
)
def test_a_malicious_profile_is_refused_by_the_server_and_by_our_reader(defined, path, value, field):
    bad = changed({**PROFILE, "metadata": {"name": "bad"}}, *path, value=value)
    with pytest.raises(BadFile):
        profile_of(bad)
    assert field in refused(defined.create, RUNTIME_PROFILE, bad)


def test_two_mounts_of_one_name_are_refused(defined):
    bad = changed(
        {**PROFILE, "metadata": {"name": "bad"}}, "spec", "mounts", value=[PROFILE["spec"]["mounts"][0]] * 2
    )
    assert "Duplicate" in refused(defined.create, RUNTIME_PROFILE, bad)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"acu": 40, "tflopsFp16": 1}, "say the same"),
        ({"fractional": True}, "needs vram"),
        ({"cores": 30}, "needs vram"),
        ({"fractional": True, "vram": "1Gi", "devices": 2}, "of one device"),
        ({"fractional": False, "vram": "1Gi", "cores": 30}, "fractional is false"),
        ({"cores": 30, "vram": "1Gi", "acu": 10}, "ask for cores"),
        ({"topology": "require"}, "needs within"),
        ({"topology": "none", "within": "rack"}, "contradicts"),
        ({"gangSize": 0}, "spec.gangSize"),
        ({"acu": 0}, "spec.acu"),
        ({"substitution": "maybe"}, "spec.substitution"),
    ],
)
def test_a_contradictory_claim_is_refused_by_the_server_and_by_our_reader(defined, namespace, spec, text):
    bad = {"metadata": {"name": "bad", "namespace": namespace}, "spec": spec}
    with pytest.raises(BadFile):
        claim_of(bad)
    assert text in refused(defined.create, COMPUTE_CLAIM, bad)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"vram": "16Gi", "acu": 40.5, "gangSize": 4, "topology": "require", "within": "rdma"},
        {"vram": "512Mi", "cores": 30, "devices": 1},
        {"vram": "512Mi", "fractional": True, "acu": 10},
    ],
)
def test_a_claim_is_taken_and_read(defined, namespace, spec):
    made = defined.create(COMPUTE_CLAIM, {"metadata": {"name": "good", "namespace": namespace}, "spec": spec})
    assert claim_of(made) == claim_of({"metadata": {"name": "good", "namespace": namespace}, "spec": spec})


def test_the_status_of_a_claim_says_the_same_after_it_was_stored(defined, namespace, plane):
    head = {"metadata": {"name": "job-a", "namespace": namespace}}
    made = defined.create(COMPUTE_CLAIM, {**head, "spec": {"accelerator": A100}})

    def tell(decision, now):
        before = defined.get(COMPUTE_CLAIM, "job-a", namespace).get("status")
        status = claim_status(decision, before, now=now, generation=meta(made)["generation"])
        return before, defined.apply(COMPUTE_CLAIM, {**head, "status": status}, subresource="status")["status"]

    asked = claim(1, accelerator=A100, substitution="never")
    nowhere = decide(cluster(node("nv", busy=range(8)), node("npu", B3)), asked, PROFILES)
    _, first = tell(nowhere, NOW)
    assert first["conditions"][0]["reason"] == "GangFitsNowhere"
    before, second = tell(nowhere, LATER)
    assert before == first == second
    before, placed = tell(decide(cluster(node("nv")), asked, PROFILES), LATER)
    assert (before, placed["conditions"][0]["lastTransitionTime"]) == (first, LATER)
    line = plane.kubectl("get", "cclaim", "-n", namespace).splitlines()[1]
    assert line.split()[:5] == ["job-a", "True", "pytorch-nvidia", A100, "1"]
