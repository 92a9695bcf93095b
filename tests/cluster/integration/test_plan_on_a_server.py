"""A training plan exported, applied and placed: from `strata plan` to pods with their devices."""

from __future__ import annotations

import pytest

from strata.cli.main import run
from strata.cluster.api.kinds import COMPUTE_NODE
from strata.fleet.schema import load_fleet
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job
from tests.cluster.builders import A100, B3
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.support.training_plans import save_plan

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: two
domains:
  - {name: nv, accelerator: A100-SXM4-80GB, num_gpus: 8, gpus_per_node: 4}
  - {name: ascend, accelerator: Ascend910B3, num_gpus: 8, gpus_per_node: 8}
links:
  - {between: [nv, ascend], bandwidth: 10Gbps, latency: 2ms}
"""


@pytest.fixture
def strata(plane, api, nodes, tmp_path):
    """strata in the cluster: two nodes of four NVIDIA cards, one of eight Ascend cards."""
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


def test_a_plan_across_two_vendors_is_applied_and_each_part_is_placed_on_its_own_cards(
    strata, plane, namespace, tmp_path
):
    (tmp_path / "fleet.yaml").write_text(FLEET)
    fleet, job = load_fleet(tmp_path / "fleet.yaml"), load_job("llama-3.1-8b")
    last = len(job.layers) - 12
    plan = TrainingPlan((Pipeline((Stage("nv", 0, 12, 2, 1), Stage("ascend", 12, last, 2)), 4, 4),), 8)
    inputs = {"fleet": str(tmp_path / "fleet.yaml"), "job": "llama-3.1-8b"}
    save_plan(tmp_path / "plan.json", fleet, job, plan, inputs=inputs)
    out = tmp_path / "out"
    assert run(["export", str(tmp_path / "plan.json"), "--to", "kubernetes", "--out", str(out)]) == 0
    plane.kubectl("apply", "--server-side", "--namespace", namespace, "-f", str(out))
    placed = {domain: strata.pods(namespace, f"llama-3-1-8b-{domain}") for domain in ("nv", "ascend")}
    assert {pod["spec"]["nodeName"] for pod in placed["nv"]} == {"n1", "n2"}
    assert {pod["spec"]["nodeName"] for pod in placed["ascend"]} == {"a1"}
    for domain, resource, amount in (("nv", "nvidia.com/gpu", "4"), ("ascend", "huawei.com/Ascend910", "8")):
        for pod in placed[domain]:
            (container,) = pod["spec"]["containers"]
            assert container["resources"]["limits"][resource] == amount
            assert container["command"][-1] == "/strata/part/train.py"
            assert container["image"] != "replace-me:latest", "the card's own image"
