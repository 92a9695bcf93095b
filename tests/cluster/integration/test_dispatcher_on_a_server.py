"""MultiKueue's dispatcher as a process, on a manager cluster and another worker, both real API servers.

Kueue's part is played: what it would write into a Workload, by the field manager that it writes with.
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from strata.cluster.api import kinds
from strata.cluster.api.client import connect
from strata.cluster.api.kinds import annotations_of
from strata.cluster.multikueue.workloads import NOMINATED
from tests import ROOT
from tests.cluster import objects
from tests.cluster.builders import A100
from tests.cluster.integration.control_plane import ControlPlane
from tests.cluster.integration.definitions import define
from tests.cluster.integration.multikueue_kinds import define_multikueue
from tests.cluster.integration.strata_on_kubernetes import Part
from tests.support.real_processes import until

COMPONENTS = ROOT / "deploy/components"
FLEET = """
apiVersion: strata/v1alpha1
kind: Fleet
name: two
domains:
  - name: here
    accelerator: A100-SXM4-80GB
    num_gpus: 8
    price: $1/h
    driver: {kind: kubernetes, context: west, image: i}
  - name: there
    accelerator: A100-SXM4-80GB
    num_gpus: 8
    price: $2/h
    driver: {kind: kubernetes, context: east, image: i}
links:
  - {between: [here, there], bandwidth: 1Gbps, latency: 10ms}
"""


def node(api, name, *, busy):
    made = objects.node(name)
    api.create(kinds.NODE, {"metadata": made["metadata"]})
    api.patch(kinds.NODE, name, body={"status": made["status"]}, subresource="status")
    compute_node = objects.devices(name)
    api.apply(kinds.COMPUTE_NODE, {key: compute_node[key] for key in compute_node if key != "status"})
    api.apply(kinds.COMPUTE_NODE, compute_node, subresource="status")
    if busy:
        pod = objects.pod("other", on=name, resource="nvidia.com/gpu", count=busy)
        api.create(kinds.POD, {**pod, "metadata": {"name": f"other-{name}", "namespace": "default"}})


@pytest.fixture(scope="module")
def clusters(plane, api, tmp_path_factory):
    """The manager, which is the worker west as well, and east; west's devices are in use."""
    with (
        ControlPlane(tmp_path_factory.mktemp("east")) as east,
        closing(connect(kubeconfig=str(east.kubeconfig()))) as of_east,
    ):
        for each in (api, of_east):
            define(each)
            define_multikueue(each)
        node(api, "west-1", busy=4)
        node(of_east, "east-1", busy=0)
        yield {"west": plane, "east": east}


@pytest.fixture
def workers(clusters, tmp_path):
    """A kubeconfig with a context for each worker, whose accounts have the rights of multikueue-worker alone."""
    made = {"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [], "users": []}
    for name, plane in clusters.items():
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "strata-system"}})
        files = [COMPONENTS / "multikueue-worker/account.yaml", ROOT / "deploy/base/reads.yaml"]
        plane.kubectl("apply", "--server-side", *(part for file in files for part in ("-f", str(file))))
        account = plane.service_account("strata-system", "strata-dispatcher")
        given = json.loads(account.read_text())
        user = given["users"][0]["user"]
        made["clusters"].append({"name": name, "cluster": given["clusters"][0]["cluster"]})
        made["users"].append({"name": name, "user": user})
        made["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    path = tmp_path / "workers.kubeconfig"
    path.write_text(json.dumps(made))
    return path


@pytest.fixture
def dispatcher(plane, workers, tmp_path):
    """The process, with the rights of its component in the manager cluster."""
    for name in ("dispatcher.yaml", "policy.yaml"):
        plane.kubectl("apply", "--server-side", "-f", str(COMPONENTS / "multikueue" / name))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    account = plane.service_account("strata-system", "strata-dispatcher")
    part = Part(
        tmp_path / "dispatcher.log", "dispatch", str(fleet), "--kubeconfig", str(account),
        "--workers", str(workers), "--port", "0", "--host", "127.0.0.1",
    )  # fmt: skip
    yield part
    part.close()


def submit(api, name, *, devices):
    job = objects.job(name, devices=devices, accelerator=A100)
    del job["metadata"]["resourceVersion"], job["metadata"]["uid"]
    owner = api.create(kinds.JOB, job)["metadata"]["uid"]
    template = {"metadata": {"annotations": dict(annotations_of(job))}, "spec": objects.pod_spec()}
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner, "controller": True}
    workload = {
        "apiVersion": kinds.WORKLOAD.api_version,
        "kind": "Workload",
        "metadata": {"name": f"job-{name}", "namespace": "default", "ownerReferences": [reference]},
        "spec": {"queueName": "team", "podSets": [{"name": "main", "count": 1, "template": template}]},
    }
    api.create(kinds.WORKLOAD, workload)


