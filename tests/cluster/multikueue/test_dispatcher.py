"""MultiKueue's workloads from the first nomination to the cluster that has them, with books for clusters."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from strata.cluster.api import kinds
from strata.cluster.api.actions import Apply, Event, Patch
from strata.cluster.api.kinds import annotations_of, moment
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.multikueue.dispatcher import AGAIN_S, ROUND_S, SAID_S, WAIT_S, Dispatcher
from strata.cluster.multikueue.experience import FIRST_S, LONGEST_S
from strata.cluster.multikueue.refusals import REFUSED
from strata.cluster.multikueue.worker_clusters import worker_clusters_of
from strata.cluster.multikueue.workloads import NOMINATED
from strata.errors import UsageError
from strata.fleet.schema import load_drivers, load_fleet
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES
from tests.cluster.merge_patches import merged

FLEET = """
apiVersion: strata/v1alpha1
kind: Fleet
name: clusters
domains:
  - name: w
    accelerator: A100-SXM4-80GB
    num_gpus: 8
    price: $2/h
    driver: {kind: kubernetes, context: west, image: i}
  - name: e
    accelerator: A100-SXM4-80GB
    num_gpus: 8
    price: $1/h
    driver: {kind: kubernetes, context: east, image: i}
  - name: a
    accelerator: Ascend910B3
    num_gpus: 8
    price: $0.10/h
    driver: {kind: kubernetes, context: asia, image: i}
links:
  - {between: [w, e], bandwidth: 8Gbps, latency: 10ms, price: $0.02/GB}
