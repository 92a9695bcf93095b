"""The agent as a DRA driver: the node's devices in a ResourceSlice, and claims on them made ready for the kubelet.

kube-scheduler gives out the slice's devices. Before a pod starts, the kubelet names its claims here; each becomes
a CDI device with the variable by which the vendor's container runtime gives devices to a container.

References
----------
k8s.io/kubelet, pkg/apis/pluginregistration/v1 and pkg/apis/dra/v1 (Kubernetes 1.34 and newer): messages, their
fields' numbers, and who calls whom. CDI 0.5: the file.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from strata.cluster.agent.pod_resources import message_types
from strata.cluster.agent.publish import MANAGER
from strata.cluster.api.client import Api
from strata.cluster.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE, meta
from strata.cluster.dra.own_slices import DRIVER, VISIBLE, device_name, resource_slice
from strata.errors import StrataError, need
from strata.fleet.fingerprint import Fingerprint

log = logging.getLogger(__name__)

_DRA: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
_REGISTRATION: Final = "pluginregistration"
_REGISTERED: Final = message_types(
    {
        "InfoRequest": {},
        "PluginInfo": {
            "type": (1, "string"),
            "name": (2, "string"),
            "endpoint": (3, "string"),
            "supported_versions": (4, "string*"),
        },
        "RegistrationStatus": {"plugin_registered": (1, "bool"), "error": (2, "string")},
        "RegistrationStatusResponse": {},
    },
    _REGISTRATION,
)
_CALLED: Final = message_types(
    {
        "Claim": {"namespace": (1, "string"), "uid": (2, "string"), "name": (3, "string")},
        "Request": {"claims": (1, "Claim*")},
        "Response": {"claims": (1, "Entry*")},
        # A map's entries, as protobuf encodes them. Of a claim that is given up the answer has an error at most.
        "Entry": {"key": (1, "string"), "value": (2, "Prepared")},
        "Unprepared": {"claims": (1, "UnpreparedEntry*")},
        "UnpreparedEntry": {"key": (1, "string"), "value": (2, "UnpreparedClaim")},
        "UnpreparedClaim": {"error": (1, "string")},
        "Prepared": {"devices": (1, "Device*"), "error": (2, "string")},
        "Device": {"pool_name": (2, "string"), "device_name": (3, "string"), "cdi_device_ids": (4, "string*")},
    },
    _DRA,
)
AGAIN_S: Final = 600.0
"""A kubelet that did not see us for half a minute deletes the slice: it is made again after this."""

_UID: Final = re.compile(r"[0-9A-Za-z-]{1,63}")
_KIND: Final = f"{DRIVER}/claim"


class DraDriver:
    """publish: told each fingerprint with the uid of its ComputeNode. For a kubelet below `root`, CDI in `cdi`.

    A node's devices are either these or those of a vendor's device plugin.
    """

    def __init__(
        self, api: Api, node: str, *, root: Path, cdi: Path, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._api, self._node, self._cdi, self._wall_clock = api, node, cdi, wall_clock
        self._socket = root / "plugins" / DRIVER / "dra.sock"
        self._registry = root / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._fingerprint: Fingerprint | None = None
        self._published: tuple[str, Any] | None = None
        self._published_s = 0.0
        self._servers: list[Any] = []

    def publish(self, fingerprint: Fingerprint, owner_uid: str) -> None:
        """Have the API server know the slice where it is another than before, or may be gone. Raises ApiFailed."""
        self._fingerprint, now_s = fingerprint, self._wall_clock()
        made = resource_slice(fingerprint, generation=int(now_s * 1e3), owner_uid=owner_uid)
        new = owner_uid, made["spec"]["devices"]
        if new != self._published or not 0 <= now_s - self._published_s < AGAIN_S:
            self._api.apply(RESOURCE_SLICE, made, manager=MANAGER)
            self._published, self._published_s = new, now_s

    def start(self) -> None:
        """Serve, and let the kubelet find us: it watches the folder of registrations.

        Raises MissingPart without gRPC, StrataError where the folders cannot be written.
        """
        try:
            self._cdi.mkdir(parents=True, exist_ok=True)
            self._serve(
                self._socket,
                f"{_DRA}.DRAPlugin",
                {
                    "NodePrepareResources": (self._prepare_all, _CALLED["Request"], _CALLED["Response"]),
                    "NodeUnprepareResources": (self._unprepare_all, _CALLED["Request"], _CALLED["Unprepared"]),
                },
            )
            about, status = _REGISTERED["InfoRequest"], _REGISTERED["RegistrationStatus"]
            self._serve(
                self._registry,
                f"{_REGISTRATION}.Registration",
                {
                    "GetInfo": (self._about, about, _REGISTERED["PluginInfo"]),
                    "NotifyRegistrationStatus": (
                        _registered,
                        status,
                        _REGISTERED["RegistrationStatusResponse"],
                    ),
                },
            )
        except OSError as error:
            raise StrataError(
                f"{error.filename or self._cdi}: {error.strerror}", hint="deploy/components/dra mounts it"
            ) from error

    def stop(self) -> None:
        """Be gone; the slice stays, for who takes over, until the kubelet gives up on us."""
        for server in self._servers:
            server.stop(None).wait()

    def prepare(self, namespace: str, name: str, uid: str) -> list[str]:
        """Make a claim ready and return its devices of ours; twice is as once. Raises StrataError, OSError."""
        if self._fingerprint is None:
            raise StrataError("this node's devices are not known yet")
        if not _UID.fullmatch(uid):
            raise StrataError(f"claim {namespace}/{name}: {uid[:80]!a} is not a uid")
        claim = self._api.get(RESOURCE_CLAIM, name, namespace)
        if claim is None or meta(claim).get("uid") != uid:
            raise StrataError(f"claim {namespace}/{name} is not there, or another has its name")
        names = _allocated(claim, self._node)
        by_name = {device_name(device): device for device in self._fingerprint.devices}
        if lost := [each for each in names if each not in by_name]:
            raise StrataError(f"claim {namespace}/{name} has {', '.join(lost)}, which this node has not")
        numbers: dict[str, list[int]] = {}
        for each in names:
            device = by_name[each]
            numbers.setdefault(VISIBLE[device.vendor], []).append(device.index)
        env = [f"{key}={','.join(map(str, sorted(values)))}" for key, values in numbers.items()]
        made = {"cdiVersion": "0.5.0", "kind": _KIND, "devices": [{"name": uid, "containerEdits": {"env": env}}]}
        path = self._file(uid)
        part = path.with_suffix(".part")  # runtimes read what ends in .json
        part.write_text(json.dumps(made))
        part.replace(path)
        return names

    def unprepare(self, uid: str) -> None:
        """Forget a claim, also one that is not known."""
        if _UID.fullmatch(uid):
            self._file(uid).unlink(missing_ok=True)

    def _file(self, uid: str) -> Path:
        return self._cdi / f"{DRIVER}-{uid}.json"

    def _serve(self, socket: Path, service: str, calls: Mapping[str, tuple[Any, Any, Any]]) -> None:
        grpc = need("grpc", extra="cluster")
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)  # of one before us; a socket cannot be bound twice
        server = grpc.server(ThreadPoolExecutor(2))
        methods = {
            name: grpc.unary_unary_rpc_method_handler(call, takes.FromString, gives.SerializeToString)
            for name, (call, takes, gives) in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        os.chmod(socket, 0o600)
        self._servers.append(server)

    def _about(self, _: Any, __: Any) -> Any:
        return _REGISTERED["PluginInfo"](
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=["v1.DRAPlugin"]
        )

    def _prepare_all(self, request: Any, _: Any) -> Any:
        answer = _CALLED["Response"]()
        for claim in request.claims:
            entry = answer.claims.add(key=claim.uid)
            try:
                for name in self.prepare(claim.namespace, claim.name, claim.uid):
                    ids = [f"{_KIND}={claim.uid}"]
                    entry.value.devices.add(pool_name=self._node, device_name=name, cdi_device_ids=ids)
            except (StrataError, OSError) as error:
                log.warning("claim %s/%s is not ready: %s", claim.namespace, claim.name, error)
                entry.value.error = str(error)
        return answer

    def _unprepare_all(self, request: Any, _: Any) -> Any:
        answer = _CALLED["Unprepared"]()
        for claim in request.claims:
            entry = answer.claims.add(key=claim.uid)
            try:
                self.unprepare(claim.uid)
                entry.value.SetInParent()
            except OSError as error:
                entry.value.error = str(error)
        return answer


def _registered(status: Any, _: Any) -> Any:
    if not status.plugin_registered:
        log.warning("the kubelet refuses this driver: %s", status.error)
    return _REGISTERED["RegistrationStatusResponse"]()


def _allocated(claim: Mapping[str, Any], node: str) -> list[str]:
    """Return the devices of ours that a claim was given here. Raises StrataError for those of several requests.

    One variable tells a container all its devices: those of two requests, used by two containers, would be mixed.
    """
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    results: Iterable[Mapping[str, Any]] = allocation.get("results") or ()
    ours = [each for each in results if (each.get("driver"), each.get("pool")) == (DRIVER, node)]
    if len({str(each.get("request")) for each in ours}) > 1:
        raise StrataError(f"{meta(claim).get('name')} has devices of several requests: make it a claim for each")
    return [str(each.get("device")) for each in ours]
