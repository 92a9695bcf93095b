"""The control loop's driver on a real control plane; pods have the states we give them: there is no kubelet."""

import json

import pytest

from strata.cli.main import run
from strata.cluster.api.kinds import JOB, NODE, POD, annotations_of, name_of
from strata.control.drivers.kube import KubeDriver
from strata.control.drivers.kube_objects import CONFIG_MAP, SERVICE, STOP
from strata.control.drivers.launch import Workplace
from strata.control.state import Attempt, JobSpec, Part, PartPhase, Start
from strata.errors import UsageError
from strata.fleet.schema import KubeEntry, load_fleet
from strata.training.program.client import STOPPED
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support import builders
from tests.support.real_processes import until

PLAN = TrainingPlan((Pipeline((Stage("a", 0, 3, 2, 1), Stage("a", 3, 2, 2, 1)), 2, 3),), 8)


@pytest.fixture
def driver(plane, namespace, tmp_path):
    plane.controller_manager()
    fleet = builders.fleet(builders.domain("a", 8, per_node=4))
    entry = KubeEntry(
        kind="kubernetes", image="none", kubeconfig=str(plane.kubeconfig()), namespace=namespace,
        resource="nvidia.com/gpu", claim="shared",
    )  # fmt: skip
    driver = KubeDriver("a", Workplace(tmp_path, fleet, {"a": None}), entry)
    yield driver
    driver.api.close()


def start_of(number=1, **more):
    spec = JobSpec("job", None, 100, command=("python", "train.py"), grace_s=20.0, **more)
    return Start("a", Attempt(f"job-{number}", "job", number, PLAN, 0.0, 0, {"a": Part()}), spec)


def seen(driver, attempt="job-1"):
    return next((part for part in driver.observe(0.0).parts if part.attempt == attempt), None)


def pods_of(driver, count=2):
    """Return the pods of the driver's jobs, once there are so many."""

    def pods():
        found = driver.api.list(POD, namespace=driver.namespace)[0]
        return sorted(found, key=name_of) if len(found) == count else None

    return until(pods, lambda: f"{count} pods")


def become(driver, phase, *codes):
    """Give the pods a phase, with exit codes where they are over."""
    for pod, code in zip(pods_of(driver), codes or (None, None), strict=True):
        state = {} if code is None else {"state": {"terminated": {"exitCode": code}}}
        statuses = [{"name": "ranks", "image": "none", "imageID": "", "ready": False, "restartCount": 0, **state}]
        body = {"status": {"phase": phase, "containerStatuses": statuses}}
        driver.api.patch(POD, name_of(pod), driver.namespace, body=body, subresource="status")


def test_a_part_is_a_job_with_a_pod_for_each_node_and_made_once(driver):
    for _ in range(3):
        driver.start(start_of())
    (job,) = driver.api.list(JOB, namespace=driver.namespace)[0]
    (service,) = driver.api.list(SERVICE, namespace=driver.namespace)[0]
    pods = pods_of(driver)
    assert (job["spec"]["completions"], job["spec"]["backoffLimit"], service["spec"]["clusterIP"]) == (
        2,
        0,
        "None",
    )
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods} == {"4"}
    (record,) = driver.api.list(CONFIG_MAP, namespace=driver.namespace, labels=driver._selector)[0]
    assert len(json.loads(record["data"]["ranks.json"])["ranks"]) == 8
    assert f"MASTER_ADDR={name_of(job)}-0.{name_of(job)}.{driver.namespace}.svc" in record["data"]["shared"]
    assert "STRATA_CHECKPOINTS=/strata/checkpoints/job" in record["data"]["shared"]


def test_what_pods_are_in_is_what_the_part_is_in(driver):
    assert seen(driver) is None
    driver.start(start_of())
    pods_of(driver)
    waits = seen(driver)
    assert (waits.phase, "Pending" in waits.message, driver.observe(0.0).queue) == (PartPhase.WAITING, True, 1)
    become(driver, "Running")
    assert seen(driver).phase is PartPhase.RUNNING
    become(driver, "Succeeded", 0, 0)
    part = seen(driver)
    assert (part.phase, part.exit_code) == (PartPhase.ENDED, 0)


