"""Which devices the pods of this node hold: its kubelet's PodResources, asked over the kubelet's socket (gRPC).

Where the feature gate `ResourceHealthStatus` is on (beta since Kubernetes 1.36) a pod's status says the same;
PodResources is general since 1.28, and says it of the pods of others as well.

References
----------
k8s.io/kubelet, pkg/apis/podresources/v1/api.proto: `PodResourcesLister.List`; its numbers of fields stand below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strata.errors import StrataError, need
from strata.fleet.discovery.collect import Collected

SOCKET: Final = "pod-resources/kubelet.sock"
"""Below the kubelet's folder, /var/lib/kubelet as a rule."""

_METHOD: Final = "/v1.PodResourcesLister/List"
_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16 << 20
"""What the kubelet lets itself answer."""

MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources*")},
    "PodResources": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "ContainerResources*")},
    "ContainerResources": {"name": (1, "string"), "devices": (2, "ContainerDevices*")},
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "string*")},
}
"""What is read of the answer, by message and field: its number and its type, `*` where there are several."""

Held = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By pod (`namespace/name`) and resource, the ids that a device plugin gave its devices."""


class PodResources:
    """The kubelet below `root`. What it said last stays while it does not answer: its pods keep their devices."""

    def __init__(self, root: Path) -> None:
        self._socket = root / SOCKET
        self._held: Held = {}

    def joined(self, collected: Collected) -> Collected:
        """Return a collection with what pods hold of it; no note where there is no kubelet."""
        notes = collected.fingerprint.notes
        if self._socket.exists():
            try:
                self._held = _listed(self._socket)
            except StrataError as error:
                notes = (*notes, str(error))
        return replace(collected, fingerprint=replace(collected.fingerprint, held=self._held, notes=notes))


def message_types(messages: Mapping[str, Mapping[str, tuple[int, str]]], package: str) -> dict[str, Any]:
    """Return protobuf's classes of some messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    Field = descriptor_pb2.FieldDescriptorProto
    plain = {"string": Field.TYPE_STRING, "bool": Field.TYPE_BOOL}
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, of) in fields.items():
            kind = of.removesuffix("*")
            made = message.field.add(name=field, number=number, type=plain.get(kind, Field.TYPE_MESSAGE))
            made.label = Field.LABEL_REPEATED if of.endswith("*") else Field.LABEL_OPTIONAL
            if kind not in plain:
                made.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
    }


def _listed(socket: Path) -> Held:
    """Return what the kubelet says. Raises StrataError where it does not, and MissingPart without the library."""
    grpc = need("grpc", extra="cluster")
    types = message_types(MESSAGES, "v1")
    options = [
        ("grpc.max_receive_message_length", _MOST_BYTES),
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "localhost"),  # a path is none that every server takes
    ]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        ask = channel.unary_unary(
            _METHOD,
            request_serializer=types["ListPodResourcesRequest"].SerializeToString,
            response_deserializer=types["ListPodResourcesResponse"].FromString,
        )
        try:
            answer = ask(types["ListPodResourcesRequest"](), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            reason = f"{error.code().name.lower()}: {error.details()}"
            raise StrataError(f"the kubelet at {socket} does not say which pods hold devices: {reason}") from error
    return held_of(answer)


def held_of(answer: Any) -> Held:
    """Return what a ListPodResourcesResponse says."""
    held: dict[str, dict[str, tuple[str, ...]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for device in container.devices:
                of_pod = held.setdefault(f"{pod.namespace}/{pod.name}", {})
                ids = {*of_pod.get(device.resource_name, ()), *device.device_ids}
                of_pod[device.resource_name] = tuple(sorted(ids))
    return held
