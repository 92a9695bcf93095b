"""A real kubelet, containerd and device plugin under strata: what containers get, and who holds which devices."""

from __future__ import annotations

import json
import random

import pytest

from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.crd.runtime_profile import profile_object
from strata.cluster.api.kinds import COMPUTE_NODE, POD, RUNTIME_PROFILE, meta, name_of
from strata.cluster.cache.allocation import pod_seen
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.slicing.build import install
from tests.cluster import objects
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.cluster.integration.daemon_sets import NodePart, run_from_machine
from tests.cluster.integration.device_plugin import DevicePlugin
from tests.cluster.integration.real_node import RealNode
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.slicing.fake_accelerators import GIB, MIB, build
from tests.support.real_processes import Process, until

pytestmark = pytest.mark.real("cc", "grpc", "node", "node-rights")

GPU = "nvidia.com/gpu"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
UUIDS = tuple(f"GPU-{i:08x}-0000-0000-0000-000000000000" for i in range(8))
ROWS = "".join(
    f"{i}, {uuid}, NVIDIA H100 80GB HBM3, 00000000:{0x10 + i:02X}:00.0, 81559, 4, 0, 31, 71.42, 550.90.07\n"
    for i, uuid in enumerate(UUIDS)
)
PROFILE = RuntimeProfile(
    "busybox",
    "NVIDIA",
    ("H100-SXM5-80GB",),
    "pytorch",
    IMAGE,
    GPU,
    env={"FROM_PROFILE": "yes"},
    devices_env=VISIBLE,
)
SLEEPS = ["sh", "-c", "env; echo END; sleep 1000000"]


@pytest.fixture(scope="module")
def strata(plane, api, tmp_path_factory):
    """strata beside kube-scheduler and -controller-manager; it knows one profile, of an image that is here."""
    plane.controller_manager()
    with Strata(plane, api, tmp_path_factory.mktemp("strata")) as made, plane.scheduler():
        api.apply(RUNTIME_PROFILE, profile_object(PROFILE))
        made.webhook()
        made.controller()
        yield made


@pytest.fixture(scope="module")
def node(plane, api, strata):
    """A node with eight devices that are none."""
    with RealNode(plane, api) as made:
        made.plugin = DevicePlugin(made.kubelet_root / "device-plugins", resource=GPU, ids=UUIDS, env=VISIBLE)
        made.plugin.start()
        made.callback(made.plugin.stop)
        until(lambda: made.allocatable(GPU) == "8", lambda: made.kubelet.log)
        yield made


@pytest.fixture(scope="module")
def agent(node, plane, tmp_path_factory):
    """The agent of that node, whose tool and /sys are made up; the kubelet it asks is real."""
    folder = tmp_path_factory.mktemp("agent")
    tool = folder / "nvidia-smi"
    (folder / "rows").write_text(ROWS)
    tool.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu=*) exec cat {folder}/rows;; esac\nexit 1\n')
    tool.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        options = ("--node", node.name, "--every", "300ms", "--host", "127.0.0.1", "--port", "0")
        roots = ("--sys-root", str(folder), "--kubelet-root", str(node.kubelet_root))
        made = Process(folder / "log", "kube", "agent", *options, *roots, "--kubeconfig", str(plane.kubeconfig()))
    yield made
    made.close()


def held(api, node):
    """By pod, the devices its ComputeNode says it holds."""
    obj = api.get(COMPUTE_NODE, node.name) or {}
    if "status" not in obj:
        return {}
    return {pod: set(ids[GPU]) for pod, ids in fingerprint_of(obj).held.items() if GPU in ids}


def is_published(node, agent, api, expected):
    until(lambda: held(api, node) == expected, lambda: f"{expected}, not {held(api, node)}: {agent.log}")


def output(node, pod):
    """Return the lines that the container wrote, up to END."""
    about = meta(pod)
    folder = node.logs / f"{about['namespace']}_{about['name']}_{about['uid']}"

    def whole():
        text = "".join(path.read_text() for path in folder.glob("*/0.log"))
        return text if " F END\n" in text else None

    text = until(whole, lambda: f"{about['name']}: {node.api.get(POD, about['name'], about['namespace'])}")
    return [line.split(" ", 3)[3] for line in text.splitlines()]


