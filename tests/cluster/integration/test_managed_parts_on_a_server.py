"""A part of an attempt that strata's controller in the cluster places: both levels, on a real control plane."""

from __future__ import annotations

import json

import pytest

from strata.cluster.api.kinds import COMPUTE_NODE, JOB, annotations_of, labels_of, name_of
from strata.control.drivers.kube import KubeDriver
from strata.control.drivers.launch import Workplace
from strata.control.state import Attempt, JobSpec, Part, PartPhase, Start
from strata.fleet.catalogue import accelerator
from strata.fleet.schema import KubeEntry
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.cluster.builders import A100, B3
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.support import builders
from tests.support.real_processes import until

PLAN = TrainingPlan((Pipeline((Stage("a", 0, 3, 2, 1), Stage("a", 3, 2, 2, 1)), 2, 3),), 8)


@pytest.fixture
def strata(plane, api, nodes, tmp_path):
    """strata in the cluster, with two nodes of four NVIDIA cards and one of eight Ascend cards."""
    plane.controller_manager()
    with Strata(plane, api, tmp_path) as made, plane.scheduler():
        made.webhook()
        made.main = made.controller()
        for name in ("n1", "n2"):
            made.devices(nodes, name, A100, 4)
        made.devices(nodes, "a1", B3)
        yield made
        assert made.main.end() == 0, made.main.log
        for name in ("n1", "n2", "a1"):
            api.delete(COMPUTE_NODE, name)


def driver_of(card: str, plane, namespace, tmp_path) -> KubeDriver:
    domain = builders.domain("a", 8, accelerator=accelerator(card), per_node=4)
    entry = KubeEntry(
        kind="kubernetes", image="team/code:1", kubeconfig=str(plane.kubeconfig()), namespace=namespace,
        managed=True,
    )  # fmt: skip
    return KubeDriver("a", Workplace(tmp_path, builders.fleet(domain), {"a": None}), entry)


@pytest.mark.parametrize(
    ("card", "resource", "on"), [(A100, "nvidia.com/gpu", {"n1", "n2"}), (B3, "huawei.com/Ascend910", {"a1"})]
)
def test_a_managed_part_gets_its_cards_image_and_devices_from_the_cluster(
    strata, plane, namespace, tmp_path, card, resource, on
):
    driver = driver_of(card, plane, namespace, tmp_path)
    try:
        assert driver.observe(0.0).num_devices == 8
        spec = JobSpec("job", None, 100, command=("python", "train.py"), grace_s=20.0, can_resume=False)
        driver.start(Start("a", Attempt("job-1", "job", 1, PLAN, 0.0, 0, {"a": Part()}), spec))
        (job,) = driver.api.list(JOB, namespace=namespace)[0]
        pods = strata.pods(namespace, name_of(job))
        assert {pod["spec"]["nodeName"] for pod in pods} == on
        for pod in pods:
            (container,) = pod["spec"]["containers"]
            assert container["resources"]["limits"][resource] == "4"
            assert container["image"] != "team/code:1", "the card's own; the program comes in a layer"
            assert container["command"][:2] == ["sh", "/strata/part/node.sh"]
            assert "team/code:1" in json.dumps(pod["spec"])
            assert labels_of(pod)["ai.compute/managed"] == "true"
        assert strata.routed(namespace, name_of(job)) == "GangPlaced", annotations_of(job)
        until(
            lambda: all(part.phase is PartPhase.RUNNING for part in driver.observe(0.0).parts), lambda: "it to run"
        )
    finally:
        driver.api.close()