"""
RESERVED = {"type": "QuotaReserved", "status": "True"}
QUOTA_OUT = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for nvidia.com/gpu"}


@dataclass
class Book:
    """A worker cluster: what its API server would tell."""

    cache: ClusterCache = field(default_factory=lambda: ClusterCache(PROFILES))
    lock: threading.RLock = field(default_factory=threading.RLock)
    why: str = ""

    def unready(self):
        return self.why


class World:
    """A manager cluster and its workers west, east and asia, of one node each."""

    def __init__(self, tmp_path, clusters=("west", "east", "asia"), **busy):
        path = tmp_path / "fleet.yaml"
        path.write_text(FLEET)
        self.fleet = load_fleet(path)
        self.cache, self.now_s, self.workers = ClusterCache(), 0.0, {}
        check = {
            "metadata": {"name": "multi"},
            "spec": {
                "controllerName": "kueue.x-k8s.io/multikueue",
                "parameters": {"kind": "MultiKueueConfig", "name": "all"},
            },
        }
        self.cache.changed(kinds.ADMISSION_CHECK, check)
        config = {"metadata": {"name": "all"}, "spec": {"clusters": list(clusters)}}
        self.cache.changed(kinds.MULTIKUEUE_CONFIG, config)
        for name in clusters:
            self.connect(name)
        for name, model in (("west", A100), ("east", A100), ("asia", B3)):
            book = self.workers[name] = Book()
            book.cache.changed(kinds.NODE, objects.node(f"{name}-1", model))
            book.cache.changed(kinds.COMPUTE_NODE, objects.devices(f"{name}-1", model))
            self.fill(name, busy.get(name, 0))
        self.dispatcher = Dispatcher(self.fleet, worker_clusters_of(self.fleet, load_drivers(path)), self.workers)

    def fill(self, name, count):
        resource = objects.RESOURCE[B3 if name == "asia" else A100]
        pod = objects.pod("other", on=f"{name}-1", resource=resource, count=count)
        self.workers[name].cache.changed(kinds.POD, pod, is_gone=not count)

    def connect(self, name, *, why=""):
        active = {"type": "Active", "status": "False" if why else "True", "message": why}
        obj = {"metadata": {"name": name}, "status": {"conditions": [active]}}
        self.cache.changed(kinds.MULTIKUEUE_CLUSTER, obj)

    def submit(self, name, *, devices=8, pods=1, checks=(), **words):
        self.cache.changed(
            kinds.JOB,
            objects.job(name, pods=pods, devices=devices, accelerator=A100, framework="pytorch", **words),
        )
        job = next(job.obj for job in self.cache.jobs.values() if job.ref.name == name)
        template = {"metadata": {"annotations": dict(annotations_of(job))}, "spec": objects.pod_spec()}
        states = [{"name": "multi", "state": "Pending"}, *checks]
        self.hear(
            {
                "apiVersion": kinds.WORKLOAD.api_version,
                "kind": "Workload",
                "metadata": {
                    "name": f"job-{name}",
                    "namespace": "default",
                    "resourceVersion": "1",
                    "creationTimestamp": moment(self.now_s),
                    "ownerReferences": [{"kind": "Job", "name": name, "controller": True}],
                },
                "spec": {"queueName": "team", "podSets": [{"name": "main", "count": pods, "template": template}]},
                "status": {"conditions": [RESERVED], "admissionChecks": states},
            }
        )

    def hear(self, workload):
        self.cache.changed(kinds.WORKLOAD, workload)

    def workload(self, name):
        return self.cache.workloads[f"default/job-{name}"]

    def change(self, name, **status):
        before = self.workload(name)
        after = merged(before, {"status": status})
        version = str(int(before["metadata"]["resourceVersion"]) + 1)
        self.hear(merged(after, {"metadata": {"resourceVersion": version}}))

    def admit(self, name, cluster):
        self.change(name, clusterName=cluster, nominatedClusterNames=None)

    def say(self, name, cluster, *conditions):
        """A worker's copy of a workload has these conditions."""
        copy = {
            "metadata": {"name": f"job-{name}", "namespace": "default"},
            "status": {"conditions": [*conditions]},
        }
        self.workers[cluster].cache.changed(kinds.WORKLOAD, copy)

    def step(self, *, after_s=AGAIN_S):
        """Run a cycle, whose patches of workloads come true; return what was done."""
        self.now_s += after_s
        done = []

        def apply(actions):
            done.extend(actions)
            return ()

        self.dispatcher.cycle(
            self.cache, self.now_s, apply=apply, stamp=moment(self.now_s), lock=threading.RLock()
        )
        for action in done:
            if isinstance(action, Patch):
                self.change(action.ref.name.removeprefix("job-"), **action.body["status"])
        return done

    def nominated(self, name):
        return tuple(self.workload(name)["status"].get("nominatedClusterNames") or ())

    def condition(self, name):
        return next(each for each in self.workload(name)["status"]["conditions"] if each["type"] == NOMINATED)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_the_cheapest_cluster_with_its_card_is_nominated_alone_and_the_condition_says_why(world):
    world.submit("train")
    actions = world.step()
    assert world.nominated("train") == ("east",)
    condition = world.condition("train")
    assert (condition["status"], condition["reason"]) == ("True", "ClusterOffered")
    text = condition["message"]
    assert text.startswith("east: 1 pod of 8 A100-SXM4-80GB within node; $8.00 for 1h00m of running; takes 50%")
    assert "; west: is offered it next: 1 pod of 8 A100-SXM4-80GB within node; $16.00 for" in text
    assert "; asia: is offered it next: 1 pod of 7 Ascend910B3" in text
    claims = [action for action in actions if isinstance(action, Apply) and action.subresource == "status"]
    (told,) = claims[0].body["status"]["conditions"]
    assert (told["type"], told["status"], told["reason"]) == ("Nominated", "True", "ClusterOffered")
    assert [action.reason for action in actions if isinstance(action, Event)] == ["ClusterOffered"]
    assert world.step() == [], "it is told once"


def test_cards_that_stand_in_come_last_however_cheap_and_first_where_there_are_no_others(tmp_path):
    world = World(tmp_path, west=8, east=8)
    world.submit("train", devices=2)
    world.step()
    assert world.nominated("train") == ("asia",)
    assert "east: " in world.condition("train")["message"]


def test_data_is_worth_its_way(world):
    world.submit("reads", data="10TB", data_domain="w")
    world.step()
    # From west 10 TB take 10,000 s and $200: the dearer devices beside them are the cheaper ones.
    assert world.nominated("reads") == ("west",)
    text = world.condition("reads")["message"]
    assert ", its data there;" in text
    assert "east: is offered it next: 1 pod of 8 A100-SXM4-80GB within node; $" in text
    assert ", its data takes 2h47m" in text


@pytest.mark.parametrize("words", [{"data": "10TB"}, {"data": "much", "data_domain": "w"}])
def test_data_that_cannot_be_read_is_said_and_nothing_is_nominated(world, words):
    world.submit("odd", **words)
    world.step()
    assert world.nominated("odd") == ()
    condition = world.condition("odd")
    assert (condition["status"], condition["reason"]) == ("False", "ClaimUnreadable")
    assert "ai.compute/data" in condition["message"]


def test_two_workloads_do_not_count_on_the_same_devices(world):
    world.submit("one")
    world.submit("two")
    world.step()
    assert (world.nominated("one"), world.nominated("two")) == (("east",), ("west",))