def environment(node, pod):
    """What the container sees, once it runs."""
    return dict(line.split("=", 1) for line in output(node, pod) if "=" in line)


def asked_for(name, namespace, count):
    """A pod of somebody else's, that says what it sees."""
    pod = objects.pod(name, resource=GPU, count=count)
    pod["metadata"] = {"name": name, "namespace": namespace}
    pod["spec"]["containers"][0] |= {"image": IMAGE, "command": SLEEPS}
    return pod | {"spec": pod["spec"] | {"terminationGracePeriodSeconds": 0}}


def given(node, api, namespace, names):
    """By pod, the devices its container was given, once all run: what their own environment says."""
    return {
        f"{namespace}/{name}": set(environment(node, api.get(POD, name, namespace))[VISIBLE].split(","))
        for name in names
    }


def test_a_job_runs_in_a_container_with_what_webhook_and_plugin_give_it(node, agent, strata, api, namespace):
    """NVIDIA's runtime goes by that variable: with ours in it a container had devices that others were given."""
    until(lambda: (api.get(COMPUTE_NODE, node.name) or {}).get("status"), lambda: agent.log)
    job = objects.job("train", devices=3)
    container = job["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": IMAGE, "command": SLEEPS, "env": [{"name": VISIBLE, "value": "all"}]}
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    strata.submit(namespace, job)
    (pod,) = strata.pods(namespace, "train")
    env = environment(node, pod)
    assert env["FROM_PROFILE"] == "yes"
    assert env[VISIBLE].split(",") == list(node.plugin.given[-1])
    expected = {f"{namespace}/{name_of(pod)}": set(node.plugin.given[-1])}
    is_published(node, agent, api, expected)
    status = pod_seen(api.get(POD, name_of(pod), namespace))
    assert status.allocated == {GPU: node.plugin.given[-1]}, "the kubelet of 1.36 says it in the pod's status, too"


def test_what_pods_of_others_hold_is_published_as_their_containers_have_it(node, agent, api, namespace):
    rng, names, rounds = random.Random(18), [], 4
    for round_ in range(rounds):
        for name in [name for name in names if rng.random() < 0.6]:
            api.delete(POD, name, namespace)
            names.remove(name)
        left = 8 - sum(map(len, given(node, api, namespace, names).values()))
        while left:
            names.append(f"p{round_}-{left}")
            count = rng.randint(1, min(3, left))
            left -= count
            api.create(POD, asked_for(names[-1], namespace, count))
        expected = given(node, api, namespace, names)
        assert sum(map(len, expected.values())) == 8
        assert set().union(*expected.values()) == set(UUIDS)
        is_published(node, agent, api, expected)


def test_a_kubelet_that_is_killed_while_it_gives_devices_out_leaves_no_device_to_two(node, agent, api, namespace):
    api.create(POD, asked_for("first", namespace, 3))
    expected = given(node, api, namespace, ["first"])
    is_published(node, agent, api, expected)
    calls = len(node.plugin.given)
    api.create(POD, asked_for("second", namespace, 5))
    until(lambda: len(node.plugin.given) > calls, lambda: "the second pod's devices")
    node.kill_kubelet()
    assert held(api, node) | expected == held(api, node), "what it said last stays"
    node.start_kubelet()
    node.plugin.start()
    expected = given(node, api, namespace, ["first", "second"])
    assert set().union(*expected.values()) == set(UUIDS)
    is_published(node, agent, api, expected)


SHOWS = ["sh", "-c", "ls -d /dev/strata*; cat /opt/strata-driver/version; env; echo END; sleep 1000000"]


