from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cli.main import run as run_cli
from strata.cluster.api import kinds
from strata.cluster.api.crd.compute_claim import claim_status
from strata.cluster.api.jobs import read_job
from strata.cluster.api.placement_annotation import COUNTED, GANG, INJECTED, MANAGED, PLACEMENT, WAITING, encode
from strata.cluster.api.pod_claims import job_claim
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.gather import cache_of, from_files
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from tests.cluster.builders import A100, B3, decide
from tests.cluster.objects import RESOURCE, devices, job, node, pod

AT = "2026-11-21T10:00:00Z"


def typed(kind: kinds.ObjectKind, obj):
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


BASE = [
    typed(kinds.NODE, node("n0")),
    typed(kinds.COMPUTE_NODE, devices("n0")),
    typed(kinds.NODE, node("n1")),
    typed(kinds.COMPUTE_NODE, devices("n1")),
    typed(kinds.NODE, node("n2", B3)),
    typed(kinds.COMPUTE_NODE, devices("n2", B3)),
    pod("p0", on="n0", resource=RESOURCE[A100], count=6),
]


@pytest.fixture
def written(tmp_path):
    def write(*objects) -> str:
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*BASE, *objects]}))
        return str(path)

    return write


def why(snapshot: str, *arguments: str):
    return CliRunner().invoke(cli, ["kube", "why", *arguments, "--snapshot", snapshot], catch_exceptions=False)


def data(snapshot: str, *arguments: str) -> dict:
    return json.loads(why(snapshot, *arguments, "-o", "json").stdout)


def test_a_job_that_fits_nowhere_has_every_nodes_reason(written):
    wanted = job("train", pods=4, devices=8, accelerator=A100, substitution="never")
    said = data(written(wanted), "job/train")
    assert (said["source"], said["is_routed"], said["reason"]) == ("now", False, "GangFitsNowhere")
    assert {one["node"]: one["reason"] for one in said["nodes"]} == {
        "n0": "devices-busy",
        "n1": "room-for-fewer",
        "n2": "substitution-not-allowed",
    }
    assert "fits-fewer-pods" in {one["token"] for one in said["reasons"]}


def test_a_job_that_would_go_says_where(written):
    said = data(written(job("train", pods=1, devices=8, accelerator=A100)), "job/train")
    assert (said["is_routed"], said["model"], said["devices"]) == (True, A100, 8)
    assert said["pods"] == [{"node": "n1", "devices": list(range(8))}]


def claimed(cache: ClusterCache, wanted) -> dict:
    """The ComputeClaim that a controller writes for a job."""
    decision = decide(cache.index, job_claim(read_job(wanted), {}), cache.profiles)
    return {
        "apiVersion": kinds.COMPUTE_CLAIM.api_version,
        "kind": "ComputeClaim",
        "metadata": {
            "name": "job-train",
            "namespace": "default",
            "ownerReferences": [{"kind": "Job", "name": "train"}],
        },
        "spec": {},
        "status": claim_status(decision, None, now=AT, generation=1),
    }


@pytest.mark.parametrize(
    "target", ["job/train", "jobs/train", "Job/train", "train-0", "pod/train-0", "computeclaim/job-train"]
)
def test_what_was_decided_is_told_again_by_whatever_name(written, target):
    wanted = job("train", devices=8, accelerator=A100)
    claim = claimed(cache_of(from_files([written()]), bundled_profiles()), wanted)
    later = pod("train-0", on="n1", annotations={GANG: "Job/default/train"}, labels={MANAGED: "true"})
    said = data(written(wanted, later, claim), target)
    assert (said["object"], said["source"], said["since"]) == ("Job/default/train", "recorded", AT)
    assert said["pods"] == [{"node": "n1", "devices": list(range(8))}]
    assert {one["node"] for one in said["nodes"]} == {"n0", "n2"}


def test_who_could_move_is_said_gang_by_gang(written):
    moving = {"gang": "Job/default/third", "devices": 3, "costDeviceSeconds": 552.0, "nodes": ["n1"]}
    reason = {"token": "room-by-moving", "subject": "train", "message": "train: fits if others move"}
    condition = {
        "type": "Routed",
        "status": "False",
        "reason": "GangFitsNowhere",
        "message": "",
        "lastTransitionTime": AT,
    }
    decision = {"reasons": [reason], "trust": "measured", "inputsDigest": "", "moves": [moving]}
    status = {"conditions": [condition], "decision": decision}
    claim = typed(
        kinds.COMPUTE_CLAIM, {"metadata": {"name": "job-train", "namespace": "default"}, "status": status}
    )
    said = data(written(job("train", devices=8, accelerator=A100), claim), "job/train")
    assert said["moves"] == [{"gang": "Job/default/third", "devices": 3, "cost_device_s": 552, "nodes": ["n1"]}]