def test_who_does_not_admit_within_a_round_has_refused_and_the_next_is_nominated_beside_it(world):
    world.submit("train")
    world.step()
    world.step(after_s=ROUND_S - 10)
    assert world.nominated("train") == ("east",)
    world.step(after_s=10)
    assert world.nominated("train") == ("east", "west")
    world.submit("later")
    world.step()
    assert "east" not in world.nominated("later"), "it is left alone for a while"
    assert (
        "east: did not take 8 devices of this queue: did not admit it within 60 s"
        in world.condition("later")["message"]
    )


def test_a_refusal_counts_for_gangs_as_large_and_wears_off_later_each_time(tmp_path):
    world = World(tmp_path, clusters=("east",))
    world.submit("first")
    world.step()
    world.step(after_s=ROUND_S)
    world.submit("small", devices=1)
    world.submit("large")
    world.step()
    assert (world.nominated("small"), world.nominated("large")) == (("east",), ())
    for name in ("small", "first"):
        world.admit(name, "elsewhere")
    world.step(after_s=FIRST_S)
    assert world.nominated("large") == ("east",)
    world.step(after_s=ROUND_S)
    refusal = world.dispatcher.experience.refusal("east", "default/team")
    assert (refusal.times, refusal.until_s - world.now_s) == (2, 2 * FIRST_S)


def test_the_words_of_a_clusters_own_kueue_end_the_round_early_and_are_passed_on(world):
    world.submit("train")
    world.step()
    world.say("train", "east", QUOTA_OUT)
    world.step(after_s=SAID_S)
    assert world.nominated("train") == ("east", "west")
    assert "insufficient unused quota" in world.dispatcher.experience.refusal("east", "default/team").why


def test_who_admitted_gets_more_offers_and_a_refusal_is_forgiven(world):
    world.submit("train")
    world.step()
    world.step(after_s=ROUND_S)
    world.admit("train", "east")
    world.step()
    assert world.dispatcher.experience.refusal("east", "default/team") is None
    assert world.dispatcher.experience.chance("east") == pytest.approx(2 / 4)
    world.submit("more")
    world.step()
    world.admit("more", "east")
    world.step()
    assert world.dispatcher.experience.chance("east") == pytest.approx(3 / 5)


def test_a_cluster_that_gives_a_job_back_has_refused_it_unless_it_was_not_its_doing(world):
    for name, reason, is_refused in (("a", "Preempted", False), ("b", "AdmissionCheck", True)):
        world.submit(name)
        world.step()
        world.admit(name, "east")
        world.step()
        evicted = {"type": "Evicted", "status": "True", "reason": reason, "message": "Admitting remote lost"}
        world.change(name, clusterName=None, conditions=[evicted])
        world.step()
        refusal = world.dispatcher.experience.refusal("east", "default/team")
        assert (refusal is not None) is is_refused
    assert "Admitting remote lost" in refusal.why


def test_a_cluster_that_is_away_is_not_nominated_and_no_longer_where_it_goes_away(world):
    world.submit("train")
    world.connect("east", why="connection refused")
    world.step()
    assert world.nominated("train") == ("west",)
    assert "east: is not reached: connection refused" in world.condition("train")["message"]
    world.connect("west", why="certificate expired")
    world.step()
    assert world.nominated("train") == ("asia",)


def test_where_no_cluster_has_room_nothing_is_nominated_until_waiting_is_worse(tmp_path):
    world = World(tmp_path, clusters=("west", "east"), west=8, east=8)
    world.submit("train")
    world.step()
    assert world.nominated("train") == ()
    condition = world.condition("train")
    assert (condition["status"], condition["reason"]) == ("False", "ClusterFull")
    assert "fits nowhere on 1 node" in condition["message"]
    world.step(after_s=WAIT_S)
    assert world.nominated("train") == ("west", "east"), "their own queues may preempt"


def test_room_that_comes_is_taken(tmp_path):
    world = World(tmp_path, clusters=("west", "east"), west=8, east=8)
    world.submit("train")
    world.step()
    world.fill("west", 0)
    world.step()
    assert world.nominated("train") == ("west",)
    assert world.condition("train")["status"] == "True"


def test_a_cluster_nobody_knows_comes_last_and_is_tried_all_the_same(tmp_path):
    world = World(tmp_path, clusters=("nowhere", "west"), west=8)
    world.submit("train")
    world.step()
    assert world.nominated("train") == ("nowhere",)
    assert "no domain of the fleet file" in world.condition("train")["message"]
    world.workers["west"].why = "not listed yet: nodes"
    world.submit("other")
    world.step()
    assert "west" not in world.nominated("other")
    assert "not listed yet: nodes" in world.condition("other")["message"]


