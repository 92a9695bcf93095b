"""Plans exported, applied and placed: from `strata plan` to pods with their devices."""

from __future__ import annotations

import pytest

from strata.cli.main import run
from strata.cluster.api.kinds import COMPUTE_NODE, POD, annotations_of, name_of
from strata.cluster.api.placement_annotation import PLACEMENT, decode
from strata.control.drivers.kube_objects import SERVICE
from strata.fleet.schema import load_fleet
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job
from tests.cluster.builders import A100, B3
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.support.real_processes import until
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


SERVING_FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: two
domains:
  - {name: nv, accelerator: A100-SXM4-80GB, num_gpus: 3, gpus_per_node: 1}
  - {name: ascend, accelerator: Ascend910B3, num_gpus: 8, gpus_per_node: 8}
links:
  - {between: [nv, ascend], bandwidth: 10Gbps, latency: 2ms}
"""
CHAT = """\
apiVersion: strata/v1alpha1
kind: ServingJob
name: chat
model: llama-3.1-70b
demand: {prompt: 256, output: 64}
"""


def test_a_serving_plan_is_applied_and_the_gateway_stands_before_pipelines_on_their_own_cards(
    plane, api, nodes, namespace, tmp_path
):
    """Half a node each for two pipelines, and one that spans three nodes, which comes whole or not at all."""
    for name, text in (("fleet", SERVING_FLEET), ("chat", CHAT)):
        (tmp_path / f"{name}.yaml").write_text(text)
    plan, out = str(tmp_path / "plan.json"), tmp_path / "out"
    assert (
        run(["plan", "serve", *(str(tmp_path / f"{one}.yaml") for one in ("fleet", "chat")), "--save", plan]) == 0
    )
    assert run(["export", plan, "--to", "kubernetes", "--out", str(out)]) == 0
    plane.controller_manager()
    with Strata(plane, api, tmp_path) as made, plane.scheduler():
        made.webhook()
        main = made.controller()
        made.devices(nodes, "v1", B3)
        for name in ("w1", "w2", "w3"):
            made.devices(nodes, name, A100, 1)
        plane.kubectl("apply", "--server-side", "--namespace", namespace, "-f", str(out))

        def selected(service: str):
            selector = api.get(SERVICE, service, namespace)["spec"]["selector"]
            labels = ",".join(f"{key}={value}" for key, value in selector.items())
            return sorted(api.list(POD, namespace=namespace, labels=labels)[0], key=name_of)

        def all_run():
            pods = [pod for name in ("chat-1", "chat-2", "chat-3", "chat-gateway") for pod in selected(name)]
            phases = [pod.get("status", {}).get("phase") for pod in pods]
            return len(pods) == 6 and set(phases) == {"Running"}

        until(all_run, lambda: plane.kubectl("describe", "pods", "--namespace", namespace))
        held = []
        for service, on, resource, amount in (
            ("chat-1", ["v1"], "huawei.com/Ascend910", "4"),
            ("chat-2", ["v1"], "huawei.com/Ascend910", "4"),
            ("chat-3", ["w1", "w2", "w3"], "nvidia.com/gpu", "1"),
        ):
            pods = selected(service)
            assert sorted(pod["spec"]["nodeName"] for pod in pods) == on
            for pod in pods:
                (engine,) = pod["spec"]["containers"]
                assert engine["resources"]["limits"][resource] == amount
                assert "vllm" in engine["image"], "the engine's, of the card"
                assert engine["command"][-1].endswith(".sh")
                places = decode(annotations_of(pod)[PLACEMENT], where="").pods
                held += [
                    (place.node, device) for place in places for device in place.devices if service != "chat-3"
                ]
        assert len(held) == len(set(held)) == 8, "each has devices of its own"
        (gateway,) = selected("chat-gateway")
        backends = [word for word in gateway["spec"]["containers"][0]["args"] if word.startswith("http")]
        assert [each.split(":8000")[0] for each in backends] == [
            "http://chat-1",
            "http://chat-2",
            "http://chat-3-0.chat-3",
        ]
        assert main.end() == 0, main.log
    for name in ("v1", "w1", "w2", "w3"):
        api.delete(COMPUTE_NODE, name)
