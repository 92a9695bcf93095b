"""Kueue's workloads from the first question to the end, with a book."""

from __future__ import annotations

import copy

import pytest

from strata.cluster.api import kinds
from strata.cluster.api.affinity import keeping_off, kept_off
from strata.cluster.api.kinds import ADMISSION_CHECK, WORKLOAD
from strata.cluster.api.placement_annotation import GANG, PLACEMENT, decode
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.kueue.admission_checks import AGAIN_S, HELD_S, AdmissionChecks
from strata.cluster.kueue.flavors import FLAVOR_LABEL
from strata.cluster.kueue.steering import VARIANT
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES

STAMP = "2026-11-21T10:00:00Z"
RESERVED = {"type": "QuotaReserved", "status": "True"}


def workload(name, devices=8, *, at=1, version=1, conditions=(RESERVED,)):
    template = {"metadata": {"annotations": objects.asks(devices=devices)}, "spec": objects.pod_spec()}
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": "Workload",
        "metadata": {
            "name": f"job-{name}",
            "namespace": "default",
            "resourceVersion": str(version),
            "creationTimestamp": f"2026-11-21T10:00:0{at}Z",
            "ownerReferences": [{"kind": "Job", "name": name, "controller": True}],
        },
        "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {"conditions": list(conditions), "admissionChecks": [{"name": "strata", "state": "Pending"}]},
    }


class World:
    """One node of eight devices, our check, and workloads whose patches come true when told."""

    def __init__(self) -> None:
        self.cache, self.admission_checks, self.now_s = ClusterCache(PROFILES), AdmissionChecks(), 0.0
        self.cache.changed(kinds.NODE, objects.node("n1"))
        self.cache.changed(kinds.COMPUTE_NODE, objects.devices("n1"))
        self.cache.listed(ADMISSION_CHECK, ({**objects.admission_check(), "status": {"conditions": [ACTIVE]}},))
        self.cache.changed(kinds.MUTATING_WEBHOOK, objects.webhook())

    def hear(self, obj, what="MODIFIED"):
        self.cache.changed(WORKLOAD, copy.deepcopy(obj), is_gone=what == "DELETED")

    def step(self, *, after_s=1.0):
        self.now_s += after_s
        self.cache.gangs.expire(self.now_s)
        done = []

        def apply(actions):
            done.extend(actions)
            return ()

        self.admission_checks.cycle(self.cache, self.now_s, apply=apply, stamp=STAMP)
        return done

    @property
    def free(self):
        return sum(self.cache.index.nodes[0].free_share)


ACTIVE = {"type": "Active", "status": "True"}


def states(actions):
    return {one.ref.name: one.body["status"]["admissionChecks"][0]["state"] for one in actions}


def done(obj, patch):
    """The workload after a patch, in its next version."""
    after = {**obj, "status": {**obj["status"], **patch.body["status"]}}
    version = str(int(obj["metadata"]["resourceVersion"]) + 1)
    return {**after, "metadata": {**obj["metadata"], "resourceVersion": version}}


def test_the_oldest_workload_gets_the_room_and_the_next_one_gives_its_quota_back():
    world = World()
    world.hear(workload("late", at=2))
    world.hear(workload("early", at=1))
    actions = world.step()
    assert states(actions) == {"job-early": "Ready", "job-late": "Retry"}
    assert world.free == 0
    assert world.step() == []


def test_what_was_given_is_held_until_the_workload_loses_it():
    world, one = World(), workload("train")
    world.hear(one)
    (action,) = world.step()
    ready = done(one, action)
    world.hear(ready)
    assert world.step(after_s=2 * HELD_S) == []
    assert world.free == 0
    world.hear(
        {**ready, "status": {**ready["status"], "conditions": [RESERVED, {"type": "Evicted", "status": "True"}]}}
    )
    assert world.step() == []
    assert world.free == 8


@pytest.mark.parametrize("what", ["DELETED", "finished"])
def test_nothing_is_held_for_what_is_over(what):
    world, one = World(), workload("train")
    world.hear(one)
    world.step()
    over = workload("train", conditions=[RESERVED, {"type": "Finished", "status": "True"}], version=9)
    world.hear(over, what if what == "DELETED" else "MODIFIED")
    world.step()
    assert world.free == 8


def test_a_new_leader_holds_what_the_old_one_gave():
    world, one = World(), workload("train")
    world.hear(one)
    (action,) = world.step()
    other = World()
    other.hear(done(one, action))
    assert other.step() == []
    assert other.free == 0


def test_an_answer_that_did_not_arrive_is_given_again_and_counts_once():
    world, one = World(), workload("train")
    world.hear(one)
    (first,) = world.step()
    assert world.step() == []
    (again,) = world.step(after_s=AGAIN_S)
    assert again.body == first.body
    world.hear(workload("train", version=2))
    (newer,) = world.step()
    assert newer.resource_version == "2"
    assert states([newer]) == {"job-train": "Ready"}
    assert world.free == 0


