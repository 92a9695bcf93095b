"""The agent as a DRA driver of a real kubelet: a claim's devices, and no others, are in its container."""

from __future__ import annotations

import json

import pytest

from strata.cluster.api.kinds import POD, RESOURCE_CLAIM, RESOURCE_SLICE, meta
from strata.fleet.discovery.resource_slices import slice_devices
from tests.cluster import objects
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.cluster.integration.definitions import define
from tests.cluster.integration.real_node import RealNode
from tests.cluster.integration.test_real_node import ROWS, SLEEPS, UUIDS, VISIBLE, environment
from tests.support.real_processes import Process, until

pytestmark = pytest.mark.real("grpc", "node", "node-rights")


@pytest.fixture(scope="module")
def node(plane, api):
    """A node without a device plugin, and kube-scheduler."""
    define(api)
    plane.controller_manager()
    with plane.scheduler(), RealNode(plane, api) as made:
        yield made


@pytest.fixture(scope="module")
def agent(node, plane, tmp_path_factory):
    """Its agent, whose tool is made up; it has the node's kubelet and containerd's folder of CDI."""
    folder = tmp_path_factory.mktemp("agent")
    tool = folder / "nvidia-smi"
    (folder / "rows").write_text(ROWS)
    tool.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu=*) exec cat {folder}/rows;; esac\nexit 1\n')
    tool.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        options = ("--node", node.name, "--every", "300ms", "--host", "127.0.0.1", "--port", "0", "--dra")
        roots = ("--sys-root", str(folder), "--kubelet-root", str(node.kubelet_root), "--cdi-root", str(node.cdi))
        made = Process(folder / "log", "kube", "agent", *options, *roots, "--kubeconfig", str(plane.kubeconfig()))
    yield made
    made.close()


def test_a_pod_starts_with_the_devices_that_kube_scheduler_gave_its_claim(node, agent, plane, api, namespace):
    def published():
        return slice_devices(api.list(RESOURCE_SLICE)[0])

    until(lambda: len(published()) == 8, lambda: agent.log)
    version = "resource.k8s.io/v1"
    devices = {"apiVersion": version, "kind": "DeviceClass", "metadata": {"name": "ai.compute"}, "spec": {}}
    expression = (
        'device.driver == "ai.compute" && device.attributes["ai.compute"].acuFP16 > 100 && '
        'device.capacity["ai.compute"].memory.compareTo(quantity("70Gi")) > 0'
    )
    exactly = {"deviceClassName": "ai.compute", "count": 3, "selectors": [{"cel": {"expression": expression}}]}
    spec = {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}
    claim = {
        "apiVersion": version,
        "kind": "ResourceClaim",
        "metadata": {"name": "three", "namespace": namespace},
        "spec": spec,
    }
    pod = objects.pod("user")
    pod["metadata"] = {"name": "user", "namespace": namespace}
    pod["spec"] |= {
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "devices", "resourceClaimName": "three"}],
    }
    pod["spec"]["containers"][0] |= {
        "image": IMAGE,
        "command": SLEEPS,
        "resources": {"claims": [{"name": "devices"}]},
    }
    for obj in (devices, claim, pod):
        plane.kubectl("apply", "-f", "-", given=json.dumps(obj))

    def running():
        there = api.get(POD, "user", namespace)
        return there if there["status"].get("phase") == "Running" else None

    def said():
        events = plane.ask("GET", f"/api/v1/namespaces/{namespace}/events")[1]["items"]
        return f"{[each['message'] for each in events]}: {agent.log}"

    env = environment(node, until(running, said))
    allocation = api.get(RESOURCE_CLAIM, "three", namespace)["status"]["allocation"]["devices"]["results"]
    numbers = {each.name: UUIDS.index(each.device.uuid) for each in published()}
    given = sorted(numbers[each["device"]] for each in allocation)
    assert len(given) == 3
    assert env[VISIBLE] == ",".join(map(str, given))
    (file,) = node.cdi.glob("ai.compute-*.json")
    assert str(meta(api.get(RESOURCE_CLAIM, "three", namespace))["uid"]) in file.name
    plane.kubectl("delete", "pod", "user", "-n", namespace)
    until(lambda: not list(node.cdi.glob("ai.compute-*")), lambda: agent.log)