def test_devices_named_by_cdi_are_in_the_container_with_what_the_webhook_gives_it(
    node, agent, strata, api, namespace, tmp_path
):
    """The plugin only names them: the runtime brings devices, mounts and environment, from files of the node."""
    until(lambda: (api.get(COMPUTE_NODE, node.name) or {}).get("status"), lambda: agent.log)
    (tmp_path / "version").write_text("driver 550\n")
    mount = {"hostPath": str(tmp_path), "containerPath": "/opt/strata-driver", "options": ["ro", "rbind"]}
    devices = [
        {
            "name": uuid,
            "containerEdits": {
                "env": [f"CDI_{i}={uuid}"],
                "deviceNodes": [{"path": f"/dev/strata{i}", "hostPath": "/dev/null"}],
            },
        }
        for i, uuid in enumerate(UUIDS)
    ]
    spec = {"cdiVersion": "0.6.0", "kind": "strata.test/gpu", "devices": devices}
    (node.cdi / "strata.json").write_text(json.dumps({**spec, "containerEdits": {"mounts": [mount]}}))
    node.plugin.cdi = "strata.test/gpu"
    try:
        job = objects.job("by-cdi", devices=2)
        container = job["spec"]["template"]["spec"]["containers"][0]
        container |= {"image": IMAGE, "command": SHOWS}
        job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
        strata.submit(namespace, job)
        (pod,) = strata.pods(namespace, "by-cdi")
        env = environment(node, pod)
    finally:
        node.plugin.cdi = ""
    numbers = [UUIDS.index(uuid) for uuid in node.plugin.given[-1]]
    assert {key: value for key, value in env.items() if key.startswith("CDI_")} == {
        f"CDI_{i}": UUIDS[i] for i in numbers
    }
    lines = output(node, pod)
    assert [line for line in lines if line.startswith("/dev/")] == [f"/dev/strata{i}" for i in sorted(numbers)]
    assert "driver 550" in lines
    assert env["FROM_PROFILE"] == "yes"
    assert VISIBLE not in env, "whole devices are the plugin's to give"
    is_published(node, agent, api, {f"{namespace}/{name_of(pod)}": set(node.plugin.given[-1])})


FRACTION = """
/acc/calls dlsym alloc:6G alloc:6G
env -i LD_LIBRARY_PATH=/acc /acc/calls dlsym alloc:6G alloc:6G
/acc/calls dlsym alloc:5G wait > /held &
until [ -s /held ]; do sleep 0.1; done
/acc/calls dlsym alloc:4G alloc:1G
env; echo END; wait
"""


def test_a_fraction_is_held_to_in_a_container_and_exported_by_pod(node, agent, strata, api, namespace, tmp_path):
    """Also where a program comes without its environment: a login, `env -i`; contexts of 520 MiB count."""
    until(lambda: (api.get(COMPUTE_NODE, node.name) or {}).get("status"), lambda: agent.log)
    install(node.library)
    accelerators = build(tmp_path)
    job = objects.job("notebook", vram="8Gi", fractional="true")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pod["terminationGracePeriodSeconds"] = 0
    container |= {"command": ["sh", "-c", FRACTION], "env": [{"name": "LD_LIBRARY_PATH", "value": "/acc"}]}
    container["volumeMounts"] = [{"name": "acc", "mountPath": "/acc"}]
    pod["volumes"] = [{"name": "acc", "hostPath": {"path": str(accelerators.folder)}}]
    run_from_machine(pod)
    strata.submit(namespace, job)
    (pod,) = strata.pods(namespace, "notebook")
    answers = [line for line in output(node, pod) if line.startswith("alloc ")]
    assert answers == ["alloc 0", "alloc 2", "alloc 0", "alloc 2", "alloc 2", "alloc 0"]
    assert environment(node, pod)[VISIBLE] in {str(number) for number in range(8)}
    exporter = NodePart(node, "components/slices-exporter/exporter.yaml")
    labels = {"namespace": namespace, "pod": name_of(pod), "container": "main", "device": "0"}
    until(lambda: exporter.samples("strata_slice_used_bytes", **labels), lambda: exporter.log)
    context_bytes = 520 * MIB
    assert exporter.samples("strata_slice_used_bytes", **labels) == [5 * GIB + context_bytes]
    assert exporter.samples("strata_slice_limit_bytes", **labels) == [8 * GIB]
    assert exporter.samples("strata_slice_refused_total", **labels) == [3]
