"""The controller's step: jobs that wait are let go with their way, or told why not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from strata.cluster.api import jobs, kinds
from strata.cluster.api.actions import Action, Apply, Delete, Event, Patch
from strata.cluster.api.applier import Failure
from strata.cluster.api.crd.fields import MOST_BESIDE
from strata.cluster.api.jobs import at
from strata.cluster.api.kinds import annotations_of
from strata.cluster.api.placement_annotation import CHECKPOINT
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.controller.controller import CHECKPOINT_DIR, Controller
from strata.cluster.controller.release import OFFER
from tests.cluster import objects
from tests.cluster.admission.mutability import forbidden_template
from tests.cluster.builders import A100, B3, PROFILES
from tests.cluster.merge_patches import merged

STAMP = "2026-11-21T10:00:00Z"


class Cluster:
    """A book, and a controller whose patches come true at once."""

    def __init__(self, **nodes: str) -> None:
        self.cache, self.now_s = ClusterCache(PROFILES), 0.0
        self.done: list[Action] = []
        self.controller = Controller(self.cache, self.apply, timer=lambda: 0.0)
        self.objects: dict[tuple[str, str], Any] = {}
        for name, model in nodes.items():
            self.put(kinds.NODE, objects.node(name, model))
            self.put(kinds.COMPUTE_NODE, objects.devices(name, model))

    def put(self, kind: kinds.ObjectKind, obj: Any) -> None:
        self.objects[kind.kind, obj["metadata"]["name"]] = obj
        self.cache.changed(kind, obj)

    def step(self, *, after_s: float = 1.0) -> list[Action]:
        self.now_s += after_s
        self.done = []
        self.controller.cycle(self.now_s, stamp=STAMP)
        return self.done

    def apply(self, actions: Iterable[Action]) -> tuple[Failure, ...]:
        for action in actions:
            self.done.append(action)
            ref = action.ref
            if isinstance(action, Patch | Apply):
                new = {"metadata": {"name": ref.name, "namespace": ref.namespace}}
                self.put(ref.kind, merged(self.objects.get((ref.kind.kind, ref.name), new), action.body))
        return ()

    def job(self, name: str) -> Any:
        return self.objects["Job", name]

    def nodes(self, name: str) -> tuple[str, ...]:
        placement = jobs.job_placement(self.job(name))
        return placement.nodes if placement else ()


def events(actions: list[Action]) -> list[str]:
    return [action.reason for action in actions if isinstance(action, Event)]


def test_a_suspended_job_is_let_go_with_its_way_in_its_template() -> None:
    cluster = Cluster(n1=A100, a1=B3)
    before = objects.job("train", pods=2, devices=4, accelerator=A100)
    cluster.put(kinds.JOB, before)
    assert "GangPlaced" in events(cluster.step())
    after = cluster.job("train")
    assert not jobs.is_suspended(after)
    assert cluster.nodes("train") == ("n1",)
    spec = after["spec"]["template"]["spec"]
    terms = at(spec, ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"))
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n1"]
    assert not forbidden_template(before["spec"]["template"], after["spec"]["template"], server_minor=34)
    assert cluster.step() == []


def test_the_claim_of_a_job_says_what_was_decided_and_goes_with_it() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("train", devices=4))
    cluster.step()
    claim = cluster.objects["ComputeClaim", "job-train"]
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "uid-train"
    assert claim["spec"]["devices"] == 4
    assert claim["status"]["conditions"][0]["status"] == "True"
    assert claim["status"]["model"] == A100


def test_the_claim_of_a_gang_with_a_place_stays_small_among_hundreds_of_nodes_and_counts_the_rest() -> None:
    cluster = Cluster(**{f"n{i:03}": A100 for i in range(MOST_BESIDE + 20)})
    cluster.put(kinds.JOB, objects.job("train", pods=3, devices=8))
    cluster.put(kinds.JOB, objects.job("big", pods=1000, devices=8))
    cluster.step()
    status = cluster.objects["ComputeClaim", "job-train"]["status"]
    assert (len(status["nodes"]), status["nodesOmitted"]) == (MOST_BESIDE, 17)
    refused = cluster.objects["ComputeClaim", "job-big"]["status"]
    assert (len(refused["nodes"]), "nodesOmitted" in refused) == (MOST_BESIDE + 20, False)


def test_jobs_of_one_step_never_share_a_device_and_go_by_priority() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("late", devices=6))
    cluster.put(kinds.JOB, objects.job("first", devices=6, priority=5))
    cluster.put(kinds.JOB, objects.job("small", devices=2))
    cluster.step()
    assert [jobs.is_suspended(cluster.job(name)) for name in ("late", "first", "small")] == [True, False, False]


def test_a_gang_that_fits_nowhere_stays_and_every_node_has_its_reason() -> None:
    cluster = Cluster(n1=A100, n2=A100, a1=B3)
    cluster.put(kinds.JOB, objects.job("big", pods=4, devices=8, accelerator=A100, substitution="never"))
    assert events(cluster.step()) == ["GangFitsNowhere"]
    assert jobs.is_suspended(cluster.job("big"))
    status = cluster.objects["ComputeClaim", "job-big"]["status"]
    assert {verdict["node"] for verdict in status["nodes"]} == {"n1", "n2", "a1"}
    assert status["conditions"][0]["status"] == "False"
    assert status["conditions"][0]["reason"] == "GangFitsNowhere"


def test_a_job_of_no_pods_holds_nothing_and_goes_once_it_has_some() -> None:
    """Parallelism 0 was taken as 1: a device was held for a pod that nobody makes."""
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("idle", pods=0, devices=8))
    cluster.put(kinds.JOB, objects.job("train", devices=8))
    assert sorted(events(cluster.step())) == ["GangPlaced", "NoPods"]
    assert jobs.is_suspended(cluster.job("idle"))
    assert cluster.objects["ComputeClaim", "job-idle"]["status"]["nodes"] == []
    cluster.put(kinds.NODE, objects.node("n2"))
    cluster.put(kinds.COMPUTE_NODE, objects.devices("n2"))
    assert events(cluster.step(after_s=60.0)) == []
    cluster.put(kinds.JOB, merged(cluster.job("idle"), {"spec": {"parallelism": 1, "completions": 1}}))
    assert "GangPlaced" in events(cluster.step())


def test_a_job_that_is_scaled_to_no_pods_gives_its_places_to_others() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("train", devices=8))
    cluster.step()
    cluster.put(kinds.JOB, merged(cluster.job("train"), {"spec": {"parallelism": 0}}))
    cluster.put(kinds.JOB, objects.job("next", devices=8))
    assert "GangPlaced" in events(cluster.step(after_s=60.0))


def test_a_job_that_still_fits_nowhere_is_explained_now_and_then_and_said_once() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("big", pods=4, devices=8))
    cluster.step()
    assert cluster.step() == []
    assert events(cluster.step(after_s=60.0)) == []


def test_a_job_that_waits_goes_once_there_is_room() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("one", devices=8))
    cluster.put(kinds.JOB, objects.job("two", devices=8, priority=-1))
    cluster.step()
    assert jobs.is_suspended(cluster.job("two"))
    done = merged(cluster.job("one"), {"status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    cluster.put(kinds.JOB, done)
    cluster.step()
    assert not jobs.is_suspended(cluster.job("two"))


def test_a_job_lands_on_ascend_when_nvidia_is_full() -> None:
    cluster = Cluster(n1=A100, a1=B3)
    cluster.put(kinds.JOB, objects.job("first", devices=8, accelerator=A100))
    cluster.put(kinds.JOB, objects.job("second", devices=4, accelerator=A100, priority=-1))
    cluster.step()
    assert cluster.nodes("second") == ("a1",)
    placement = jobs.job_placement(cluster.job("second"))
    assert placement is not None
    assert placement.profile == "pytorch-ascend"


def test_a_job_that_wants_to_be_asked_is_offered_what_there_is_and_waits_for_its_word() -> None:
    cluster = Cluster(a1=B3)
    cluster.put(kinds.JOB, objects.job("train", devices=2, accelerator=A100, substitution="ask"))
    assert events(cluster.step()) == ["SubstitutionWanted"]
    job = cluster.job("train")
    assert jobs.is_suspended(job)
    assert B3 in annotations_of(job)[OFFER]
    assert (
        cluster.objects["ComputeClaim", "job-train"]["status"]["conditions"][0]["reason"] == "SubstitutionWanted"
    )
    cluster.put(kinds.JOB, merged(job, {"metadata": {"annotations": objects.asks(substitution="allow")}}))
    cluster.step()
    assert not jobs.is_suspended(cluster.job("train"))
    assert OFFER not in annotations_of(cluster.job("train"))


def test_a_job_may_name_a_claim_that_says_what_it_asks() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("train", claim="mine"))
    assert events(cluster.step()) == ["ClaimUnreadable"]
    spec = {"devices": 4}
    metadata = {"name": "mine", "namespace": "default"}
    cluster.put(kinds.COMPUTE_CLAIM, {"metadata": metadata, "spec": spec})
    cluster.step()
    assert cluster.nodes("train") == ("n1",)


def test_a_claim_nobody_can_read_is_told_once_and_leaves_the_others_alone() -> None:
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("odd", devices="many"))
    cluster.put(kinds.JOB, objects.job("fine", devices=1))
    assert sorted(events(cluster.step())) == ["ClaimUnreadable", "GangPlaced"]
    assert events(cluster.step()) == []


def test_a_job_that_ran_is_routed_anew_once_its_start_is_taken_back_and_its_pods_are_gone() -> None:
    cluster = Cluster(n1=A100, n2=A100)
    cluster.controller.checkpoint_of = lambda folder: f"{folder}/step-10"
    cluster.put(kinds.JOB, objects.job("train", pods=2, devices=4, checkpoint_dir="/data/train"))
    cluster.step()
    assert cluster.nodes("train") == ("n1",)
    held = merged(cluster.job("train"), {"spec": {"suspend": True}, "status": {"startTime": STAMP, "active": 2}})
    cluster.put(kinds.JOB, held)
    cluster.put(kinds.NODE, objects.node("n1", unschedulable=True))
    assert cluster.step() == []
    cluster.put(kinds.JOB, merged(held, {"status": {"active": 0}}))
    cluster.step()
    assert jobs.is_suspended(cluster.job("train"))
    cluster.step()
    assert cluster.nodes("train") == ("n2",)
    template = cluster.job("train")["spec"]["template"]
    assert annotations_of(template)[CHECKPOINT] == "/data/train/step-10"
    terms = at(template, ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"))
    assert [one["values"] for one in terms["nodeSelectorTerms"][0]["matchFields"]] == [["n2"]]
    assert CHECKPOINT_DIR in annotations_of(cluster.job("train"))


def test_a_job_somebody_else_manages_is_left_alone() -> None:
    cluster = Cluster(n1=A100)
    theirs = objects.job("theirs", devices=1)
    theirs["metadata"]["labels"] = {}
    cluster.put(kinds.JOB, theirs)
    assert cluster.step() == []


@pytest.mark.parametrize("is_owned", [True, False])
def test_a_pod_behind_the_gate_is_let_in_where_its_profile_fits_else_made_anew(is_owned: bool) -> None:
    from strata.cluster.api.placement_annotation import GANG, GATE, INJECTED, WAITING, encode
    from strata.cluster.scheduling.snapshot import Placement, PodPlace

    waiting = Placement("pytorch-nvidia", (PodPlace("", ()),), 2, 1e9, model=A100)
    annotations = objects.asks(devices=2) | {
        GANG: "Pod/default/u1",
        WAITING: encode(waiting),
        INJECTED: "pytorch-nvidia",
    }
    pod = objects.pod("web", annotations=annotations)
    pod["spec"]["schedulingGates"] = [{"name": GATE}, {"name": "others"}]
    if is_owned:
        pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    cluster = Cluster(a1=B3)
    cluster.put(kinds.POD, pod)
    assert not [one for one in cluster.step() if isinstance(one, Delete)]
    removed = [one for one in cluster.step(after_s=61.0) if isinstance(one, Delete)]
    assert bool(removed) is is_owned
    for kind, obj in ((kinds.NODE, objects.node("n1")), (kinds.COMPUTE_NODE, objects.devices("n1"))):
        cluster.put(kind, obj)
    cluster.step()
    let_in = cluster.objects["Pod", "web"]
    assert let_in["spec"]["schedulingGates"] == [{"name": "others"}]
    assert "n1" in annotations_of(let_in)["ai.compute/placement"]


@pytest.mark.parametrize("has_claim", [False, True])
def test_a_gated_pod_that_names_a_claim_is_made_anew_by_what_the_claim_says(has_claim: bool) -> None:
    from strata.cluster.api.placement_annotation import GATE, INJECTED, WAITING, encode
    from strata.cluster.scheduling.snapshot import Placement, PodPlace

    waits = Placement("pytorch-nvidia", (PodPlace("", ()),), 2, 1e9, model=A100)
    said = objects.asks(claim="ours") | {WAITING: encode(waits), INJECTED: "pytorch-nvidia"}
    pod = objects.pod("web", annotations=said)
    pod["spec"]["schedulingGates"] = [{"name": GATE}]
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    cluster = Cluster(a1=B3)
    cluster.put(kinds.POD, pod)
    if has_claim:
        head = {"apiVersion": "ai.compute/v1alpha1", "kind": "ComputeClaim"}
        cluster.put(
            kinds.COMPUTE_CLAIM,
            head | {"metadata": {"name": "ours", "namespace": "default"}, "spec": {"devices": 2}},
        )
    cluster.step()
    assert any(isinstance(one, Delete) for one in cluster.step(after_s=61.0)) is has_claim


@pytest.mark.parametrize("is_owned", [False, True])
def test_a_pod_whose_place_somebody_else_took_first_is_made_anew_where_there_is_room(is_owned: bool) -> None:
    from strata.cluster.api.placement_annotation import GANG, PLACEMENT, encode
    from strata.cluster.scheduling.snapshot import Placement, PodPlace

    cluster = Cluster(n1=A100)
    there = Placement("pytorch-nvidia", (PodPlace("n1", tuple(range(8))),), 8, 1e9, model=A100)
    said = objects.asks(devices=8) | {PLACEMENT: encode(there), GANG: "Pod/default/late"}
    pod = objects.pod("late", annotations=said)
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"] = {"phase": "Pending", "conditions": [refused]}
    if is_owned:
        pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    cluster.put(kinds.POD, objects.pod("first", on="n1", resource="nvidia.com/gpu", count=8))
    cluster.put(kinds.POD, pod)
    cluster.step()
    assert not cluster.step(after_s=61.0)
    cluster.put(kinds.NODE, objects.node("n2"))
    cluster.put(kinds.COMPUTE_NODE, objects.devices("n2"))
    assert not cluster.step()
    removed = [one for one in cluster.step(after_s=61.0) if isinstance(one, Delete)]
    assert [one.ref.name for one in removed] == (["late"] if is_owned else [])


def overtaken(cluster: Cluster, *names: str) -> None:
    """Let a job go to n1, where bare pods come first, so that its pods of these names stay unbound."""
    from strata.cluster.api.placement_annotation import GANG, PLACEMENT

    job = objects.job("train", pods=2, devices=4, accelerator=A100)
    cluster.put(kinds.JOB, job)
    cluster.step()
    said = annotations_of(cluster.job("train")["spec"]["template"])
    for name in names:
        pod = objects.pod(name, annotations={key: said[key] for key in (PLACEMENT, GANG) if key in said})
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"] = {"phase": "Pending", "conditions": [refused]}
        cluster.put(kinds.POD, pod)
    cluster.put(kinds.POD, objects.pod("first", on="n1", resource="nvidia.com/gpu", count=8))


def add_node(cluster: Cluster, name: str) -> None:
    cluster.put(kinds.NODE, objects.node(name))
    cluster.put(kinds.COMPUTE_NODE, objects.devices(name))


def test_a_job_whose_place_somebody_else_took_first_is_routed_anew_where_there_is_room() -> None:
    cluster = Cluster(n1=A100)
    overtaken(cluster, "train-0", "train-1")
    cluster.step()
    assert "PlacementLost" not in events(cluster.step(after_s=61.0))  # there is no room elsewhere
    add_node(cluster, "n2")
    assert "PlacementLost" in events(cluster.step(after_s=61.0))
    assert jobs.is_suspended(cluster.job("train"))
    for name in ("train-0", "train-1"):
        cluster.cache.changed(kinds.POD, cluster.objects["Pod", name], is_gone=True)
    assert "GangPlaced" in events(cluster.step())
    assert (jobs.is_suspended(cluster.job("train")), cluster.nodes("train")) == (False, ("n2",))


def test_a_job_of_which_a_pod_runs_keeps_its_place() -> None:
    from strata.cluster.api.placement_annotation import GANG, PLACEMENT

    cluster = Cluster(n1=A100)
    overtaken(cluster, "train-0")
    said = annotations_of(cluster.objects["Pod", "train-0"])
    cluster.put(
        kinds.POD, objects.pod("train-1", on="n1", annotations={key: said[key] for key in (PLACEMENT, GANG)})
    )
    add_node(cluster, "n2")
    cluster.step()
    assert "PlacementLost" not in events(cluster.step(after_s=61.0))


def test_pods_of_a_gang_that_nothing_numbers_get_each_place_once() -> None:
    from strata.cluster.api.placement_annotation import GANG, GATE, INJECTED, PLACEMENT, WAITING, decode, encode

    cluster = Cluster(n1=A100)
    words = {"vram": "60Gi", "fractional": "true", "accelerator": A100}
    cluster.put(kinds.JOB, objects.job("sweep", pods=2, **words))
    cluster.step()
    placement = jobs.job_placement(cluster.job("sweep"))
    assert placement is not None
    assert len(set(placement.pods)) == 2
    waits = replace(placement, pods=(replace(placement.pods[0], node="", devices=()),))
    said = {GANG: "Job/default/sweep", WAITING: encode(waits), INJECTED: placement.profile}

    def made(name: str, index: int) -> dict[str, Any]:
        number = {"batch.kubernetes.io/job-completion-index": str(index)}
        pod = objects.pod(name, annotations=objects.asks(**words) | said | number)
        pod["spec"]["schedulingGates"] = [{"name": GATE}]
        return pod

    def place(name: str) -> Any:
        text = annotations_of(cluster.objects["Pod", name]).get(PLACEMENT)
        return text and decode(text, where=name).pods[0]

    for number in range(3):
        cluster.put(kinds.POD, made(f"p{number}", number))
    for _ in range(3):
        cluster.step()
    assert {place("p0"), place("p1")} == set(placement.pods)
    assert not place("p2")
    cluster.put(kinds.POD, merged(cluster.objects["Pod", "p1"], {"status": {"phase": "Succeeded"}}))
    cluster.step()
    assert place("p2") == place("p1")


def test_a_job_goes_only_where_its_own_spec_lets_it_also_when_it_is_routed_anew() -> None:
    cluster = Cluster(n1=A100, n2=A100, n3=A100)
    for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "b")):
        node = objects.node(name, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
        node["metadata"]["labels"]["zone"] = zone
        cluster.put(kinds.NODE, node)
    job = objects.job("train", devices=8)
    job["spec"]["template"]["spec"] |= {
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
    }
    cluster.put(kinds.JOB, job)
    cluster.step()
    (first,) = cluster.nodes("train")
    assert first in ("n2", "n3")
    cluster.put(kinds.NODE, merged(cluster.objects["Node", first], {"spec": {"unschedulable": True}}))
    cluster.put(kinds.JOB, merged(cluster.job("train"), {"spec": {"suspend": True}}))
    cluster.step()
    assert cluster.nodes("train") == ({"n2": "n3", "n3": "n2"}[first],)


def test_a_job_without_a_toleration_is_told_of_the_taint() -> None:
    cluster = Cluster()
    cluster.put(kinds.NODE, objects.node("n1", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]))
    cluster.put(kinds.COMPUTE_NODE, objects.devices("n1"))
    cluster.put(kinds.JOB, objects.job("train", devices=1))
    cluster.step()
    status = cluster.objects["ComputeClaim", "job-train"]["status"]
    assert status["nodes"][0]["reason"] == "node-tainted"


def test_a_job_whose_cpus_no_node_has_free_waits_and_says_so_until_they_are():
    cluster = Cluster(n1=A100)
    cluster.put(kinds.POD, objects.pod("web", on="n1", requests={"cpu": "60"}))
    cluster.put(kinds.JOB, objects.job("train", devices=8, requests={"cpu": "8"}))
    cluster.step()
    assert cluster.job("train")["spec"]["suspend"] is True
    status = cluster.objects["ComputeClaim", "job-train"]["status"]
    (condition,) = status["conditions"]
    assert condition["reason"] == "GangFitsNowhere"
    assert "if a pod's request of 8 cpu is at most 4" in condition["message"]
    (said,) = status["nodes"]
    assert said["reason"] == "node-resources-busy"
    assert said["message"] == "cpu: a pod requests 8, but only 4 of 64 is left"
    cluster.cache.changed(kinds.POD, cluster.objects["Pod", "web"], is_gone=True)
    cluster.step()
    assert cluster.job("train")["spec"]["suspend"] is False


def test_jobs_of_one_cycle_do_not_share_cpus():
    cluster = Cluster(n1=A100)
    for name in ("a", "b"):
        cluster.put(kinds.JOB, objects.job(name, devices=2, requests={"cpu": "40"}))
    cluster.step()
    assert [cluster.job(name)["spec"]["suspend"] for name in ("a", "b")] == [False, True]
    cluster.step()
    assert cluster.job("b")["spec"]["suspend"] is True


@pytest.mark.parametrize("kind", [kinds.NODE, kinds.COMPUTE_NODE], ids=["node", "its-agent"])
@pytest.mark.parametrize("moment", range(4))
def test_a_node_that_vanishes_while_it_is_planned_for_ends_nothing(kind: kinds.ObjectKind, moment: int) -> None:
    """A job that was sent there waits like any whose pods cannot be bound, and one that was not gets its place."""
    cluster = Cluster(n1=A100, n2=A100)
    for name, pods in (("train", 2), ("small", 1)):
        cluster.put(kinds.JOB, objects.job(name, pods=pods, devices=8, accelerator=A100))
    vanish = Vanishing(lambda: cluster.cache.changed(kind, cluster.objects[kind.kind, "n1"], is_gone=True), moment)
    cluster.controller.lock = vanish
    cluster.step()
    cluster.step(after_s=61.0)
    assert vanish.has_happened
    left = {node.name for node in cluster.cache.index.nodes}
    assert left == {"n2"}
    placed = {name: cluster.nodes(name) for name in ("train", "small")}
    assert placed["train"] in ((), ("n1", "n2"))
    assert placed["small"] in ((), ("n1",), ("n2",))
    add_node(cluster, "n3")
    add_node(cluster, "n4")
    cluster.step(after_s=61.0)
    assert cluster.nodes("train")
    assert cluster.nodes("small")


class Vanishing:
    """A lock of the cache, before whose taking for the nth time something happens."""

    def __init__(self, do: Callable[[], None], at: int) -> None:
        self.do, self.left, self.has_happened = do, at, False

    def __enter__(self) -> None:
        if self.left == 0:
            self.do()
            self.has_happened = True
        self.left -= 1

    def __exit__(self, *error: object) -> None:
        pass


def test_who_came_meanwhile_is_released_before_all_others_are_told() -> None:
    world, now_s = Cluster(n1=A100, n2=A100, n3=A100), itertools.count(0.0, 0.2)
    world.controller.timer = lambda: next(now_s)
    for name in ("a", "b"):
        world.put(kinds.JOB, objects.job(name, devices=8))
    world.now_s += 1.0

    def told() -> list[str]:
        return [action.ref.name for action in world.done if isinstance(action, Event)]

    assert world.controller.cycle(world.now_s, stamp=STAMP), "there is more to do at once"
    assert told() == ["a"]
    world.put(kinds.JOB, objects.job("c", devices=8))
    world.done = []
    assert world.controller.cycle(world.now_s, stamp=STAMP)
    assert [action.ref.name for action in world.done if isinstance(action, Patch)] == ["c"]
    assert told() == ["b"]
    world.done = []
    world.controller.timer = lambda: 0.0
    assert not world.controller.cycle(world.now_s, stamp=STAMP)
    assert told() == ["c"]


def test_of_a_place_that_a_job_has_no_longer_nothing_is_told() -> None:
    world, now_s = Cluster(n1=A100, n2=A100), itertools.count(0.0, 0.2)
    world.controller.timer = lambda: next(now_s)
    for name in ("a", "b"):
        world.put(kinds.JOB, objects.job(name, devices=8))
    world.step()
    world.cache.changed(kinds.JOB, world.job("b"), is_gone=True)
    assert world.step() == []
