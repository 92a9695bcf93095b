"""The agent as a DRA driver: what the kubelet is told over its sockets, and what is written for the runtime."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from strata.cluster.agent.dra_driver import _CALLED, _REGISTERED, AGAIN_S, DraDriver
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import RESOURCE_SLICE
from strata.errors import StrataError
from strata.fleet.fingerprint import Fingerprint
from tests.cluster.dra.slices_of_others import allocated
from tests.cluster.dra.test_own_slices import gpu

NODE = Fingerprint("n1", (gpu(0, index=4), gpu(1, index=2), gpu(2, index=0)))
NAMES = ("gpu-00000000-ab", "gpu-00000001-ab", "gpu-00000002-ab")


class Server:
    def __init__(self):
        self.claims, self.slices, self.trouble = {}, [], None

    def get(self, kind, name, namespace=""):
        return self.claims.get(name)

    def apply(self, kind, obj, *, manager):
        assert kind == RESOURCE_SLICE
        if self.trouble:
            raise self.trouble
        self.slices.append(obj)
        return obj

    def claim(self, name, *devices, uid="u-1", pool="n1", driver="ai.compute"):
        self.claims[name] = allocated(name, *((driver, pool, device) for device in devices))
        self.claims[name]["metadata"]["uid"] = uid


class World:
    def __init__(self, folder):
        self.server, self.now_s, self.cdi = Server(), 1000.0, folder / "cdi"
        self.root = folder / "k"
        self.driver = DraDriver(self.server, "n1", root=self.root, cdi=self.cdi, wall_clock=lambda: self.now_s)

    def files(self):
        return {path.name: json.loads(path.read_text()) for path in self.cdi.iterdir()}


@pytest.fixture
def world():
    with tempfile.TemporaryDirectory(prefix="s") as folder:  # a socket's path is short
        made = World(Path(folder))
        made.cdi.mkdir()
        made.driver.publish(NODE, "owner")
        yield made


def test_a_claims_devices_are_told_to_the_runtime_by_their_vendors_numbers(world):
    world.server.claim("c", NAMES[0], NAMES[2])
    for _ in range(2):
        assert world.driver.prepare("default", "c", "u-1") == [NAMES[0], NAMES[2]]
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=0,4"]}
    assert world.files() == {
        "ai.compute-u-1.json": {
            "cdiVersion": "0.5.0",
            "kind": "ai.compute/claim",
            "devices": [{"name": "u-1", "containerEdits": edits}],
        }
    }
    world.driver.unprepare("u-1")
    world.driver.unprepare("u-1")
    assert world.files() == {}


def test_what_cannot_be_made_ready_says_why_and_writes_nothing(world):
    server = world.server
    for uid, match in (("u-1", "not there"), ("../x", "not a uid")):
        with pytest.raises(StrataError, match=match):
            world.driver.prepare("default", "c", uid)
    server.claim("c", NAMES[0], uid="another")
    with pytest.raises(StrataError, match="another has its name"):
        world.driver.prepare("default", "c", "u-1")
    server.claim("c", "gpu-9")
    with pytest.raises(StrataError, match="gpu-9, which this node has not"):
        world.driver.prepare("default", "c", "u-1")
    server.claim("c", *NAMES)
    server.claims["c"]["status"]["allocation"]["devices"]["results"][0]["request"] = "other"
    with pytest.raises(StrataError, match="c has devices of several requests"):
        world.driver.prepare("default", "c", "u-1")
    assert world.files() == {}


def test_devices_of_other_drivers_and_nodes_are_left_to_them(world):
    world.server.claim("c", NAMES[0], pool="n2")
    assert world.driver.prepare("default", "c", "u-1") == []
    world.server.claim("c", NAMES[0], driver="gpu.nvidia.com")
    assert world.driver.prepare("default", "c", "u-1") == []


def test_a_slice_is_told_when_it_is_another_and_again_in_case_somebody_took_it_away(world):
    assert len(world.server.slices) == 1
    world.driver.publish(replace(NODE, notes=("hm",)), "owner")
    assert len(world.server.slices) == 1
    world.now_s += 1
    world.driver.publish(replace(NODE, devices=(gpu(0), gpu(1), gpu(2, health=0.0))), "owner")
    first, second = world.server.slices
    assert [len(each["spec"]["devices"]) for each in (first, second)] == [3, 2]
    assert second["spec"]["pool"]["generation"] > first["spec"]["pool"]["generation"]
    world.driver.publish(NODE, "owner")
    world.now_s += AGAIN_S
    world.driver.publish(NODE, "owner")
    assert len(world.server.slices) == 4
    world.server.trouble = ApiFailed("no", status=403)
    world.now_s += AGAIN_S
    for _ in range(2):
        with pytest.raises(ApiFailed):
            world.driver.publish(NODE, "owner")


@pytest.mark.real("grpc")
def test_the_kubelet_finds_the_driver_and_is_answered_claim_by_claim(world):
    import grpc

    world.server.claim("c", NAMES[1])
    world.driver.start()
    try:
        with grpc.insecure_channel(
            f"unix:{world.root}/plugins_registry/ai.compute-reg.sock", options=[("grpc.default_authority", "x")]
        ) as channel:
            ask = channel.unary_unary(
                "/pluginregistration.Registration/GetInfo",
                _REGISTERED["InfoRequest"].SerializeToString,
                _REGISTERED["PluginInfo"].FromString,
            )
            about = ask(_REGISTERED["InfoRequest"](), timeout=60)
        assert (about.type, about.name, list(about.supported_versions)) == (
            "DRAPlugin",
            "ai.compute",
            ["v1.DRAPlugin"],
        )
        with grpc.insecure_channel(f"unix:{about.endpoint}", options=[("grpc.default_authority", "x")]) as channel:

            def call(name, kind):
                request = _CALLED["Request"]()
                request.claims.add(namespace="default", name="c", uid="u-1")
                request.claims.add(namespace="default", name="none", uid="u-2")
                path = f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{name}"
                ask = channel.unary_unary(path, _CALLED["Request"].SerializeToString, _CALLED[kind].FromString)
                return {entry.key: entry.value for entry in ask(request, timeout=60).claims}

            prepared = call("NodePrepareResources", "Response")
            (device,) = prepared["u-1"].devices
            assert (device.pool_name, device.device_name) == ("n1", NAMES[1])
            assert list(device.cdi_device_ids) == ["ai.compute/claim=u-1"]
            assert "claim default/none is not there" in prepared["u-2"].error
            assert list(world.files()) == ["ai.compute-u-1.json"]
            assert {key: value.error for key, value in call("NodeUnprepareResources", "Unprepared").items()} == {
                "u-1": "",
                "u-2": "",
            }
            assert world.files() == {}
    finally:
        world.driver.stop()


@pytest.mark.real("grpc")
def test_folders_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "k").write_text("")
    world = World(tmp_path)
    with pytest.raises(StrataError, match=r"plugins.*"):
        world.driver.start()