def test_a_gang_whose_devices_break_is_queued_again():
    world, one = World(), workload("train")
    world.hear(one)
    assert list(world.admission_checks.moved(world.cache, "Job/default/train", "xid 79", stamp=STAMP)) == []
    (action,) = world.step()
    ready = done(one, action)
    world.hear(ready)
    (back,) = world.admission_checks.moved(world.cache, "Job/default/train", "xid 79", stamp=STAMP)
    (state,) = back.body["status"]["admissionChecks"]
    assert (state["state"], state["message"]) == ("Retry", "xid 79")
    assert "podSetUpdates" not in state
    assert list(world.admission_checks.moved(world.cache, "Job/default/other", "xid 79", stamp=STAMP)) == []


def test_a_placement_somebody_wrote_into_is_not_held(caplog):
    world, one = World(), workload("train")
    world.hear(one)
    (action,) = world.step()
    ready = done(one, action)
    ready["status"]["admissionChecks"][0]["podSetUpdates"][0]["annotations"][PLACEMENT] = "{}"
    other = World()
    other.hear(ready)
    other.step()
    assert other.free == 8
    assert "job-train" in caplog.text


def test_our_check_is_made_active_and_others_questions_are_theirs():
    world = World()
    world.cache.listed(ADMISSION_CHECK, (objects.admission_check("mine"),))
    world.hear(workload("train"))
    (action,) = world.step()
    assert (action.ref.kind.kind, action.ref.name, action.subresource) == ("AdmissionCheck", "mine", "status")
    assert world.free == 8


def test_the_jobs_own_words_count_and_its_key_is_the_gangs():
    world, one = World(), workload("train")
    del one["spec"]["podSets"][0]["template"]["metadata"]["annotations"]
    world.cache.changed(kinds.JOB, objects.job("train", devices=4, accelerator=A100))
    world.hear(one)
    (action,) = world.step()
    update = action.body["status"]["admissionChecks"][0]["podSetUpdates"][0]
    assert update["annotations"][GANG] in world.cache.gangs.placements
    assert world.free == 4


def test_an_answer_to_a_workload_that_changed_meanwhile_is_not_sent():
    world, one = World(), workload("train")
    world.hear(one)

    class Meanwhile:
        """The cache's lock: before places are held, somebody changes the workload."""

        entered = 0

        def __enter__(self):
            self.entered += 1
            if self.entered == 2:
                world.hear(workload("train", version=2))

        def __exit__(self, *error):
            return None

    sent = []
    world.admission_checks.cycle(
        world.cache, 1.0, apply=lambda actions: sent.extend(actions) or (), stamp=STAMP, lock=Meanwhile()
    )
    assert sent == []
    assert world.free == 8
    (action,) = world.step()
    assert action.resource_version == "2"


def test_no_place_is_promised_without_a_webhook_that_sends_pods_to_it():
    world = World()
    world.cache.changed(kinds.MUTATING_WEBHOOK, objects.webhook(), is_gone=True)
    world.hear(workload("train"))
    plain = workload("plain", at=2)
    plain["spec"]["podSets"][0]["template"]["metadata"] = {}
    world.hear(plain)
    asking, ours_not = sorted(world.step(), key=lambda action: action.ref.name, reverse=True)
    (state,) = asking.body["status"]["admissionChecks"]
    assert (state["state"], state["requeueAfterSeconds"]) == ("Retry", 60)
    assert "strata-webhook" in state["message"]
    assert states([ours_not]) == {"job-plain": "Ready"}
    assert world.free == 8


class TwoFlavors(World):
    """Besides the node of NVIDIA's one of Huawei's; workloads are given the flavor they may have."""

    def __init__(self, **free: int) -> None:
        super().__init__()
        self.cache.changed(kinds.NODE, objects.node("a1", B3))
        self.cache.changed(kinds.COMPUTE_NODE, objects.devices("a1", B3))
        for name, resource in (("n1", "nvidia.com/gpu"), ("a1", "huawei.com/Ascend910")):
            self.cache.changed(kinds.POD, objects.pod(f"on-{name}", on=name, resource=resource, count=8))
        for name in free:
            self.free_node(name)

    def free_node(self, name):
        self.cache.changed(kinds.POD, objects.pod(f"on-{name}"), is_gone=True)


NVIDIA, ASCEND = "nvidia-gpu", "huawei-ascend910"


def on(flavor, obj, *conditions):
    """The workload with quota of a flavor."""
    assignment = {"name": "main", "count": 1, "flavors": {"nvidia.com/gpu": flavor}}
    status = {**obj["status"], "admission": {"podSetAssignments": [assignment]}}
    return {**obj, "status": {**status, "conditions": [RESERVED, *conditions]}}


def without_quota(obj, version):
    status = {"admissionChecks": [{"name": "strata", "state": "Pending"}]}
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}, "status": status}


def off(action):
    """What a patch keeps a workload off."""
    (pod_set,) = action.body["spec"]["podSets"]
    return {key.removeprefix(FLAVOR_LABEL) for key in kept_off(pod_set["template"]["spec"], FLAVOR_LABEL)}


