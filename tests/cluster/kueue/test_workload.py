from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from strata.cluster.api.jobs import read_job
from strata.cluster.api.placement_annotation import FIRST, GANG, MANAGED, PER_JOB, PLACEMENT, decode
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.controller.pending import pending_workloads
from strata.cluster.kueue.flavors import flavor_name, flavors
from strata.cluster.kueue.workload import activation, answer
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES, cluster, node

INDEX = Index.of(cluster(node("nv"), node("npu", B3)))
ONLY_NVIDIA = Index.of(cluster(node("nv")))
FULL = Index.of(cluster(node("nv", busy=range(8)), node("npu", B3)))
STAMP = "2026-11-21T12:00:00Z"
RESERVED = {"type": "QuotaReserved", "status": "True"}


def pod_set(name="main", count=1, **asked):
    said = {f"ai.compute/{key}": value for key, value in asked.items()}
    return {"name": name, "count": count, "template": {"metadata": {"annotations": said}, "spec": {}}}


def workload(*sets, flavors=None, conditions=(RESERVED,), counts=None, state="Pending", **more):
    """A Workload with quota for a job `train`, and our check pending beside another's."""
    assigned = [
        {"name": one["name"], "count": (counts or {}).get(one["name"], one["count"]), "flavors": flavors or {}}
        for one in sets
    ]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": "job-train-1",
            "namespace": "ns",
            "resourceVersion": "7",
            "ownerReferences": [{"kind": "Job", "name": "train", "controller": True}],
        },
        "spec": {"podSets": list(sets)},
        "status": {
            "conditions": list(conditions),
            "admission": {"clusterQueue": "q", "podSetAssignments": assigned},
            "admissionChecks": [
                {"name": "other", "state": "Ready", "message": "", "lastTransitionTime": "x"},
                {"name": "strata", "state": state, "message": "", "lastTransitionTime": "x", **more},
            ],
        },
    }


def answered(said, index=INDEX, profiles=PROFILES, **more):
    found = answer(said, index, profiles, checks={"strata"}, stamp=STAMP, **more)
    return found, (found.patch.body["status"]["admissionChecks"][1] if found else None)


def test_a_workload_with_quota_is_placed_and_its_pods_are_told_where():
    found, state = answered(workload(pod_set(devices="4", accelerator=A100, count=2)))
    assert (state["name"], state["state"], state["lastTransitionTime"]) == ("strata", "Ready", STAMP)
    (update,) = state["podSetUpdates"]
    assert (update["name"], update["labels"]) == ("main", {MANAGED: "true"})
    assert update["annotations"][GANG] == found.gang == "Job/ns/train"
    placement = decode(update["annotations"][PLACEMENT], where="test")
    assert [pod.node for pod in placement.pods] == ["nv", "nv"]
    assert placement.pods == found.placement.pods
    assert FIRST not in update["annotations"]
    assert (found.patch.ref.name, found.patch.subresource, found.patch.resource_version) == (
        "job-train-1",
        "status",
        "7",
    )
    assert found.patch.body["status"]["admissionChecks"][0]["name"] == "other"


def test_quota_of_a_flavor_is_used_on_its_cards():
    devices = {"cpu": flavor_name(PROFILES[1])}
    _, state = answered(workload(pod_set(devices="1"), flavors=devices))
    assert decode(state["podSetUpdates"][0]["annotations"][PLACEMENT], where="test").pods[0].node == "npu"
    _, state = answered(workload(pod_set(devices="1"), flavors={"cpu": flavor_name(PROFILES[0])}), FULL)
    assert state["state"] == "Retry"
    _, state = answered(workload(pod_set(devices="1"), flavors={"cpu": "default"}), FULL)
    assert state["state"] == "Ready"


def test_cards_of_a_flavor_that_no_node_has_are_named():
    _, state = answered(workload(pod_set(devices="1"), flavors={"x": flavor_name(PROFILES[1])}), ONLY_NVIDIA)
    assert state["state"] == "Retry"
    assert state["message"].startswith(f"no node has cards of {flavor_name(PROFILES[1])}; gang-fits-nowhere")
    assert "the next flavor is tried" in state["message"]


