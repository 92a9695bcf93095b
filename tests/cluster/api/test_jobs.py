"""Jobs with `suspend`: every kind's templates, counts and patches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api import jobs
from tests.cluster.merge_patches import merged

TEMPLATE: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}


def job(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": TEMPLATE, **spec}}


def job_set() -> dict[str, Any]:
    def replicated(name: str, replicas: int, parallelism: int) -> dict[str, Any]:
        spec = {"parallelism": parallelism, "completions": parallelism, "template": TEMPLATE}
        return {"name": name, "replicas": replicas, "template": {"spec": spec}}

    spec = {"suspend": True, "replicatedJobs": [replicated("leader", 1, 1), replicated("workers", 2, 3)]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec}


def pytorch_job() -> dict[str, Any]:
    replicas = {"Worker": {"replicas": 3, "template": TEMPLATE}, "Master": {"replicas": 1, "template": TEMPLATE}}
    spec = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}


def ray_job() -> dict[str, Any]:
    groups = [{"groupName": "gpu", "replicas": 2, "template": TEMPLATE}]
    cluster = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": groups}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"suspend": True, "rayClusterSpec": cluster}}


def train_job() -> dict[str, Any]:
    spec = {"suspend": True, "trainer": {"numNodes": 4}}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}


ALL = [job(parallelism=2, completions=2), job_set(), pytorch_job(), ray_job(), train_job()]


@pytest.mark.parametrize(
    ("obj", "sets"),
    [
        (job(parallelism=4, completions=2), [("main", 2, 0)]),
        (job(), [("main", 1, 0)]),
        (job_set(), [("leader", 1, 0), ("workers", 6, 1)]),
        (pytorch_job(), [("Master", 1, 0), ("Worker", 3, 1)]),
        (ray_job(), [("head", 1, 0), ("gpu", 2, 0)]),
        (train_job(), [("node", 4, 0)]),
    ],
)
def test_each_kind_says_how_many_pods_its_templates_make_and_where_their_places_begin(
    obj: dict[str, Any], sets: list[tuple[str, int, int]]
) -> None:
    assert [(one.name, one.pods, one.first) for one in jobs.pod_sets(obj)] == sets


def test_the_head_of_a_ray_job_takes_no_device() -> None:
    assert [one.has_devices for one in jobs.pod_sets(ray_job())] == [False, True]


def test_a_head_without_workers_does_their_work() -> None:
    alone = ray_job()
    alone["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] = 0
    assert [(one.name, one.pods, one.has_devices) for one in jobs.pod_sets(alone)] == [
        ("head", 1, True),
        ("gpu", 0, True),
    ]


@pytest.mark.parametrize("obj", ALL, ids=lambda obj: obj["kind"])
def test_a_job_is_let_go_and_held_back_by_a_patch(obj: dict[str, Any]) -> None:
    assert jobs.is_suspended(obj)
    running = merged(obj, jobs.suspension(obj, wanted=False))
    assert not jobs.is_suspended(running)
    assert jobs.is_suspended(merged(running, jobs.suspension(running, wanted=True)))
    assert jobs.pod_sets(running) == jobs.pod_sets(obj)


@pytest.mark.parametrize("obj", ALL, ids=lambda obj: obj["kind"])
def test_templates_are_exchanged_by_a_patch_that_leaves_the_rest_alone(obj: dict[str, Any]) -> None:
    before = copy.deepcopy(obj)
    new = [{"metadata": {"annotations": {"n": str(i)}}, "spec": {}} for i in range(len(jobs.pod_sets(obj)))]
    after = jobs.changed(obj, new, is_suspended=True)
    assert [one.template for one in jobs.pod_sets(after)] == new
    assert [(one.name, one.pods) for one in jobs.pod_sets(after)] == [
        (one.name, one.pods) for one in jobs.pod_sets(obj)
    ]
    assert obj == before
    assert jobs.changed(after, new, is_suspended=True) == after


def test_what_others_say_over_the_runtime_of_a_train_job_stays() -> None:
    other = {"targetJobs": [{"name": "dataset-initializer"}], "spec": {"nodeSelector": {"disk": "fast"}}}
    obj = train_job()
    obj["spec"]["podTemplateOverrides"] = [other]
    after = jobs.changed(obj, [{"spec": {"nodeSelector": {"a": "b"}}}], is_suspended=True)
    assert other in after["spec"]["podTemplateOverrides"]
    assert len(after["spec"]["podTemplateOverrides"]) == 2


@pytest.mark.parametrize(
    ("status", "over"),
    [
        ({}, False),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, True),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, False),
        ({"jobStatus": "SUCCEEDED"}, True),
    ],
)
def test_a_job_that_is_over_says_so_in_its_status(status: dict[str, Any], over: bool) -> None:
    assert jobs.is_finished({**job(), "status": status}) is over


def test_a_job_that_ran_needs_its_start_time_removed_before_its_template_may_change() -> None:
    ran = {**job(), "status": {"startTime": "2026-11-21T10:00:00Z"}}
    body = jobs.start_reset(ran)
    assert body is not None
    assert jobs.start_reset(merged(ran, body)) is None


def test_other_kinds_are_not_held_back() -> None:
    assert jobs.kind_of({"apiVersion": "apps/v1", "kind": "Deployment"}) is None


values = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=2), values, max_size=4)


@given(objects, objects)
def test_a_merge_patch_makes_one_object_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merged(before, jobs.merge_patch(before, after)) == after
