"""Serving plans as files for `kubectl`: what serves each pipeline, and what starts in each pod."""

import subprocess

import pytest
import yaml

from strata.control.serving_manifests import serving_manifests
from strata.errors import UsageError
from strata.fleet.schema import KubeEntry
from tests.serving.planning.plans import planned

ENTRY = KubeEntry(
    kind="kubernetes", image="team/vllm:1", resource="nvidia.com/gpu", namespace="ai", claim="weights"
)


def written(*pipelines, drivers=None):
    made = serving_manifests(planned(*pipelines), drivers=drivers or {})
    return {name: list(yaml.safe_load_all(text)) for name, text in made.files.items()}


def test_a_pipeline_of_one_node_is_a_deployment_and_one_of_unlike_nodes_a_gang_of_each_kind():
    files = written((("a/0", 8, 80),), (("a/1", 8, 30), ("a/2", 8, 30), ("b/0", 4, 20)))
    kinds = {name: [each["kind"] for each in documents] for name, documents in files.items()}
    assert kinds == {
        "pipeline-1.yaml": ["ConfigMap", "Service", "Deployment"],
        "pipeline-2.yaml": ["ConfigMap", "Service", "Job"] * 2,
        "gateway.yaml": ["ConfigMap", "Service", "Deployment"],
    }
    _, _, first, _, _, second = files["pipeline-2.yaml"]
    assert [job["spec"]["completions"] for job in (first, second)] == [2, 1]
    assert [job["metadata"]["annotations"]["ai.compute/devices"] for job in (first, second)] == ["8", "4"]
    for job in (first, second):
        (engine,) = job["spec"]["template"]["spec"]["containers"]
        assert engine["env"] == [{"name": "HEAD_ADDR", "value": "job-2-0.job-2"}]
    names = [
        each["metadata"]["name"] for documents in files.values() for each in documents if each["kind"] == "Job"
    ]
    assert names == ["job-2", "job-2-2"]


def test_each_pod_of_a_gang_runs_the_script_of_its_stage(tmp_path):
    files = written((("a/0", 8, 30), ("a/1", 8, 30), ("b/0", 4, 20)))
    maps, jobs = files["pipeline-1.yaml"][::3], files["pipeline-1.yaml"][2::3]
    said = []
    for record, job in zip(maps, jobs, strict=True):
        for name in record["data"]:
            (tmp_path / name).write_text(f"echo {name}")
        shell, option, run = job["spec"]["template"]["spec"]["containers"][0]["command"]
        for index in range(job["spec"]["completions"]):
            command = [shell, option, run.replace("/strata/part", str(tmp_path))]
            environment = {"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
            said.append(done.stdout.strip())
    assert said == ["stage-1.sh", "stage-2.sh", "stage-3.sh"]
    texts = [text for record in maps for text in record["data"].values()]
    # One tensor-parallel size, 4: so the first two run two ranks each.
    assert ["--node-rank 0" in texts[0], "--node-rank 2" in texts[1], "--node-rank 4" in texts[2]] == [True] * 3


def test_a_group_of_devices_numbers_those_of_its_pod():
    plan = planned((("a/0.1", 4, 80),))
    cut = plan.model_copy(
        update={
            "fleet": plan.fleet.model_copy(
                update={"nodes": (plan.fleet.nodes[0].model_copy(update={"first_device": 4}),)}
            )
        }
    )
    text = serving_manifests(cut, drivers={}).files["pipeline-1.yaml"]
    assert "CUDA_VISIBLE_DEVICES" not in text
    assert 'PORT="${PORT:-8000}"' in text


def test_the_fleets_drivers_say_where_and_with_which_image():
    files = written((("a/0", 8, 80),), drivers={"a": ENTRY})
    _, _, deployment = files["pipeline-1.yaml"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "team/vllm:1"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "weights"}} in pod["volumes"]
    assert all(each["metadata"]["namespace"] == "ai" for documents in files.values() for each in documents)


def test_pipelines_in_several_clusters_are_refused():
    drivers = {name: ENTRY.model_copy(update={"context": name}) for name in ("a", "b")}
    with pytest.raises(UsageError, match="several clusters"):
        written((("a/0", 8, 80),), (("b/0", 8, 80),), drivers=drivers)