def substituting(name="train"):
    obj = workload(name, devices=4)
    annotations = obj["spec"]["podSets"][0]["template"]["metadata"]["annotations"]
    annotations |= objects.asks(accelerator=A100, substitution="allow")
    return obj


def test_kueue_is_sent_to_the_next_flavor_where_the_first_has_no_room():
    """An hour beside the real Kueue: it reserved the same flavor for ever, and `why` said it would go."""
    world, one = TwoFlavors(a1=8), substituting()
    world.hear(on(NVIDIA, one))
    (answer,) = world.step()
    (state,) = answer.body["status"]["admissionChecks"]
    assert (state["state"], state["requeueAfterSeconds"]) == ("Retry", 1)
    assert "the next flavor is tried" in state["message"]
    evicted = without_quota(one, 2)
    world.hear(evicted)
    (patch,) = world.step()
    assert (off(patch), patch.resource_version) == ({NVIDIA}, "2")
    steered = {**evicted, "spec": patch.body["spec"], "metadata": {**evicted["metadata"], "resourceVersion": "3"}}
    world.hear(steered)
    assert world.step() == []
    world.hear(on(ASCEND, steered))
    (ready,) = world.step()
    (state,) = ready.body["status"]["admissionChecks"]
    assert state["state"] == "Ready"
    placement = decode(state["podSetUpdates"][0]["annotations"][PLACEMENT], where="test")
    assert [place.node for place in placement.pods] == ["a1"]


@pytest.mark.parametrize(("freed", "left"), [("n1", set()), ("", {NVIDIA})])
def test_a_workload_is_kept_off_a_flavor_for_as_long_as_it_is_full(freed, left):
    world, one = TwoFlavors(a1=8), without_quota(substituting(), 2)
    (pod_set,) = one["spec"]["podSets"]
    pod_set["template"]["spec"]["affinity"] = keeping_off({}, [FLAVOR_LABEL + NVIDIA], prefix=FLAVOR_LABEL)
    world.hear(one)
    assert world.step() == []
    if freed:
        world.free_node(freed)
    assert [off(patch) for patch in world.step()] == ([left] if freed else [])


def test_where_nothing_has_room_a_workload_waits_for_any_flavor():
    world, one = TwoFlavors(), substituting()
    world.hear(on(NVIDIA, one))
    (answer,) = world.step()
    assert answer.body["status"]["admissionChecks"][0]["requeueAfterSeconds"] == 60
    world.hear(without_quota(one, 2))
    assert world.step() == []


def test_flavors_without_labels_are_named():
    """Kueue gave the flavor again that the workload is kept off."""
    world, one = TwoFlavors(a1=8), substituting()
    (pod_set,) = one["spec"]["podSets"]
    pod_set["template"]["spec"]["affinity"] = keeping_off({}, [FLAVOR_LABEL + NVIDIA], prefix=FLAVOR_LABEL)
    world.hear(on(NVIDIA, one))
    (answer,) = world.step()
    (state,) = answer.body["status"]["admissionChecks"]
    assert (state["state"], state["requeueAfterSeconds"]) == ("Retry", 60)
    assert FLAVOR_LABEL + NVIDIA in state["message"]


def variant(flavor, obj):
    """The workload's variant of a flavor, with quota for it, as Kueue's ConcurrentAdmission makes it."""
    owner = {"kind": "Workload", "name": obj["metadata"]["name"], "controller": True}
    metadata = {
        **obj["metadata"],
        "name": f"{obj['metadata']['name']}-{flavor}",
        "annotations": {VARIANT: flavor},
        "ownerReferences": [owner],
    }
    return on(flavor, {**obj, "metadata": metadata})


@pytest.mark.parametrize("free", ["n1", "a1", "both"])
def test_of_a_jobs_variants_one_gets_a_place_on_its_own_cards_if_they_can_be_had(free):
    world, one = TwoFlavors(**({"n1": 8, "a1": 8} if free == "both" else {free: 8})), substituting()
    world.hear({**one, "status": {}})
    for flavor in (ASCEND, NVIDIA):
        world.hear(variant(flavor, one))
    actions = world.step()
    chosen, other = (ASCEND, NVIDIA) if free == "a1" else (NVIDIA, ASCEND)
    assert states(actions) == {f"job-train-{chosen}": "Ready", f"job-train-{other}": "Retry"}
    (ready,) = (action for action in actions if action.ref.name.endswith(chosen))
    (update,) = ready.body["status"]["admissionChecks"][0]["podSetUpdates"]
    assert update["annotations"][GANG] == "Job/default/train"
    world.hear(done(variant(chosen, one), ready))
    world.free_node("n1")
    world.free_node("a1")
    asking = variant(other, one)
    world.hear({**asking, "metadata": {**asking["metadata"], "resourceVersion": "9"}})
    (again,) = world.step()
    (state,) = again.body["status"]["admissionChecks"]
    if other == ASCEND:
        assert (state["state"], state["message"]) == ("Retry", f"the job has its place as job-train-{chosen}")
    else:
        assert state["state"] == "Ready", "it may move to the cards it was written for"