@pytest.mark.parametrize(("pool", "state"), [("gold", "Retry"), ("silver", "Ready")])
def test_a_flavor_of_others_is_used_on_nodes_with_its_labels(pool, state):
    """Kueue has the pods ask for them, and a place on another node would never be theirs."""
    there = {"spot": {"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"pool": pool}}}}
    index = Index.of(cluster(node("nv", labels={"pool": "silver"})))
    _, answer = answered(workload(pod_set(devices="1"), flavors={"x": "spot"}), index, flavors=there)
    assert answer["state"] == state
    assert ("node-unlabelled" in answer["message"]) is (state == "Retry")


def test_without_room_the_quota_goes_back_and_the_reasons_are_told():
    _, state = answered(workload(pod_set(devices="8", accelerator=A100, substitution="never"), retryCount=3), FULL)
    assert (state["state"], state["requeueAfterSeconds"], state["retryCount"]) == ("Retry", 60, 3)
    assert state["message"].startswith("gang-fits-nowhere: ")
    assert "1 devices-busy" in state["message"]
    assert "1 substitution-not-allowed" in state["message"]
    assert "podSetUpdates" not in state


def test_a_job_that_wants_to_be_asked_is_told_what_is_offered():
    _, state = answered(workload(pod_set(devices="1", accelerator=A100, substitution="ask")), FULL)
    assert state["state"] == "Retry"
    assert state["message"].startswith("substitution-wanted: ")


@pytest.mark.parametrize("sets", [[pod_set(vram="lots")], [pod_set("a", devices="1"), pod_set("b", devices="2")]])
def test_what_can_never_be_read_is_rejected(sets):
    found, state = answered(workload(*sets))
    assert (state["state"], found.placement) == ("Rejected", None)
    assert "ns/job-train-1" in state["message"]


def test_a_managed_pod_may_count_its_vendors_devices():
    asked = pod_set(accelerator=A100)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
    asked["template"]["spec"] = {"containers": [{"name": "main", "image": "i:1", **limits}]}
    found, _ = answered(workload(asked))
    assert len(found.placement.pods[0].devices) == 4
    del asked["template"]["metadata"]["annotations"]
    asked["template"]["metadata"]["labels"] = {MANAGED: "true"}
    found, _ = answered(workload(asked))
    assert len(found.placement.pods[0].devices) == 4


def test_a_workload_that_asks_for_nothing_of_ours_passes():
    found, state = answered(workload(pod_set()))
    assert (state["state"], found.placement) == ("Ready", None)
    assert "podSetUpdates" not in state


@pytest.mark.parametrize(
    "said",
    [
        workload(pod_set(devices="1"), conditions=()),
        workload(pod_set(devices="1"), conditions=({"type": "QuotaReserved", "status": "False"},)),
        workload(pod_set(devices="1"), conditions=(RESERVED, {"type": "Evicted", "status": "True"})),
        workload(pod_set(devices="1"), conditions=(RESERVED, {"type": "Finished", "status": "True"})),
        workload(pod_set(devices="1"), state="Ready"),
        {"kind": "Workload", "metadata": {"name": "new"}},
    ],
)
def test_nothing_is_said_where_nothing_is_asked(said):
    assert answer(said, INDEX, PROFILES, checks={"strata"}, stamp=STAMP) is None
    assert answer(workload(pod_set(devices="1")), INDEX, PROFILES, checks=(), stamp=STAMP) is None


def test_the_pods_of_several_templates_have_their_places_in_order_and_as_many_as_were_admitted():
    sets = [pod_set("master", devices="2"), pod_set("worker", 5, devices="2")]
    _, state = answered(workload(*sets, counts={"worker": 2}))
    first, second = state["podSetUpdates"]
    assert FIRST not in first["annotations"]
    assert second["annotations"][FIRST] == "1"
    assert len(decode(first["annotations"][PLACEMENT], where="test").pods) == 3
    assert first["annotations"][PLACEMENT] == second["annotations"][PLACEMENT]


def test_the_job_says_which_pods_have_devices_and_how_many_a_job_has():
    ray = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "train", "annotations": {"ai.compute/devices": "4"}},
        "spec": {
            "rayClusterSpec": {
                "headGroupSpec": {"template": {}},
                "workerGroupSpecs": [{"groupName": "Big", "replicas": 2, "template": {}}],
            }
        },
    }
    _, state = answered(workload(pod_set("head"), pod_set("big", 2), pod_set("submitter")), job=ray)
    assert [one["name"] for one in state["podSetUpdates"]] == ["big"]
    template = {"spec": {"parallelism": 2, "completions": 2, "template": {}}}
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 2, "template": template}]},
    }
    _, state = answered(workload(pod_set("w", 4, devices="2")), job=job_set)
    assert state["podSetUpdates"][0]["annotations"][PER_JOB] == "2"


