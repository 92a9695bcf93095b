"""What pods hold by the kubelet's PodResources: a server of our own here, the kubelet's in `integration/`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata.cluster.agent.pod_resources import MESSAGES, SOCKET, PodResources, held_of, message_types
from strata.cluster.api import kinds
from strata.cluster.api.crd.compute_node import compute_node, fingerprint_of
from strata.cluster.cache.cache import ClusterCache
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Fingerprint
from tests.cluster import objects
from tests.cluster.builders import PROFILES
from tests.cluster.builders import node as node_state

TYPES = message_types(MESSAGES, "v1")
GPU = "nvidia.com/gpu"
NOTHING = Collected(Fingerprint("n"))


def answer(pods: Mapping[str, Sequence[tuple[str, Sequence[str]]]]) -> Any:
    """A ListPodResourcesResponse: by `namespace/name`, containers of (resource, ids)."""
    made = TYPES["ListPodResourcesResponse"]()
    for pod, containers in pods.items():
        namespace, _, name = pod.partition("/")
        entry = made.pod_resources.add(name=name, namespace=namespace)
        for resource, ids in containers:
            entry.containers.add(name="main").devices.add(resource_name=resource, device_ids=ids)
    return made


class Kubelet:
    """Answers List with `pods`; with nothing but an error where there are none."""

    def __init__(self, root: Path) -> None:
        self.root, self.pods = root, answer({})
        (root / SOCKET).parent.mkdir()
        self.start()

    def start(self) -> None:
        import grpc

        method = grpc.unary_unary_rpc_method_handler(
            lambda _, __: self.pods,
            request_deserializer=TYPES["ListPodResourcesRequest"].FromString,
            response_serializer=TYPES["ListPodResourcesResponse"].SerializeToString,
        )
        self.server = grpc.server(ThreadPoolExecutor(1))
        handlers = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
        self.server.add_generic_rpc_handlers((handlers,))
        self.server.add_insecure_port(f"unix:{self.root / SOCKET}")
        self.server.start()


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with tempfile.TemporaryDirectory(prefix="s") as folder:  # a socket's path is short
        made = Kubelet(Path(folder))
        yield made
        made.server.stop(None).wait()


def test_fields_have_the_numbers_of_the_api() -> None:
    """Bytes by hand, as protobuf's encoding page has them: field and wire type, length, content."""
    device = b"\x0a\x01r" + b"\x12\x02d1" + b"\x12\x02d2"
    container = b"\x0a\x01c" + bytes([0x12, len(device)]) + device + b"\x18\x07"  # a field we do not read
    pod = b"\x0a\x01p" + b"\x12\x01n" + bytes([0x1A, len(container)]) + container
    read = TYPES["ListPodResourcesResponse"].FromString(bytes([0x0A, len(pod)]) + pod)
    assert held_of(read) == {"n/p": {"r": ("d1", "d2")}}


@pytest.mark.real("grpc")
def test_it_is_asked_over_its_socket_and_believed_while_it_is_away(kubelet: Kubelet) -> None:
    asking = PodResources(kubelet.root)
    kubelet.pods = answer({"a/b": [(GPU, ["1", "0"]), (GPU, ["2"]), ("rdma/hca", ["x"])], "a/none": []})
    held = {"a/b": {GPU: ("0", "1", "2"), "rdma/hca": ("x",)}}
    assert asking.joined(NOTHING).fingerprint.held == held
    kubelet.server.stop(None).wait()
    (kubelet.root / SOCKET).touch()  # a kubelet that was killed leaves its socket
    found = asking.joined(NOTHING).fingerprint
    assert found.held == held
    assert "does not say which pods hold devices: unavailable" in found.notes[0]
    (kubelet.root / SOCKET).unlink()
    kubelet.pods = answer({})
    kubelet.start()
    assert asking.joined(NOTHING).fingerprint == NOTHING.fingerprint


def test_where_there_is_no_kubelet_nothing_is_said(tmp_path: Path) -> None:
    assert PodResources(tmp_path).joined(NOTHING) == NOTHING


def test_what_an_object_cannot_hold_is_left_out() -> None:
    held = {"a/b": {GPU: ("0",), "long/id": ("x" * 254,), "many/ids": tuple(map(str, range(513)))}}
    many = {f"n/p{i:04}": {GPU: (str(i),)} for i in range(600)}
    for kept, given in (({"a/b": {GPU: ("0",)}}, held), (dict(sorted(many.items())[:512]), many)):
        assert fingerprint_of(compute_node(Fingerprint("n", held=given), at=objects.AT)).held == kept


@pytest.mark.long("10,000 pods")
def test_after_each_of_many_allocations_the_free_devices_are_those_no_pod_holds() -> None:
    """10,000 pods come and go on one node, ten changes between two looks: messages in, free devices out."""
    rng = random.Random(18)
    found = node_state("n").fingerprint
    uuids = {device.uuid for device in found.devices}
    cache = ClusterCache(PROFILES)
    cache.changed(kinds.NODE, objects.node("n"))
    held: dict[str, list[str]] = {}
    allocations = 0
    while allocations < 10_000:
        for _ in range(10):
            free = sorted(uuids.difference(*held.values()))
            if held and (not free or rng.random() < 0.4):
                gone = rng.choice(sorted(held))
                cache.changed(kinds.POD, objects.pod(gone), is_gone=True)
                del held[gone]
            else:
                allocations += 1
                name, count = f"p{allocations}", rng.randint(1, len(free))
                held[name] = rng.sample(free, count)
                cache.changed(kinds.POD, objects.pod(name, on="n", resource=GPU, count=count))
        said = answer({f"default/{pod}": [(GPU, ids)] for pod, ids in held.items()})
        read = TYPES["ListPodResourcesResponse"].FromString(said.SerializeToString())
        cache.changed(kinds.COMPUTE_NODE, compute_node(replace(found, held=held_of(read)), at=objects.AT))
        (state,) = cache.index.nodes
        left = zip(found.devices, state.free_share, strict=True)
        assert {device.uuid for device, share in left if share > 0} == uuids.difference(*held.values())
