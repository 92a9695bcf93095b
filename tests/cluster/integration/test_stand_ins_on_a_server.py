"""The test bench itself: jobs make pods, the scheduler binds them, stand-in nodes run them and let them go."""

from __future__ import annotations

from strata.cluster.api.kinds import JOB, POD
from tests.support.real_processes import until


def job(name, namespace, **more):
    gpu = {"nvidia.com/gpu": "1"}
    container = {"name": "c", "image": "pause", "resources": {"limits": gpu}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": 2, "completions": 2, "template": template, **more}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def test_a_job_is_held_bound_run_held_again_and_finished(plane, api, namespace, nodes):
    def pods(phase):
        found, _ = api.list(POD, namespace=namespace)
        return sorted(one["metadata"]["name"] for one in found if one["status"]["phase"] == phase)

    def suspend(is_held):
        api.patch(JOB, "a", namespace, body={"spec": {"suspend": is_held}})

    def until_running():
        until(lambda: len(pods("Running")) == 2, lambda: api.list(POD, namespace=namespace))
        return pods("Running")

    plane.controller_manager()
    nodes.add("small", allocatable={"nvidia.com/gpu": 1})
    nodes.add("large", allocatable={"nvidia.com/gpu": 2})
    with plane.scheduler():
        api.create(JOB, job("a", namespace, suspend=True))
        suspend(False)
        first = until_running()
        suspend(True)
        until(lambda: not pods("Running"), lambda: api.list(POD, namespace=namespace))
        suspend(False)
        second = until_running()
        assert not set(first) & set(second)
        for name in second:
            nodes.finish(name, namespace)
        until(lambda: api.get(JOB, "a", namespace)["status"].get("succeeded") == 2, lambda: "the job's end")


def test_a_pod_with_no_room_stays_pending_and_says_why(plane, api, namespace, nodes):
    plane.controller_manager()
    nodes.add("full", allocatable={"nvidia.com/gpu": 0})
    with plane.scheduler():
        api.create(JOB, job("b", namespace, parallelism=1, completions=1))

        def reasons():
            found, _ = api.list(POD, namespace=namespace)
            conditions = [one for pod in found for one in pod["status"].get("conditions", [])]
            return [one["message"] for one in conditions if one.get("reason") == "Unschedulable"]

        (reason,) = until(reasons, lambda: "the scheduler's reason")
    assert "Insufficient nvidia.com/gpu" in reason