def by_kueue(plane, name, **status):
    """Write a Workload's status as Kueue does: all it says of it, by server-side apply."""
    obj = {
        "apiVersion": kinds.WORKLOAD.api_version,
        "kind": "Workload",
        "metadata": {"name": f"job-{name}", "namespace": "default"},
        "status": status,
    }
    plane.kubectl(
        "apply", "--server-side", "--subresource=status", "--field-manager=kueue-admission", "--force-conflicts",
        "-f", "-", given=json.dumps(obj),
    )  # fmt: skip


RESERVED = {"type": "QuotaReserved", "status": "True"}
PENDING = {
    "conditions": [RESERVED],
    "admissionChecks": [{"name": "multi", "state": "Pending"}],
}


def test_without_the_policy_kueue_cannot_end_a_nomination(clusters, plane, api):
    submit(api, "first", devices=1)
    by_kueue(plane, "first", **PENDING)
    body = {"status": {"nominatedClusterNames": ["west"]}}
    api.patch(kinds.WORKLOAD, "job-first", "default", body=body, subresource="status")
    with pytest.raises(AssertionError, match="mutually exclusive"):
        by_kueue(plane, "first", **PENDING, clusterName="west")
    api.delete(kinds.WORKLOAD, "job-first", "default")


def test_workloads_go_where_there_is_room_and_kueue_can_end_the_nomination(clusters, plane, api, dispatcher):
    check = {
        "controllerName": "kueue.x-k8s.io/multikueue",
        "parameters": {"name": "all", "kind": "MultiKueueConfig"},
    }
    for kind, name, spec in (
        (kinds.ADMISSION_CHECK, "multi", check),
        (kinds.MULTIKUEUE_CONFIG, "all", {"clusters": ["west", "east"]}),
        (kinds.MULTIKUEUE_CLUSTER, "west", {}),
        (kinds.MULTIKUEUE_CLUSTER, "east", {}),
    ):
        api.create(
            kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
        )
        if kind == kinds.MULTIKUEUE_CLUSTER:
            active = {"type": "Active", "status": "True"}
            api.patch(kind, name, body={"status": {"conditions": [active]}}, subresource="status")
    until(dispatcher.is_ready, lambda: dispatcher.log)

    def seen(name):
        return api.get(kinds.WORKLOAD, f"job-{name}", "default")["status"]

    # West is cheaper, and has four free devices: the small job goes there, the large one to east.
    for name, devices, cluster in (("small", 4, "west"), ("large", 8, "east")):
        submit(api, name, devices=devices)
        by_kueue(plane, name, **PENDING)
        until(
            lambda name=name: seen(name).get("nominatedClusterNames"),
            lambda name=name: f"{seen(name)}: {dispatcher.log}",
        )
        assert seen(name)["nominatedClusterNames"] == [cluster]
        (told,) = [each for each in seen(name)["conditions"] if each["type"] == NOMINATED]
        assert (told["status"], told["reason"]) == ("True", "ClusterOffered")
        assert RESERVED.items() <= seen(name)["conditions"][0].items(), "what Kueue says stays"
        claim = until(
            lambda name=name: api.get(kinds.COMPUTE_CLAIM, f"job-{name}", "default"), lambda: "its claim"
        )
        said = until(lambda name=name: conditions(api, name), lambda: f"the claim's status: {dispatcher.log}")
        assert said["Nominated"]["message"] == told["message"]
        assert claim["spec"]["devices"] == devices
    assert "west: job-large: 1 pod fits nowhere on 1 node" in told["message"]

    # Kueue writes the cluster that admitted it, and says nothing of nominations: they end.
    by_kueue(plane, "large", **PENDING, clusterName="east")
    assert "nominatedClusterNames" not in seen("large")
    by_kueue(
        plane, "small", conditions=[{**RESERVED, "status": "False"}], admissionChecks=PENDING["admissionChecks"]
    )
    assert "nominatedClusterNames" not in seen("small")
    assert dispatcher.end() == 0
    assert "Traceback" not in dispatcher.log


def conditions(api, name):
    status = (api.get(kinds.COMPUTE_CLAIM, f"job-{name}", "default") or {}).get("status") or {}
    return {each["type"]: each for each in status.get("conditions") or ()}
