"""Plans as files for `kubectl`: which card each part asks for, what of the drivers and of `run:` is in them."""

import json

import pytest
import yaml

from strata.control.manifests import manifests
from strata.errors import UsageError
from strata.fleet.catalogue import accelerator
from strata.fleet.schema import KubeEntry
from strata.training.plan.planfile import read_plan
from strata.workload.job_entries import RunEntry
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support import builders
from tests.support.training_plans import save_plan

A100, ASCEND = "A100-SXM4-80GB", "Ascend910B3"
RUN = RunEntry(command=("python", "train.py"), steps=500, save_every=50, resume=True)
ENTRY = KubeEntry(kind="kubernetes", image="team/train:1", managed=True)


@pytest.fixture
def written(tmp_path):
    """Return a function from the cards of two domains to the documents of each file, and the notes."""

    def make(cards=(A100, ASCEND), *, drivers=None, run=None, replicas=2):
        a, b = (
            builders.domain(name, 8 * replicas, per_node=4, accelerator=accelerator(card))
            for name, card in zip(("US East", "b"), cards, strict=True)
        )
        stages = (Stage("US East", 0, 4, 4, 1), Stage("b", 4, 6, 2))
        plan = TrainingPlan((Pipeline(stages, replicas, 4),), 8)
        fleet, job = builders.fleet(a, b), builders.job(batch=8 * 4 * replicas)
        save_plan(tmp_path / "plan.json", fleet, job, plan)
        made = manifests(read_plan(tmp_path / "plan.json"), fleet, job, drivers=drivers or {}, run=run)
        return {name: list(yaml.safe_load_all(text)) for name, text in made.files.items()}, made

    return make


def test_each_domain_is_a_gang_that_asks_for_its_own_card(written):
    files, made = written()
    assert list(files) == ["us-east.yaml", "b.yaml"]
    claims = {}
    for name, (record, service, job) in files.items():
        assert [each["kind"] for each in (record, service, job)] == ["ConfigMap", "Service", "Job"]
        assert job["metadata"]["labels"]["ai.compute/managed"] == "true"
        annotations = job["metadata"]["annotations"]
        claims[name] = [annotations[f"ai.compute/{key}"] for key in ("accelerator", "devices", "substitution")]
        assert "nodeSelector" not in job["spec"]["template"]["spec"], "its card leads a part to its domain"
        assert "nvidia.com" not in yaml.safe_dump(job)
    assert claims == {"us-east.yaml": [A100, "4", "never"], "b.yaml": [ASCEND, "4", "never"]}
    assert made.notes == ()


def test_every_rank_of_the_plan_is_in_one_pod_and_meets_the_others_at_rank_0(written):
    files, made = written()
    ranks, masters = [], set()
    for record, service, job in files.values():
        data = record["data"]
        nodes = [line.split("ranks=")[1] for line in data["node.sh"].splitlines() if " ranks=" in line]
        assert len(nodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
        ranks += [int(key.removeprefix("rank-")) for key in data if key.startswith("rank-")]
        masters |= {line for line in data["shared"].splitlines() if "MASTER_ADDR" in line}
        assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        assert json.loads(data["ranks.json"])["world_size"] == len(made.ranks.ranks)
    assert ranks == [rank.rank for rank in made.ranks.ranks]
    first = files["us-east.yaml"][2]["metadata"]["name"]
    assert masters == {f"export MASTER_ADDR={first}-0.{first}"}


def test_two_domains_of_a_card_in_a_cluster_are_told_apart_by_a_label(written):
    files, _ = written((A100, A100))
    selectors = [documents[2]["spec"]["template"]["spec"]["nodeSelector"] for documents in files.values()]
    assert selectors == [{"strata/domain": "us-east"}, {"strata/domain": "b"}]
    apart = {name: ENTRY.model_copy(update={"context": name}) for name in ("US East", "b")}
    files, made = written((A100, A100), drivers=apart)
    assert all("nodeSelector" not in documents[2]["spec"]["template"]["spec"] for documents in files.values())
    assert "needs an address" in made.notes[0]
    assert "kubectl --context b apply" in made.files["b.yaml"]


def test_drivers_and_run_say_what_runs_where(written):
    entry = ENTRY.model_copy(update={"claim": "disk", "queue": "team", "namespace": "ai", "address": "10.0.0.9"})
    files, made = written(drivers=dict.fromkeys(("US East", "b"), entry), run=RUN)
    for record, _, job in files.values():
        pod = job["spec"]["template"]["spec"]
        assert pod["containers"][0]["command"][-2:] == ["python", "train.py"]
        assert job["metadata"]["namespace"] == "ai"
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert {"persistentVolumeClaim": {"claimName": "disk"}, "name": "checkpoints"} in pod["volumes"]
        for line in ("STRATA_CHECKPOINTS=/strata/checkpoints/test", "STRATA_STEPS=500", "MASTER_ADDR=10.0.0.9"):
            assert f"export {line}\n" in record["data"]["shared"]
        assert "train.py" not in record["data"], "the image has the program"
    assert made.notes == ()


def test_checkpoints_that_would_go_with_the_pods_are_not_promised(written):
    files, made = written(run=RUN)
    assert "claim" in made.notes[0]
    assert all("STRATA_CHECKPOINTS" not in documents[0]["data"]["shared"] for documents in files.values())


def test_without_run_the_stand_in_and_what_it_imports_are_in_the_record(written):
    files, _ = written()
    for record, _, job in files.values():
        assert {"train.py", "tiny.py", "client.py"} <= record["data"].keys()
        assert "ai.compute/code-image" not in job["metadata"]["annotations"], "all it needs is there"


def test_a_rank_map_larger_than_a_config_map_is_refused(written):
    with pytest.raises(UsageError, match="do not fit a ConfigMap"):
        written(replicas=900)