def test_one_pod_that_fails_is_a_part_that_failed(driver):
    driver.start(start_of())
    become(driver, "Running")
    pods = pods_of(driver)
    become(driver, "Failed", 3, STOPPED)
    part = until(lambda: (p := seen(driver)).phase.is_over and p, lambda: seen(driver))
    assert (part.phase, part.exit_code, len(pods)) == (PartPhase.FAILED, 3, 2)


def test_a_part_is_stopped_by_its_record_and_its_pods_stay_to_say_how_it_ended(driver):
    driver.start(start_of())
    become(driver, "Running")
    for _ in range(2):
        driver.stop("job-1", grace_s=20.0)
    (record,) = driver.api.list(CONFIG_MAP, namespace=driver.namespace, labels=driver._selector)[0]
    assert record["data"]["stop"] == "20"
    assert {annotations_of(pod)[STOP] for pod in pods_of(driver)} == {annotations_of(record)[STOP]}
    assert seen(driver).phase is PartPhase.RUNNING
    become(driver, "Failed", STOPPED, STOPPED)
    part = seen(driver)
    assert (part.phase, part.exit_code) == (PartPhase.ENDED, STOPPED)
    driver.start(start_of())
    assert len(driver.api.list(JOB, namespace=driver.namespace)[0]) == 1


def test_pods_that_do_not_end_are_deleted_a_minute_after_the_grace(driver):
    driver.start(start_of())
    become(driver, "Running")
    driver.stop("job-1", grace_s=-100.0)
    driver.stop("job-1", grace_s=-100.0)
    pods = driver.api.list(POD, namespace=driver.namespace)[0]
    assert all("deletionTimestamp" in pod["metadata"] for pod in pods)


def test_what_waits_or_comes_late_never_runs(driver):
    driver.start(start_of())
    pods_of(driver)
    driver.stop("job-1", grace_s=5.0)
    until(lambda: seen(driver).phase is PartPhase.ENDED, lambda: seen(driver))
    driver.stop("job-2", grace_s=5.0)
    driver.start(start_of(2))
    assert seen(driver, "job-2").phase is PartPhase.ENDED
    assert len(driver.api.list(JOB, namespace=driver.namespace)[0]) == 1


def test_without_a_claim_a_job_that_resumes_is_refused_and_the_domain_is_not_silent(driver):
    bare = KubeDriver("a", driver.workplace, driver.entry.model_copy(update={"claim": None}))
    bare.start(start_of())
    part = seen(bare)
    bare.api.close()
    assert (part.phase, "`claim`" in part.message) == (PartPhase.FAILED, True)


def test_a_job_that_somebody_deleted_is_lost(driver):
    driver.start(start_of())
    become(driver, "Running")
    (job,) = driver.api.list(JOB, namespace=driver.namespace)[0]
    driver.api.delete(JOB, name_of(job), driver.namespace)
    until(lambda: seen(driver).phase is PartPhase.LOST, lambda: seen(driver))


def test_devices_are_those_of_ready_nodes_and_found_by_discovery(driver, nodes, plane, tmp_path, capsys):
    for name in ("n0", "n1", "n2"):
        nodes.add(
            name, allocatable={"nvidia.com/gpu": 4}, labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
        )
    assert driver.observe(0.0).num_devices == 8
    for name in ("n0", "n1"):
        driver.api.patch(NODE, name, body={"spec": {"unschedulable": True}})
    assert driver.observe(0.0).num_devices == 4
    assert run(["fleet", "discover", "--kube", "test", "--kubeconfig", str(plane.kubeconfig())]) == 0
    (tmp_path / "fleet.yaml").write_text(capsys.readouterr().out)
    (domain,) = load_fleet(tmp_path / "fleet.yaml").domains
    assert (domain.name, domain.num_devices, domain.accelerator.name) == ("test", 12, "A100-SXM4-80GB")


def test_who_may_not_make_jobs_is_told_when_the_scheduler_starts(driver, plane):
    entry = driver.entry.model_copy(update={"kubeconfig": str(plane.kubeconfig("nobody"))})
    barred = KubeDriver("a", driver.workplace, entry)
    with pytest.raises(UsageError, match="403"):
        barred.check()
    barred.api.close()
    driver.check()
