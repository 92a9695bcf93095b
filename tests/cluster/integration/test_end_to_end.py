"""Jobs from submission to bound pods, on a real control plane: webhook, controller and scheduler as processes."""

from __future__ import annotations

import itertools
import signal

import pytest

from strata.cli.main import run
from strata.cluster.api.kinds import COMPUTE_NODE, EVENT, JOB, LEASE, NODE, POD, annotations_of, meta
from strata.cluster.api.kinds import MUTATING_WEBHOOK as MUTATING
from strata.cluster.api.placement_annotation import PLACEMENT, decode
from strata.fleet import slices
from strata.fleet.schema import load_fleet
from tests.cluster import objects
from tests.cluster.builders import A100, B3
from tests.cluster.integration.strata_on_kubernetes import SYSTEM, Strata
from tests.slicing.contract import slices_from_environment
from tests.support.real_processes import until

OPTIONS = ("--drain", "all", "--isolate-at-most", "0.5", "--slow-window", "4", "--defragment")


@pytest.fixture(scope="module")
def strata(plane, api, tmp_path_factory):
    """strata with one webhook and one controller, and kube-scheduler and -controller-manager beside."""
    plane.controller_manager()
    folder = tmp_path_factory.mktemp("strata")
    (folder / "checkpoints").mkdir()
    with Strata(plane, api, folder) as made, plane.scheduler():
        made.checkpoints = folder / "checkpoints"
        made.webhook()
        made.main = made.controller(*OPTIONS, "--checkpoints", str(made.checkpoints))
        yield made
        assert made.main.end() == 0, made.main.log


@pytest.fixture
def three(strata, nodes):
    """Three nodes of two vendors."""
    strata.devices(nodes, "n1")
    strata.devices(nodes, "n2")
    strata.devices(nodes, "a1", B3)
    yield strata
    # Before their nodes go: the garbage collector would take those that the next test makes by the same names.
    for name in ("n1", "n2", "a1"):
        strata.api.delete(COMPUTE_NODE, name)


def env_of(pod):
    return {one["name"]: one.get("value") for one in pod["spec"]["containers"][0].get("env") or ()}


def saved(strata, namespace):
    """A folder of a job with two checkpoints, of which the newer is half written."""
    folder = strata.checkpoints / namespace
    for step in (100, 200):
        (folder / f"step-{step}").mkdir(parents=True)
        (folder / f"step-{step}" / "model.pt").write_bytes(b"weights")
    (folder / "step-100" / ".complete").touch()
    return folder


def moved_to(strata, namespace, node, job):
    """Return the job's pod once it runs on a node."""

    def found():
        pods, _ = strata.api.list(POD, namespace=namespace, labels=f"batch.kubernetes.io/job-name={job}")
        alive = [one for one in pods if not meta(one).get("deletionTimestamp")]
        return next((one for one in alive if one["spec"].get("nodeName") == node), None)

    return until(found, lambda: str(strata.said(namespace, job)) + strata.main.log)


def placement_of(pod):
    return decode(annotations_of(pod)[PLACEMENT], where="pod")


def limits_of(pod):
    return pod["spec"]["containers"][0]["resources"]["limits"]


def test_of_two_controllers_one_leads_and_the_other_takes_over_when_it_is_killed(three, namespace):
    def holder():
        return (three.api.get(LEASE, "strata-controller", SYSTEM) or {}).get("spec", {}).get("holderIdentity")

    before = holder()
    second = three.controller("--identity", "second")
    assert holder() == before
    three.main.end(signal.SIGKILL)
    until(lambda: holder() == "second", lambda: second.log)
    three.submit(namespace, objects.job("after", devices=1))
    three.pods(namespace, "after")
    three.main = three.controller(*OPTIONS, "--checkpoints", str(three.checkpoints))
    assert second.end() == 0
    until(lambda: holder() not in ("second", ""), lambda: three.main.log)