def test_no_question_is_changed_by_its_answer():
    said = workload(pod_set(devices="1"))
    before = copy.deepcopy(said)
    answered(said)
    assert said == before


def test_one_flavor_stands_for_all_frameworks_of_the_same_devices():
    found = {one["metadata"]["name"]: one["spec"] for one in flavors(bundled_profiles())}
    assert set(found) == {
        "cambricon-mlu", "huawei-ascend310p", "huawei-ascend910", "hygon-dcu", "moore-threads-gpu", "nvidia-gpu",
    }  # fmt: skip
    assert found["nvidia-gpu"] == {
        "nodeLabels": {"flavor.ai.compute/nvidia-gpu": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }


def test_a_flavor_asks_for_the_labels_all_its_profiles_ask_for():
    one, two = (
        RuntimeProfile(name, "NVIDIA", (A100,), "pytorch", "image:1", "nvidia.com/gpu", node_selector=labels)
        for name, labels in (("x", {"pool": "a", "zone": "1"}), ("y", {"pool": "a", "zone": "2"}))
    )
    assert flavors([one, two])[0]["spec"] == {"nodeLabels": {"flavor.ai.compute/nvidia-gpu": "true", "pool": "a"}}


def test_our_check_becomes_active_once_and_others_are_left_alone():
    check = objects.admission_check()
    patch = activation(check, stamp=STAMP)
    assert patch.subresource == "status"
    assert patch.body["status"]["conditions"][0]["type"] == "Active"
    assert activation({**check, **patch.body}, stamp=STAMP) is None
    assert activation({**check, "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}}, stamp=STAMP) is None


def test_jobs_with_a_queue_are_kueues_to_let_go():
    one, two = objects.job("ours", devices=1), objects.job("queued", devices=1)
    two["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": "team"}
    jobs = {job.gang: job for job in map(read_job, (one, two))}
    waiting = pending_workloads(jobs, {}, {}, {})
    assert [each.gang for each in waiting] == ["Job/default/ours"]


def test_a_claim_that_is_named_has_to_be_there():
    _, state = answered(workload(pod_set(claim="big")))
    assert state["state"] == "Rejected"
    assert "there is no ComputeClaim 'big' in namespace ns" in state["message"]
    claim = {"metadata": {"name": "big", "namespace": "ns"}, "spec": {"devices": 4}}
    found, _ = answered(workload(pod_set(claim="big")), claims={"ns/big": claim})
    assert len(found.placement.pods[0].devices) == 4


def test_pod_sets_that_request_other_cpus_are_one_gang_and_each_may_have_the_most():
    small, large = (pod_set(name, devices="2", accelerator=A100) for name in ("launcher", "worker"))
    for each, cpu in ((small, "1"), (large, "20")):
        each["template"]["spec"] = {"containers": [{"name": "m", "resources": {"requests": {"cpu": cpu}}}]}
    full = replace(node("nv"), allocatable={"cpu": 30_000, "pods": 110, "nvidia.com/gpu": 8})
    _, state = answered(workload(small, large), index=Index.of(cluster(full)))
    assert state["state"] == "Retry"
    assert "request of 20 cpu is at most 15" in state["message"]
    roomy = replace(full, allocatable={**full.allocatable, "cpu": 40_000})
    assert answered(workload(small, large), index=Index.of(cluster(roomy)))[1]["state"] == "Ready"
