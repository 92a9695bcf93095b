"""The book: objects in, an index out, whatever the order."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api import kinds
from strata.cluster.api.crd.runtime_profile import profile_object
from strata.cluster.api.placement_annotation import GANG, PLACEMENT, encode
from strata.cluster.cache import cache as cache_module
from strata.cluster.cache import gangs
from strata.cluster.cache.allocation import uses_of
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.scheduling.host import PodRequests
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES
from tests.support.laws import examples


def placement(*places: tuple[str, tuple[int, ...]], memory: float | None = None, share: float = 0.0) -> Placement:
    pods = tuple(PodPlace(node, devices, memory) for node, devices in places)
    cores = None if memory is None else share
    return Placement("pytorch-nvidia", pods, len(places[0][1]), 1e9, model=A100, cores_share=cores)


def placed_job(name: str, where: Placement, **more: Any) -> dict[str, Any]:
    obj = objects.job(name, pods=len(where.pods), devices=where.devices_per_pod, suspend=False, **more)
    annotations = {PLACEMENT: encode(where), GANG: f"Job/default/{name}"}
    obj["spec"]["template"]["metadata"] = {"annotations": annotations}
    return obj


def placed_pod(
    name: str, where: Placement, gang: str, *, index: int | None = None, on: str = ""
) -> dict[str, Any]:
    annotations = {PLACEMENT: encode(where), GANG: gang}
    if index is not None:
        annotations["batch.kubernetes.io/job-completion-index"] = str(index)
    resources: dict[str, Any] = {"resource": "nvidia.com/gpu", "count": where.devices_per_pod}
    return objects.pod(name, on=on, annotations=annotations, **resources)


@pytest.fixture
def cache() -> ClusterCache:
    cache = ClusterCache(PROFILES)
    for name, model in (("n1", A100), ("n2", A100), ("a1", B3)):
        cache.changed(kinds.NODE, objects.node(name, model))
        cache.changed(kinds.COMPUTE_NODE, objects.devices(name, model))
    return cache


def free(cache: ClusterCache, node: str) -> list[int]:
    """The devices of a node nobody uses any part of."""
    state = cache.index.nodes[cache.index.node_number[node]]
    return [i for i, share in enumerate(state.free_share) if share == 1.0 and state.free_bytes[i] > 0]


def test_a_node_is_there_once_both_its_objects_are(cache: ClusterCache) -> None:
    assert [node.name for node in cache.index.nodes] == ["a1", "n1", "n2"]
    cache.changed(kinds.NODE, objects.node("n3"))
    assert "n3" not in cache.index.node_number
    cache.changed(kinds.COMPUTE_NODE, objects.devices("n3"))
    assert "n3" in cache.index.node_number
    cache.changed(kinds.NODE, objects.node("n3"), is_gone=True)
    assert "n3" not in cache.index.node_number


def test_a_job_that_was_let_go_holds_its_places_before_it_has_pods(cache: ClusterCache) -> None:
    where = placement(("n1", (0, 1)), ("n2", (2, 3)))
    cache.changed(kinds.JOB, placed_job("train", where))
    assert free(cache, "n1") == [2, 3, 4, 5, 6, 7]
    assert free(cache, "n2") == [0, 1, 4, 5, 6, 7]


def test_a_job_and_its_pods_hold_devices_once(cache: ClusterCache) -> None:
    where = placement(("n1", (0, 1)), ("n2", (2, 3)))
    cache.changed(kinds.JOB, placed_job("train", where))
    for index, node in ((0, "n1"), (1, "n2")):
        pod = placed_pod(f"train-{index}", where, "Job/default/train", index=index, on=node)
        cache.changed(kinds.POD, pod)
    assert free(cache, "n1") == [2, 3, 4, 5, 6, 7]
    assert free(cache, "n2") == [0, 1, 4, 5, 6, 7]


def test_pods_of_a_job_that_is_gone_hold_their_devices_until_they_are_gone_too(cache: ClusterCache) -> None:
    where = placement(("n1", (0, 1)))
    job, pod = placed_job("train", where), placed_pod("train-0", where, "Job/default/train", index=0, on="n1")
    cache.changed(kinds.JOB, job)
    cache.changed(kinds.POD, pod)
    cache.changed(kinds.JOB, job, is_gone=True)
    assert free(cache, "n1") == [2, 3, 4, 5, 6, 7]
    cache.changed(kinds.POD, pod, is_gone=True)
    assert len(free(cache, "n1")) == 8
    assert not cache.gangs.placements


def test_a_pod_that_is_over_holds_nothing(cache: ClusterCache) -> None:
    where = placement(("n1", (0,)))
    pod = placed_pod("one", where, "Pod/default/one", on="n1")
    cache.changed(kinds.POD, pod)
    assert free(cache, "n1") == [1, 2, 3, 4, 5, 6, 7]
    cache.changed(kinds.POD, {**pod, "status": {"phase": "Succeeded"}})
    assert len(free(cache, "n1")) == 8


def test_pods_hold_the_devices_the_kubelet_gave_them(cache: ClusterCache) -> None:
    """NVIDIA's plugin gave a pod GPUs 4, 5 and 6, and a job was placed on 4 to 7 (a real kubelet's hour)."""
    other = objects.pod("other", on="n1", resource="nvidia.com/gpu", count=3)
    cache.changed(kinds.POD, other)
    assert free(cache, "n1") == [3, 4, 5, 6, 7]
    cache.changed(kinds.POD, objects.allocated(other, "n1-4", "n1-5", "n1-6"))
    assert free(cache, "n1") == [0, 1, 2, 3, 7]


def test_where_its_status_is_silent_a_pod_holds_what_the_kubelet_told_our_agent(cache: ClusterCache) -> None:
    other = objects.pod("other", on="n1", resource="nvidia.com/gpu", count=2)
    cache.changed(kinds.POD, other)
    cache.changed(kinds.COMPUTE_NODE, objects.devices("n1", held={"default/other": ["n1-4", "n1-5"]}))
    assert free(cache, "n1") == [0, 1, 2, 3, 6, 7]
    cache.changed(kinds.POD, objects.allocated(other, "n1-6", "n1-7"))
    assert free(cache, "n1") == [0, 1, 2, 3, 4, 5], "the agent asks now and then: the status is newer"
    cache.changed(kinds.POD, other)
    cache.changed(kinds.COMPUTE_NODE, objects.devices("n1"))
    assert free(cache, "n1") == [2, 3, 4, 5, 6, 7]


def test_a_kubelet_tells_of_its_own_pods_only(cache: ClusterCache) -> None:
    cache.changed(kinds.POD, objects.pod("other", on="n2", resource="nvidia.com/gpu", count=2))
    cache.changed(
        kinds.COMPUTE_NODE, objects.devices("n1", held={"default/other": ["n1-4"], "default/gone": ["n1-5"]})
    )
    assert len(free(cache, "n1")) == 8
    assert len(free(cache, "n2")) == 6


def test_a_pod_of_ours_holds_what_it_was_given_and_not_what_it_was_meant_to(cache: ClusterCache) -> None:
    where = placement(("n1", (0, 1)))
    cache.changed(kinds.JOB, placed_job("train", where))
    pod = placed_pod("train-0", where, "Job/default/train", index=0, on="n1")
    assert cache.holds() == {"Job/default/train": {"n1": {0, 1}}}
    cache.changed(kinds.POD, objects.allocated(pod, "n1-6", "n1-7"))
    assert free(cache, "n1") == [0, 1, 2, 3, 4, 5]
    assert cache.holds() == {"Job/default/train": {"n1": {6, 7}}}, "healing moves who has the broken device"


def test_a_place_whose_devices_went_to_another_still_counts(cache: ClusterCache) -> None:
    where = placement(("n1", (4, 5, 6, 7)))
    cache.changed(kinds.JOB, placed_job("train", where))
    other = objects.pod("other", on="n1", resource="nvidia.com/gpu", count=3)
    cache.changed(kinds.POD, objects.allocated(other, "n1-4", "n1-5", "n1-6"))
    assert len(free(cache, "n1")) == 8 - 3 - 4


@pytest.mark.parametrize("ids", [("GPU-of-another-node",), ("n1-4", "GPU-of-another-node")])
def test_devices_nobody_knows_count_as_many_as_were_asked_for(cache: ClusterCache, ids: tuple[str, ...]) -> None:
    other = objects.pod("other", on="n1", resource="nvidia.com/gpu", count=2)
    cache.changed(kinds.POD, objects.allocated(other, *ids))
    assert free(cache, "n1") == [2, 3, 4, 5, 6, 7]


def test_pods_of_others_hold_as_many_devices_as_they_ask_for(cache: ClusterCache) -> None:
    cache.changed(kinds.POD, objects.pod("theirs", on="n1", resource="nvidia.com/gpu", count=3))
    assert len(free(cache, "n1")) == 5
    assert len(free(cache, "n2")) == 8


def test_what_runs_before_the_containers_takes_turns_with_them(cache: ClusterCache) -> None:
    pod = objects.pod("theirs", on="n1", resource="nvidia.com/gpu", count=2)
    first = {"name": "first", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
    cache.changed(kinds.POD, {**pod, "spec": {**pod["spec"], "initContainers": [first, first]}})
    assert len(free(cache, "n1")) == 5
    pod["spec"]["containers"] *= 2
    cache.changed(kinds.POD, pod)
    assert len(free(cache, "n1")) == 4


def test_pods_of_others_are_on_devices_that_nobody_else_holds_a_part_of(cache: ClusterCache) -> None:
    part = placement(("n1", (0,)), memory=2.0**30, share=0.1)
    annotations = {PLACEMENT: encode(part), GANG: "Pod/default/part"}
    cache.changed(kinds.POD, objects.pod("part", on="n1", annotations=annotations))
    cache.changed(kinds.POD, objects.pod("theirs", on="n1", resource="nvidia.com/gpu", count=3))
    assert free(cache, "n1") == [4, 5, 6, 7]


def test_a_profile_that_changes_may_let_in_what_did_not_fit(cache: ClusterCache) -> None:
    kept = profile_object(PROFILES[0])
    cache.changed(kinds.RUNTIME_PROFILE, kept)
    assert cache.index
    before = cache.grown
    cache.changed(kinds.RUNTIME_PROFILE, kept)
    assert cache.grown == before
    cache.changed(kinds.RUNTIME_PROFILE, profile_object(replace(PROFILES[0], image="another:1")))
    assert cache.grown > before


def test_devices_the_plugin_does_not_offer_are_not_free(cache: ClusterCache) -> None:
    cache.changed(kinds.NODE, objects.node("n1", allocatable=6))
    assert len(free(cache, "n1")) == 6


def withheld(cache: ClusterCache, node: str) -> frozenset[int]:
    return cache.index.nodes[cache.index.node_number[node]].withheld


def test_a_broken_device_is_the_one_its_plugin_does_not_offer(cache: ClusterCache) -> None:
    """The first device was taken for it beside the broken one: a node of eight had room for six."""
    cache.changed(kinds.COMPUTE_NODE, objects.devices("n1", sick=(5,)))
    cache.changed(kinds.NODE, objects.node("n1", allocatable=7))
    assert free(cache, "n1") == [0, 1, 2, 3, 4, 6, 7]
    assert withheld(cache, "n1") == {5}


def test_what_pods_hold_is_not_withheld_where_the_plugin_offers_less_than_they_have(cache: ClusterCache) -> None:
    cache.changed(kinds.POD, objects.pod("a", on="n1", resource="nvidia.com/gpu", count=4))
    cache.changed(kinds.NODE, objects.node("n1", allocatable=2))
    assert free(cache, "n1") == []
    assert len(withheld(cache, "n1")) == 4


def test_a_fraction_takes_its_share_of_one_device(cache: ClusterCache) -> None:
    gib = 2.0**30
    where = placement(("n1", (3,)), memory=16 * gib, share=0.25)
    pod = objects.pod("part", on="n1", annotations={PLACEMENT: encode(where), GANG: "Pod/default/part"})
    cache.changed(kinds.POD, pod)
    state = cache.index.nodes[cache.index.node_number["n1"]]
    assert state.free_bytes[3] == state.fingerprint.devices[3].memory_bytes - 16 * gib
    assert state.free_share[3] == 0.75


def test_what_is_assumed_is_held_until_it_shows_or_its_time_is_up(cache: ClusterCache) -> None:
    where = placement(("n1", tuple(range(8))))
    cache.gangs.assume("Job/default/train", where, until_s=10.0)
    assert free(cache, "n1") == []
    cache.gangs.expire(9.9)
    assert free(cache, "n1") == []
    cache.changed(kinds.JOB, placed_job("train", where))
    cache.gangs.expire(11.0)
    assert free(cache, "n1") == []
    cache.gangs.assume("Job/default/other", placement(("n2", (0,))), until_s=20.0)
    cache.gangs.expire(20.0)
    assert len(free(cache, "n2")) == 8


def test_a_suspended_job_holds_nothing_but_its_pods_do(cache: ClusterCache) -> None:
    where = placement(("n1", (0, 1)))
    cache.changed(kinds.JOB, placed_job("train", where))
    cache.changed(kinds.POD, placed_pod("train-0", where, "Job/default/train", index=0, on="n1"))
    held = copy.deepcopy(placed_job("train", where))
    held["spec"]["suspend"] = True
    cache.changed(kinds.JOB, held)
    assert free(cache, "n1") == [2, 3, 4, 5, 6, 7]
    cache.listed(kinds.POD, [])
    assert len(free(cache, "n1")) == 8


def test_an_object_that_cannot_be_read_is_noted_and_absent(cache: ClusterCache) -> None:
    bad = objects.devices("n1")
    bad["status"]["devices"][0]["memoryBytes"] = float("nan")
    cache.changed(kinds.COMPUTE_NODE, bad)
    assert "n1" not in cache.index.node_number
    assert "status.devices[0].memoryBytes" in cache.faults["ComputeNode/n1"]
    cache.changed(kinds.COMPUTE_NODE, objects.devices("n1"))
    assert not cache.faults
    assert "n1" in cache.index.node_number


def test_a_placement_that_somebody_wrote_by_hand_is_no_reason_to_fail(cache: ClusterCache) -> None:
    pod = objects.pod("odd", on="n1", resource="nvidia.com/gpu", count=2, annotations={PLACEMENT: "{"})
    cache.changed(kinds.POD, pod)
    assert len(free(cache, "n1")) == 6


def test_taints_and_cordons_come_through(cache: ClusterCache) -> None:
    taints = [{"key": "ai.compute/unhealthy", "value": "xid-79", "effect": "NoSchedule"}]
    cache.changed(kinds.NODE, objects.node("n1", unschedulable=True, taints=taints))
    state = cache.index.nodes[cache.index.node_number["n1"]]
    assert not state.is_schedulable
    assert state.taints == ("ai.compute/unhealthy=xid-79:NoSchedule",)


def same(a: Index, b: Index) -> bool:
    return a.nodes == b.nodes and bool((a.free_bytes == b.free_bytes).all() and (a.is_open == b.is_open).all())


WHERE = [placement(("n1", (0, 1)), ("n2", (2, 3))), placement(("n2", (0, 1)), ("n2", (2, 3)))]
EVENTS = (
    [("job", s, w) for s in (True, False) for w in (0, 1)]
    + [("pod", i, n, w) for i in (0, 1, None) for n in ("n1", "n2", "") for w in (0, 1)]
    + [("no job",), ("no pod", 0), ("no pod", 1), ("no pod", None), ("cordon", "n1"), ("node", "n1")]
    + [("gone", "n2"), ("node", "n2"), ("theirs", "n1"), ("sick", "n2")]
)


@examples(60)
@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_a_book_kept_up_to_date_is_the_book_of_what_is_there_now(events: list[tuple[Any, ...]]) -> None:
    cache = ClusterCache(PROFILES)
    now: dict[kinds.ObjectKind, dict[str, Any]] = {
        kinds.NODE: {},
        kinds.COMPUTE_NODE: {},
        kinds.POD: {},
        kinds.JOB: {},
    }

    def put(kind: kinds.ObjectKind, name: str, obj: Any) -> None:
        if obj is None:
            if old := now[kind].pop(name, None):
                cache.changed(kind, old, is_gone=True)
        else:
            now[kind][name] = obj
            cache.changed(kind, obj)
        assert cache.index is not None

    for name in ("n1", "n2"):
        put(kinds.COMPUTE_NODE, name, objects.devices(name, count=4))
        put(kinds.NODE, name, objects.node(name, count=4))
    for what, *more in events:
        if what == "job":
            held, w = more
            obj = placed_job("train", WHERE[w])
            obj["spec"]["suspend"] = held
            put(kinds.JOB, "train", obj)
        elif what == "pod":
            index, on, w = more
            put(kinds.POD, f"p{index}", placed_pod(f"p{index}", WHERE[w], "Job/default/train", index=index, on=on))
        elif what == "no job":
            put(kinds.JOB, "train", None)
        elif what == "no pod":
            put(kinds.POD, f"p{more[0]}", None)
        elif what == "theirs":
            put(kinds.POD, "theirs", objects.pod("theirs", on=more[0], resource="nvidia.com/gpu", count=1))
        elif what == "sick":
            put(kinds.COMPUTE_NODE, more[0], objects.devices(more[0], count=4, sick=(1,)))
        elif what == "gone":
            put(kinds.NODE, more[0], None)
        else:
            put(kinds.NODE, more[0], objects.node(more[0], count=4, unschedulable=what == "cordon"))
    fresh = ClusterCache(PROFILES)
    for kind in (kinds.JOB, kinds.POD, kinds.COMPUTE_NODE, kinds.NODE):
        fresh.listed(kind, list(now[kind].values()))
    assert same(cache.index, fresh.index)
    assert cache.gangs.placements == fresh.gangs.placements


# What pods request of their node


def requested(cache: ClusterCache, node: str) -> dict[str, int]:
    state = cache.index.nodes[cache.index.node_number[node]]
    return {name: amount for name, amount in state.requested.amounts.items() if amount}


def test_every_pod_on_a_node_counts_until_it_is_over_whoever_s_it_is(cache):
    cache.changed(kinds.POD, objects.pod("web", on="n1", requests={"cpu": "2", "memory": "1Gi"}))
    assert requested(cache, "n1") == {"cpu": 2000, "memory": 2**30, "pods": 1}
    cache.changed(kinds.POD, objects.pod("web", on="n1", requests={"cpu": "3"}))
    assert requested(cache, "n1") == {"cpu": 3000, "pods": 1}
    grown = cache.grown
    over = objects.pod("web", on="n1", requests={"cpu": "3"})
    cache.changed(kinds.POD, {**over, "status": {"phase": "Succeeded"}})
    assert requested(cache, "n1") == {}
    assert cache.grown > grown, "who waited for CPUs is looked at again"


def test_a_pod_that_is_gone_when_pods_are_listed_again_holds_nothing(cache):
    cache.listed(kinds.POD, [objects.pod("web", on="n1", requests={"cpu": "2"})])
    cache.listed(kinds.POD, [])
    assert requested(cache, "n1") == {}


def test_places_that_no_pod_has_taken_yet_count_by_their_jobs_template_and_each_pod_once(cache):
    where = placement(("n1", (0, 1)), ("n2", (0, 1)))
    job = placed_job("train", where, requests={"cpu": "4"})
    cache.changed(kinds.JOB, job)
    each = {"cpu": 4000, "pods": 1, "nvidia.com/gpu": 2}
    assert (requested(cache, "n1"), requested(cache, "n2")) == (each, each)
    pod = placed_pod("train-0", where, "Job/default/train", index=0)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4"}
    cache.changed(kinds.POD, pod)
    assert requested(cache, "n1") == each, "the pod is made, and not bound"
    pod["spec"]["nodeName"] = "n1"
    cache.changed(kinds.POD, pod)
    assert (requested(cache, "n1"), requested(cache, "n2")) == (each, each)
    cache.changed(kinds.POD, pod, is_gone=True)
    cache.changed(kinds.JOB, job, is_gone=True)
    assert (requested(cache, "n1"), requested(cache, "n2")) == ({}, {})


def test_what_is_assumed_counts_with_what_its_pods_request(cache):
    where = replace(placement(("n1", (0, 1))), requests=PodRequests({"cpu": 4000, "pods": 1}))
    cache.gangs.assume("Pod/default/solo", where, until_s=10.0)
    assert requested(cache, "n1") == {"cpu": 4000, "pods": 1}
    assert not cache.has_room(replace(placement(("n1", (2, 3))), requests=PodRequests({"cpu": 60_001})))
    cache.gangs.forget("Pod/default/solo")
    assert requested(cache, "n1") == {}


def test_what_a_card_is_worth_changes_with_what_was_measured_of_it():
    cache = ClusterCache(PROFILES)
    cache.changed(kinds.NODE, objects.node("n1"))
    cache.changed(kinds.COMPUTE_NODE, objects.devices("n1"))
    before = cache.index.cards[A100].fp16_flops_measured
    at_work = objects.devices("n1")
    for device in at_work["status"]["devices"]:
        device["load"] = {"readings": 1, "medianSmClockShare": 0.5}
    cache.changed(kinds.COMPUTE_NODE, at_work)
    assert (before, cache.index.cards[A100].fp16_flops_measured) == (None, 156e12)


def test_what_one_pod_of_a_gang_changes_is_looked_at_on_its_node_alone(cache):
    where = placement(("n1", (0, 1)), ("n2", (0, 1)))
    cache.changed(kinds.JOB, placed_job("two", where))
    before = cache.index
    cache.changed(kinds.POD, placed_pod("two-0", where, "Job/default/two", index=0, on="n1"))
    after = cache.index
    assert after.nodes[after.node_number["n1"]] is not before.nodes[before.node_number["n1"]]
    assert after.nodes[after.node_number["n2"]] is before.nodes[before.node_number["n2"]]


def test_what_a_gang_holds_is_looked_at_once_for_all_the_news_of_its_pods(cache, monkeypatch):
    looked = list[int]()

    def counted(where, pods, *, is_reserved):
        looked.append(len(pods))
        return uses_of(where, pods, is_reserved=is_reserved)

    monkeypatch.setattr(gangs, "uses_of", counted)
    where = placement(*(("n1", (device,)) for device in range(8)))
    for number in range(8):
        cache.changed(kinds.POD, placed_pod(f"p{number}", where, "Job/default/many", index=number, on="n1"))
    assert free(cache, "n1") == []
    assert looked == [8]


def test_nodes_that_come_one_after_the_other_are_each_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While thousands join, looking at all of them at each made the controller's work grow with their square."""
    looked: list[str] = []
    look = cache_module.node_state

    def counted(node: Any, *args: Any, **more: Any) -> Any:
        looked.append(node["metadata"]["name"])
        return look(node, *args, **more)

    monkeypatch.setattr(cache_module, "node_state", counted)
    cache = ClusterCache(PROFILES)
    for i in range(30):
        cache.changed(kinds.NODE, objects.node(f"n{i}", A100))
        cache.changed(kinds.COMPUTE_NODE, objects.devices(f"n{i}", A100))
        assert len(cache.index.nodes) == i + 1
    cache.changed(kinds.NODE, objects.node("n3", A100), is_gone=True)
    assert len(cache.index.nodes) == 29
    assert len(looked) == 30
    cache.changed(kinds.POD, objects.pod("held", on="n5", resource="nvidia.com/gpu", count=3))
    cache.changed(kinds.NODE, objects.node("n3", A100))
    index = cache.index
    assert looked[30:] == ["n3", "n5"]
    assert index.nodes[index.node_number["n5"]].free_share.count(1.0) == 5