def test_a_job_lands_on_nvidia_while_there_is_room_and_then_on_ascend_with_all_it_needs_there(three, namespace):
    three.submit(namespace, objects.job("first", pods=2, devices=8, accelerator=A100))
    first = three.pods(namespace, "first")
    assert {pod["spec"]["nodeName"] for pod in first} == {"n1", "n2"}
    for pod in first:
        assert limits_of(pod) == {"nvidia.com/gpu": "8"}
        assert pod["spec"]["containers"][0]["image"].startswith("pytorch/pytorch:")
        assert "ASCEND_VISIBLE_DEVICES" not in env_of(pod)
    # A card of 80 GB is two of 64, where memory is what counts.
    three.submit(namespace, objects.job("second", pods=2, devices=1, accelerator=A100, norm="memory"))
    second = three.pods(namespace, "second")
    assert {pod["spec"]["nodeName"] for pod in second} == {"a1"}
    seen = set()
    for pod in second:
        assert limits_of(pod) == {"huawei.com/Ascend910": "2"}
        assert "torch-npu" in pod["spec"]["containers"][0]["image"]
        assert env_of(pod)["LD_LIBRARY_PATH"].startswith("/usr/local/Ascend/driver")
        mounts = {one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
        assert "/usr/local/Ascend/driver" in mounts
        assert "ASCEND_VISIBLE_DEVICES" not in env_of(pod), "a device plugin says which"
        seen |= {device for place in placement_of(pod).pods for device in place.devices}
    assert len(seen) == 4, "each pod has two devices of its own"
    status = three.claim(namespace, "second")["status"]
    assert "2x" in status["conditions"][0]["message"] or "2 " in status["conditions"][0]["message"]


def test_what_is_there_is_a_fleet_that_says_what_is_free(three, plane, namespace, nodes, tmp_path, capsys):
    three.submit(namespace, objects.job("train", devices=5, accelerator=A100))
    three.pods(namespace, "train")
    nodes.add(
        "bare", allocatable={"nvidia.com/gpu": 4}, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    )
    wrong = {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}}
    three.api.patch(NODE, "n2", body=wrong)
    assert run(["fleet", "discover", "--kube", "test", "--kubeconfig", str(plane.kubeconfig())]) == 0
    out, error = capsys.readouterr()
    (tmp_path / "fleet.yaml").write_text(out)
    counts = {
        domain.accelerator.name: (domain.num_devices, domain.num_free_devices)
        for domain in load_fleet(tmp_path / "fleet.yaml").domains
    }
    assert counts == {A100: (16, 11), B3: (8, 8), "H100-SXM5-80GB": (4, 4)}
    assert "n2: label nvidia.com/gpu.product says A100-SXM4-40GB, the agent A100-SXM4-80GB" in error


def test_a_gang_that_fits_nowhere_stays_suspended_with_reasons_on_every_node(three, namespace):
    three.submit(namespace, objects.job("big", pods=5, devices=8, accelerator=A100, substitution="never"))
    until(lambda: three.routed(namespace, "big") == "GangFitsNowhere", lambda: str(three.said(namespace, "big")))
    assert three.job(namespace, "big")["spec"]["suspend"] is True
    said = {one["node"]: one["reason"] for one in three.claim(namespace, "big")["status"]["nodes"]}
    assert said == {"n1": "room-for-fewer", "n2": "room-for-fewer", "a1": "substitution-not-allowed"}
    events, _ = three.api.list(EVENT, namespace=namespace)
    assert "GangFitsNowhere" in {one["reason"] for one in events}


def test_a_job_that_wants_to_be_asked_waits_for_its_word(three, namespace):
    three.submit(namespace, objects.job("first", pods=2, devices=8, accelerator=A100))
    three.pods(namespace, "first")
    three.submit(namespace, objects.job("asked", devices=4, accelerator=A100, substitution="ask"))
    until(
        lambda: three.routed(namespace, "asked") == "SubstitutionWanted",
        lambda: str(three.said(namespace, "asked")),
    )
    until(
        lambda: B3 in annotations_of(three.job(namespace, "asked")).get("ai.compute/offer", ""), lambda: "an offer"
    )
    three.api.patch(
        JOB, "asked", namespace, body={"metadata": {"annotations": objects.asks(substitution="allow")}}
    )
    assert three.pods(namespace, "asked")[0]["spec"]["nodeName"] == "a1"


def test_a_fraction_of_an_ascend_card_has_its_memory_limit_injected(three, namespace):
    """The seed's own demonstration: one PyTorch job, routed to Ascend, its memory limit in its environment."""
    words = {"vram": "16Gi", "fractional": "true", "framework": "pytorch", "accelerator": B3}
    three.submit(namespace, objects.job("small", **words))
    (pod,) = three.pods(namespace, "small")
    assert pod["spec"]["nodeName"] == "a1"
    env = env_of(pod)
    limits = slices_from_environment({k: v or "" for k, v in env.items()}, devices=1)
    assert limits[0].memory_bytes == 16 * 2**30
    assert slices.LIBRARY in env[slices.PRELOAD]
    assert env["ASCEND_VISIBLE_DEVICES"].isdigit()
    assert "huawei.com/Ascend910" not in (pod["spec"]["containers"][0].get("resources") or {}).get("limits", {})