def test_a_workload_that_asks_for_nothing_of_ours_is_nominated_all_the_same(world):
    world.submit("plain")
    plain = world.workload("plain")
    world.cache.changed(kinds.JOB, {"metadata": {"name": "plain", "namespace": "default"}}, is_gone=True)
    template = {"metadata": {}, "spec": objects.pod_spec()}
    pod_sets = [{"name": "main", "count": 1, "template": template}]
    world.hear({**plain, "spec": {**plain["spec"], "podSets": pod_sets}})
    world.step()
    assert world.nominated("plain") == ("west",), "in the order of the config"
    assert world.condition("plain")["reason"] == "ClusterAny"


@pytest.mark.parametrize("what", ["no quota", "another check", "has a cluster", "finished"])
def test_nothing_is_nominated_before_its_time_and_after(world, what):
    checks = [{"name": "budget", "state": "Pending"}] if what == "another check" else []
    world.submit("train", checks=checks)
    if what == "no quota":
        world.change("train", conditions=[])
    elif what == "has a cluster":
        world.admit("train", "west")
    elif what == "finished":
        world.change("train", conditions=[RESERVED, {"type": "Finished", "status": "True"}])
    assert world.step() == []


def test_a_new_leader_takes_over_what_was_nominated_and_its_rounds(world):
    world.submit("train")
    world.step()
    world.dispatcher = Dispatcher(world.fleet, world.dispatcher.known, world.workers)
    world.step()
    assert world.nominated("train") == ("east",)
    world.step(after_s=ROUND_S)
    assert world.nominated("train") == ("east", "west")


def test_a_new_leader_knows_who_refused_and_who_took(world):
    world.submit("had")
    world.step()
    world.admit("had", "east")
    world.submit("train")
    world.step()
    world.say("train", "east", QUOTA_OUT)
    world.step(after_s=SAID_S)
    assert world.nominated("train") == ("east", "west")
    before = world.dispatcher.experience
    world.dispatcher = Dispatcher(world.fleet, world.dispatcher.known, world.workers)
    world.submit("later")
    world.step()
    after, why = world.dispatcher.experience, QUOTA_OUT["message"]
    assert after.refusal("east", "default/team") == before.refusal("east", "default/team")
    assert after.chance("east") == before.chance("east")
    assert f"east: did not take 8 devices of this queue: {why}" in world.condition("later")["message"]
    assert world.nominated("train") == ("east", "west")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "east",
        "east: 1x, 8 devices, until 2026-13-99T99:99:99Z: full",
        "east: -1x, 8 devices, until x: y",
        "\n" * 99,
    ],
)
def test_a_condition_that_nobody_of_ours_wrote_is_passed_over(world, message):
    world.submit("train")
    world.change("train", conditions=[RESERVED, {"type": REFUSED, "status": "True", "message": message}])
    world.step()
    assert world.nominated("train") == ("east",)


def test_a_refusal_that_claims_to_hold_for_ever_holds_as_long_as_any(world):
    world.submit("train")
    forever = "east: 1x, 8 devices, until 2999-01-01T00:00:00Z: mine"
    world.change("train", conditions=[RESERVED, {"type": REFUSED, "status": "True", "message": forever}])
    world.step()
    assert world.nominated("train") == ("west",)
    assert world.dispatcher.experience.refusal("east", "default/team").until_s == world.now_s + LONGEST_S


def test_a_patch_that_is_refused_is_looked_at_anew(world):
    from strata.cluster.api.applier import Failure
    from strata.cluster.api.errors import ApiFailed

    world.submit("train")
    world.now_s += 1

    def refuse(actions):
        return [Failure(action, ApiFailed("changed meanwhile", status=409), "look-again") for action in actions]

    world.dispatcher.cycle(world.cache, world.now_s, apply=refuse, stamp="", lock=threading.RLock())
    assert world.nominated("train") == ()
    world.step()
    assert world.nominated("train") == ("east",)


def test_a_fleet_without_a_context_is_refused(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.replace("driver: {kind: kubernetes, context: west, image: i}", "driver: {kind: local}"))
    fleet = load_fleet(path)
    assert sorted(worker_clusters_of(fleet, load_drivers(path))) == ["asia", "east"]
    with pytest.raises(UsageError, match="no domain has a Kubernetes driver"):
        worker_clusters_of(fleet, {})
