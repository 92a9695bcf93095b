"""A device plugin of the tests: devices without hardware, given out by a real kubelet.

References
----------
k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/api.proto: messages, their fields' numbers, and who calls whom.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from strata.cluster.agent.pod_resources import message_types

MESSAGES = {
    "Empty": {},
    "RegisterRequest": {"version": (1, "string"), "endpoint": (2, "string"), "resource_name": (3, "string")},
    "DevicePluginOptions": {"pre_start_required": (1, "bool"), "get_preferred_allocation_available": (2, "bool")},
    "ListAndWatchResponse": {"devices": (1, "Device*")},
    "Device": {"ID": (1, "string"), "health": (2, "string")},
    "AllocateRequest": {"container_requests": (1, "ContainerAllocateRequest*")},
    "ContainerAllocateRequest": {"devices_ids": (1, "string*")},
    "AllocateResponse": {"container_responses": (1, "ContainerAllocateResponse*")},
    "ContainerAllocateResponse": {"envs": (1, "Env*"), "cdi_devices": (5, "CDIDevice*")},
    "Env": {"key": (1, "string"), "value": (2, "string")},  # a map's entries, as protobuf encodes them
    "CDIDevice": {"name": (1, "string")},
}
TYPES = message_types(MESSAGES, "v1beta1")


class DevicePlugin:
    """Offers devices of a resource in a kubelet's folder of plugins; the container gets their ids as `env`.

    given: the ids of each Allocate, in order. cdi: the kind of CDI devices to name to the runtime, if any; then it
    gives no environment of its own, as NVIDIA's plugin with `--device-list-strategy=cdi-cri`.
    """

    def __init__(self, folder, *, resource, ids, env, cdi="") -> None:
        self.resource, self.ids, self.given, self.sick = resource, tuple(ids), [], set()
        self._folder, self._env, self.cdi, self._server = folder, env, cdi, None
        self._changed = threading.Condition()

    def start(self) -> None:
        """Serve, and register with the kubelet: again, where it was started again and forgot us."""
        import grpc

        self.stop()
        self._server = grpc.server(ThreadPoolExecutor(8))
        calls = {
            "GetDevicePluginOptions": (self._options, "Empty", "DevicePluginOptions"),
            "Allocate": (self._allocate, "AllocateRequest", "AllocateResponse"),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                call, TYPES[asked].FromString, TYPES[given].SerializeToString
            )
            for name, (call, asked, given) in calls.items()
        }
        methods["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._watch, TYPES["Empty"].FromString, TYPES["ListAndWatchResponse"].SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),)
        )
        socket = f"{self.resource.replace('/', '-')}.sock"
        self._server.add_insecure_port(f"unix:{self._folder / socket}")
        self._server.start()
        about = TYPES["RegisterRequest"](version="v1beta1", endpoint=socket, resource_name=self.resource)
        options = [("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}", options=options) as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                TYPES["RegisterRequest"].SerializeToString,
                TYPES["Empty"].FromString,
            )
            register(about, timeout=60, wait_for_ready=True)

    def stop(self) -> None:
        """Be gone, as a plugin that is restarted."""
        if self._server is not None:
            server, self._server = self._server, None
            with self._changed:
                self._changed.notify_all()
            server.stop(None).wait()

    def sicken(self, *ids) -> None:
        """Tell the kubelet that some devices are not healthy any more."""
        with self._changed:
            self.sick |= set(ids)
            self._changed.notify_all()

    def _options(self, _, __):
        return TYPES["DevicePluginOptions"]()

    def _watch(self, _, context):
        server = self._server
        while context.is_active() and self._server is server:
            answer = TYPES["ListAndWatchResponse"]()
            for name in self.ids:
                answer.devices.add(ID=name, health="Unhealthy" if name in self.sick else "Healthy")
            yield answer
            with self._changed:
                self._changed.wait()

    def _allocate(self, request, _):
        answer = TYPES["AllocateResponse"]()
        for container in request.container_requests:
            self.given.append(tuple(sorted(container.devices_ids)))
            made = answer.container_responses.add()
            if not self.cdi:
                made.envs.add(key=self._env, value=",".join(self.given[-1]))
            for name in container.devices_ids if self.cdi else ():
                made.cdi_devices.add(name=f"{self.cdi}={name}")
        return answer