@pytest.mark.parametrize(
    ("status", "where"),
    [
        (
            {"conditions": [{"type": "Routed", "status": "False"}], "decision": {"moves": [{"gang": "g"}]}},
            "moves[0]",
        ),
        ({"conditions": [{"type": "Routed", "status": "False"}], "nodes": [{"node": 3}]}, "status.nodes[0]"),
    ],
)
def test_a_claim_whose_status_is_none_is_named_with_the_field(written, capsys, status, where):
    metadata = {"name": "job-train", "namespace": "default"}
    claim = typed(kinds.COMPUTE_CLAIM, {"metadata": metadata, "status": status})
    assert run_cli(["kube", "why", "job/train", "--snapshot", str(written(job("train", devices=8), claim))]) == 2
    error = capsys.readouterr().err
    assert "ComputeClaim/default/job-train" in error
    assert where in error


def test_a_bare_pod_that_was_placed_says_where(written):
    index = cache_of(from_files([written()]), bundled_profiles()).index
    placement = decide(index, job_claim(read_job(job("x", devices=2)), {}), bundled_profiles()).choice
    placed = pod("bare", labels={MANAGED: "true"}, annotations={PLACEMENT: encode(placement)})
    said = data(written(placed), "bare")
    assert (said["source"], said["is_routed"], said["devices"]) == ("recorded", True, 2)
    assert said["pods"][0]["node"] == placement.pods[0].node


def test_a_pod_behind_the_gate_says_what_it_still_waits_for(written):
    waiting = Placement("pytorch-nvidia", (PodPlace("", ()),), 8, float("inf"), model=A100)
    said = {WAITING: encode(waiting), INJECTED: "pytorch-nvidia", COUNTED: f"{RESOURCE[A100]}=8"}
    gated = pod("gated", labels={MANAGED: "true"}, annotations=said, resource=RESOURCE[A100], count=8)
    taker = pod("taker", on="n1", resource=RESOURCE[A100], count=1)
    found = data(written(gated, taker), "gated")
    assert (found["source"], found["is_routed"]) == ("now", False)
    assert {one["node"]: one["reason"] for one in found["nodes"]} == {
        "n0": "devices-busy",
        "n1": "devices-busy",
        "n2": "no-profile",
    }


def test_a_job_that_runs_is_where_it_was_placed_though_its_claim_is_gone(written):
    """It was decided anew, beside its own pods: it would go to devices that it does not have."""
    where = Placement("pytorch-nvidia", (PodPlace("n1", (2, 3)),), 2, float("inf"), model=A100)
    runs = job("train", devices=2, suspend=False)
    runs["spec"]["template"]["metadata"] = {"annotations": {PLACEMENT: encode(where), GANG: "Job/default/train"}}
    said = data(written(runs), "job/train")
    assert (said["source"], said["pods"]) == ("recorded", [{"node": "n1", "devices": [2, 3]}])
    assert why(written(runs), "job/train").stdout.startswith("Job default/train goes\n  2x A100-SXM4-80GB")


def test_a_pod_that_another_scheduler_bound_is_not_placed_anew(written):
    """`would go` named devices of another node than the one it runs on."""
    said = data(written(), "p0")
    assert (said["source"], said["bound_to"], said["pods"]) == ("recorded", "n0", [])
    assert why(written(), "p0").stdout.splitlines()[0] == "Pod default/p0 is bound to n0"


def test_what_is_not_ours_is_said_not_to_be(written):
    answer = why(written(), "p0")
    assert "no label ai.compute/managed" in answer.stdout
    assert data(written(), "p0")["is_managed"] is False


