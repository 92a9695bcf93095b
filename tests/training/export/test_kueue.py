from pathlib import Path

import pytest
import yaml

from strata.training.export.kueue import render
from strata.training.export.ranks import RankLayout
from strata.workload.plan import Pipeline, Stage, TrainingPlan

GOLDEN = Path(__file__).parent / "golden" / "jobset.yaml"
PLAN = TrainingPlan((Pipeline((Stage("US East", 0, 4, 4), Stage("eu", 4, 4, 2)), replicas=3, microbatches=4),), 1)
LAYOUT = RankLayout(
    PLAN, {"US East": 16, "eu": 8}, {"US East": 8, "eu": 8}, {"US East": "A100-SXM4-80GB", "eu": "own card"}
)


def jobs():
    return yaml.safe_load(render(LAYOUT, "Llama 8B").files["jobset.yaml"])["spec"]["replicatedJobs"]


def test_the_manifest_is_the_golden_file():
    assert render(LAYOUT, "Llama 8B").files["jobset.yaml"] == GOLDEN.read_text()


def test_it_is_a_suspended_jobset_in_a_queue():
    manifest = yaml.safe_load(render(LAYOUT, "Llama 8B").files["jobset.yaml"])
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert manifest["spec"]["suspend"] is True
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    for job in jobs():
        annotations = job["template"]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["kueue.x-k8s.io/podset-required-topology"] == "strata/domain"


def test_one_card_alike_is_asked_of_strata_too():
    metadata = yaml.safe_load(render(LAYOUT, "x").files["jobset.yaml"])["metadata"]
    assert "annotations" not in metadata, "a gang of two cards is none of strata's"
    stages = (Stage("US East", 0, 4, 4), Stage("eu", 4, 4, 4))
    plan = TrainingPlan((Pipeline(stages, replicas=2, microbatches=4),), 1)
    both = dict.fromkeys(("US East", "eu"), 8)
    alike = RankLayout(plan, both, both, dict.fromkeys(both, "A100-SXM4-80GB"))
    metadata = yaml.safe_load(render(alike, "x").files["jobset.yaml"])["metadata"]
    assert metadata["labels"] == {"kueue.x-k8s.io/queue-name": "default", "ai.compute/managed": "true"}
    claim = {"accelerator": "A100-SXM4-80GB", "devices": "8", "substitution": "never"}
    assert metadata["annotations"] == {f"ai.compute/{key}": value for key, value in claim.items()}


def test_pods_and_devices_are_the_plans_nodes_in_rank_order():
    found = []
    for job in jobs():
        spec = job["template"]["spec"]
        assert spec["parallelism"] == spec["completions"]
        container = spec["template"]["spec"]["containers"][0]
        (devices,) = container["resources"]["limits"].values()
        offset = next(item["value"] for item in container["env"] if item["name"] == "RANK_OFFSET")
        assert int(offset) == sum(found)
        found += [devices] * spec["parallelism"]
    assert found == [len(node) for node in render(LAYOUT, "x").ranks.nodes().values()]


def test_names_fit_kubernetes_whatever_the_domain_is_called():
    plan = TrainingPlan((Pipeline((Stage("A" * 80 + "_/é", 0, 4, 1),), 1, 1),), 1)
    name = plan.domains[0]
    manifest = yaml.safe_load(
        render(RankLayout(plan, {name: 1}, {name: 1}, {name: "x"}), "J" * 80).files["jobset.yaml"]
    )
    pod = f"{manifest['metadata']['name']}-{manifest['spec']['replicatedJobs'][0]['name']}-part9-0-99999"
    assert len(pod) <= 63
    assert pod.replace("-", "").isalnum()
    assert pod == pod.lower()


def test_an_unknown_device_plugin_is_said():
    (note,) = render(LAYOUT, "x").notes
    assert "own card (eu)" in note


def test_launch_files_too_large_for_a_config_map_are_said():
    plan = TrainingPlan((Pipeline((Stage("a", 0, 4, 8),), replicas=900, microbatches=1),), 1)
    notes = render(RankLayout(plan, {"a": 7200}, {"a": 8}, {"a": "A100-SXM4-80GB"}), "x").notes
    assert any("ConfigMap" in note for note in notes)


@pytest.mark.parametrize("name", ["ranks.json", "train.py", "tiny.py", "launch-us-east.sh", "launch-eu.sh"])
def test_what_the_pods_run_is_beside_it(name):
    assert name in render(LAYOUT, "x").files