def test_bare_pods_are_placed_at_once_or_wait_behind_a_gate_until_there_is_room(three, namespace):
    def pod(name):
        made = objects.pod(
            name,
            labels={"ai.compute/managed": "true"},
            annotations=objects.asks(devices=8, accelerator=A100, substitution="never"),
        )
        made["metadata"].pop("uid")
        made["metadata"]["namespace"] = namespace
        return made

    for name in ("p1", "p2", "p3"):
        three.api.create(POD, pod(name))

    def node(name):
        return three.api.get(POD, name, namespace)["spec"].get("nodeName")

    until(lambda: {node("p1"), node("p2")} == {"n1", "n2"}, lambda: str(three.api.get(POD, "p1", namespace)))
    waiting = three.api.get(POD, "p3", namespace)
    assert [one["name"] for one in waiting["spec"]["schedulingGates"]] == ["ai.compute/room"]
    assert waiting["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    freed = node("p1")
    three.api.delete(POD, "p1", namespace)
    until(lambda: node("p3") == freed, lambda: str(three.api.get(POD, "p3", namespace)))
    visible = annotations_of(three.api.get(POD, "p3", namespace))["ai.compute/visible"]
    assert len(visible.split(",")) == 8


def test_a_dry_run_leaves_nothing_behind(three, plane, namespace):
    annotations = objects.asks(devices=8, accelerator=A100, substitution="never")
    for _ in range(5):
        dry = objects.pod("dry", labels={"ai.compute/managed": "true"}, annotations=annotations)
        dry["metadata"] = {**dry["metadata"], "namespace": namespace}
        made = three.api.create(POD, dry, is_dry_run=True)
        assert "schedulingGates" not in made["spec"]


def test_a_faulty_node_is_tainted_and_its_job_goes_on_elsewhere_from_its_checkpoint(three, namespace):
    folder = saved(three, namespace)
    three.submit(namespace, objects.job("train", devices=8, accelerator=A100, checkpoint_dir=str(folder)))
    (pod,) = three.pods(namespace, "train")
    first = pod["spec"]["nodeName"]
    three.found(first, sick=(3,))
    until(lambda: three.taints(first), lambda: three.main.log)
    (taint,) = three.taints(first)
    assert (taint["key"], taint["effect"]) == ("ai.compute/unhealthy", "NoSchedule")
    again = moved_to(three, namespace, {"n1": "n2", "n2": "n1"}[first], "train")
    assert env_of(again)["STRATA_CHECKPOINT"] == str(folder / "step-100")
    assert three.routed(namespace, "train") == "GangPlaced"


def test_a_job_moves_on_from_its_checkpoint_so_that_another_has_a_whole_node(three, namespace):
    folder = saved(three, namespace)
    own = {"accelerator": A100, "substitution": "never"}
    may_move = {**own, "preemptible": "true", "checkpoint_dir": str(folder)}
    for name, devices, words in (("half", 4, own), ("over", 4, own), ("third", 3, may_move)):
        three.submit(namespace, objects.job(name, devices=devices, **words))
        (pod,) = three.pods(namespace, name)
    second = pod["spec"]["nodeName"]
    three.api.delete(JOB, "over", namespace)
    until(lambda: not three.job(namespace, "over"), lambda: "the job that filled the first node to go")
    three.submit(namespace, objects.job("whole", devices=8, **own))
    (whole,) = three.pods(namespace, "whole")
    assert whole["spec"]["nodeName"] == second
    again = moved_to(three, namespace, {"n1": "n2", "n2": "n1"}[second], "third")
    assert env_of(again)["STRATA_CHECKPOINT"] == str(folder / "step-100")
    (told,) = [
        event["note"]
        for event in three.api.list(EVENT, namespace=namespace)[0]
        if event["reason"] == "MovedForAnother"
    ]
    assert f"Job/{namespace}/whole fits once it has moved" in told


def test_a_node_that_turned_slow_is_tainted_and_its_job_comes_back_elsewhere(three, namespace):
    folder = saved(three, namespace)
    three.submit(namespace, objects.job("train", devices=8, accelerator=A100, checkpoint_dir=str(folder)))
    (pod,) = three.pods(namespace, "train")
    first = pod["spec"]["nodeName"]
    second = {"n1": "n2", "n2": "n1"}[first]
    beat = itertools.count()

    def is_tainted():
        at_s = next(beat)
        three.found(first, rates={0: 200e12, 5: 110e12}, rate=200e12, rate_at_s=at_s)
        three.found(second, rate=200e12, rate_at_s=at_s)
        return three.taints(first)

    (taint,) = until(is_tainted, lambda: three.main.log)
    assert taint["value"].startswith("slow")
    assert not three.taints(second)
    again = moved_to(three, namespace, second, "train")
    assert env_of(again)["STRATA_CHECKPOINT"] == str(folder / "step-100")


def test_without_the_webhook_pods_of_ours_are_refused_and_others_are_not(three, plane, namespace, nodes):
    status, hook = plane.ask(
        "GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/strata-webhook"
    )
    assert status == 200
    urls = [one["clientConfig"]["url"] for one in hook["webhooks"]]
    try:
        for one in hook["webhooks"]:
            one["clientConfig"]["url"] = "https://127.0.0.1:9/mutate"
        three.api.replace(MUTATING, hook)
        ours = objects.pod("ours", labels={"ai.compute/managed": "true"}, annotations=objects.asks(devices=1))
        path = f"/api/v1/namespaces/{namespace}/pods"

        def asked(pod):
            body = {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
            return plane.ask("POST", path, body)[0]

        until(lambda: asked(ours) == 500, lambda: "pods of ours to be refused")
        assert asked(objects.pod("theirs")) == 201
    finally:
        hook = plane.ask(
            "GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/strata-webhook"
        )[1]
        for one, url in zip(hook["webhooks"], urls, strict=True):
            one["clientConfig"]["url"] = url
        three.api.replace(MUTATING, hook)