def test_lines_fit_80_columns_and_many_nodes_are_counted(written):
    names = [f"ip-10-0-{i}-23.eu-west-1.compute.internal" for i in range(12)]
    many = [typed(kinds.NODE, node(name, B3)) for name in names]
    many += [typed(kinds.COMPUTE_NODE, devices(name, B3)) for name in names]
    wanted = job("train", pods=4, devices=8, accelerator=A100, substitution="never")
    lines = why(written(*many, wanted), "job/train").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "substitution-not-allowed, 13 nodes" in lines
    assert any("and 5 more" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "there is no Pod 'nobody' in namespace default"),
        (["job/trian"], "try: train, which is there"),
        (["job/train", "-n", "other"], "try: --namespace default"),
        (["deployment/x"], "is not a kind that strata places"),
        (["job/empty"], "asks for nothing: no amount of ours, no vendor's resource"),
    ],
)
def test_what_cannot_be_answered_is_the_users_to_correct(written, capsys, arguments, said):
    path = written(job("train", devices=1), job("empty"))
    assert run_cli(["kube", "why", *arguments, "--snapshot", path]) == 2
    assert said in capsys.readouterr().err


MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels: {ai.compute/managed: "true"}
  annotations: {ai.compute/devices: "4", ai.compute/accelerator: A100-SXM4-80GB, ai.compute/substitution: never}
spec:
  parallelism: 2
  completions: 2
  template:
    spec:
      containers: [{name: main, image: "i:1"}]
"""


@pytest.fixture
def manifest(tmp_path):
    def write(text: str = MANIFEST) -> str:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_job_is_asked_about_before_it_is_submitted(written, manifest):
    said = data(written(), "-f", manifest())
    assert (said["object"], said["source"], said["is_routed"]) == ("Job/default/train", "now", True)
    assert [pod["node"] for pod in said["pods"]] == ["n1", "n1"]
    elsewhere = MANIFEST.replace("name: train\n", "name: train\n  namespace: team-a\n")
    assert data(written(), "-f", manifest(elsewhere))["object"] == "Job/team-a/train"


def test_what_was_decided_of_a_job_of_that_name_is_not_asked(written, manifest):
    old = typed(kinds.JOB, job("train", pods=1, devices=1))
    condition = {"type": "Routed", "status": "False", "reason": "DevicesBusy"}
    status = {"conditions": [{**condition, "message": "", "lastTransitionTime": AT}]}
    owner = {"kind": "Job", "name": "train", "controller": True}
    claim = {"name": "job-train", "namespace": "default", "ownerReferences": [owner]}
    recorded = typed(kinds.COMPUTE_CLAIM, {"metadata": claim, "status": status})
    assert data(written(old, recorded), "job/train")["source"] == "recorded"
    assert data(written(old, recorded), "-f", manifest())["source"] == "now"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n", "creates no job and no pod"),
        (f"{MANIFEST}---\n{MANIFEST.partition('---')[2].replace('train', 'other')}", "creates 2 jobs and pods"),
        ("a: [\n", "job.yaml:2:1"),
        ("just text\n", "is not an object"),
        (
            MANIFEST.replace(
                "  template:\n", "  template:\n    metadata: {annotations: {ai.compute/devices: '2'}}\n"
            ),
            "contradicts",
        ),
        (
            MANIFEST.replace('"i:1"}', '"i:1", resources: {requests: {cpu: a lot}}}'),
            "spec.template.spec.containers[0].resources.requests.cpu: 'a lot' is not an amount",
        ),
        (
            MANIFEST.replace("parallelism: 2", "parallelism: two"),
            "parallelism: 'two' is not a number of pods",
        ),
        (MANIFEST.replace("completions: 2", "completions: -2"), "spec.completions: '-2' is not a number of pods"),
    ],
)
def test_a_file_that_cannot_be_asked_about_says_why(written, manifest, text, message, capsys):
    assert run_cli(["kube", "why", "-f", manifest(text), "--snapshot", written()]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [("acu",), ("why", "job/train")])
def test_nodes_with_accelerators_that_no_agent_reported_are_named(tmp_path, command):
    path = tmp_path / "cluster.json"
    bare = [each for each in BASE if each["kind"] != "ComputeNode"]
    path.write_text(json.dumps([*bare, job("train", devices=1)]))
    result = CliRunner().invoke(cli, ["kube", *command, "--snapshot", str(path)], catch_exceptions=False)
    assert (
        "warning: 3 nodes have accelerators but no ComputeNode, which strata's agent writes (docs/cluster.md); "
        "left out: n0, n1, n2\n"
    ) in result.stderr


def test_a_snapshot_without_nodes_is_not_silently_an_empty_cluster(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps([job("train")]))
    result = CliRunner().invoke(cli, ["kube", "acu", "--snapshot", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stderr == f"warning: {path} has no Node\n"
