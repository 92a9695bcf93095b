"""A job that fits nowhere is told whom to move; by policy they move, and it gets their room first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from strata.cluster.api import jobs, kinds
from strata.cluster.api.actions import Action, Event, Patch
from strata.cluster.api.annotations import PREEMPTIBLE
from strata.cluster.api.applier import Failure
from strata.cluster.api.errors import ApiFailed
from strata.cluster.controller.controller import CyclePolicy
from strata.cluster.controller.making_room import AGAIN_S, HOLD_S, LOOK_S, MOVE_S
from strata.errors import StrataError
from tests.cluster import objects
from tests.cluster.builders import A100
from tests.cluster.controller.test_controller import Cluster
from tests.cluster.merge_patches import merged

SAVED = {"/ckpt/half": -300.0, "/ckpt/third": -60.0}


def half_full(*, does_make_room: bool = False, **third: Any) -> Cluster:
    """Two nodes of eight, of which jobs hold four and three: none has eight for who comes."""
    cluster = Cluster(n1=A100, n2=A100)
    cluster.controller.policy = CyclePolicy(does_make_room=does_make_room)
    cluster.controller.saved_s = SAVED.get
    for name, devices, more in (("half", 4, {}), ("block", 4, {}), ("third", 3, third)):
        asked = {"preemptible": "true", "checkpoint_dir": f"/ckpt/{name}"} if name != "block" else {}
        cluster.put(kinds.JOB, objects.job(name, devices=devices, accelerator=A100, **{**asked, **more}))
        cluster.step()
    cluster.put(kinds.JOB, finished(cluster.job("block")))
    assert {name: cluster.nodes(name) for name in ("half", "third")} == {"half": ("n1",), "third": ("n2",)}
    return cluster


def finished(job: Any) -> Any:
    return {**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}


def whole(cluster: Cluster, **words: Any) -> None:
    cluster.put(kinds.JOB, objects.job("whole", devices=8, accelerator=A100, **words))


def reasons(cluster: Cluster) -> dict[str, str]:
    decision = cluster.objects["ComputeClaim", "job-whole"]["status"]["decision"]
    return {reason["token"]: reason["message"] for reason in decision["reasons"]}


def suspended(cluster: Cluster) -> list[str]:
    return [action.ref.name for action in cluster.done if isinstance(action, Patch) and action.ref.name != "whole"]


def test_the_claim_of_who_waits_says_who_could_move_and_what_it_costs() -> None:
    cluster = half_full()
    whole(cluster)
    cluster.step()
    cost = 3 * (MOVE_S + cluster.now_s - SAVED["/ckpt/third"])
    said = f"fits on 1 node with {A100} if Job/default/third move, which loses {cost:.0f} device-seconds"
    assert said in reasons(cluster)["room-by-moving"]
    moves = cluster.objects["ComputeClaim", "job-whole"]["status"]["decision"]["moves"]
    assert moves == [{"gang": "Job/default/third", "devices": 3, "costDeviceSeconds": cost, "nodes": ["n1"]}]
    assert suspended(cluster) == []
    assert not jobs.is_suspended(cluster.job("third"))


def fails(folder: str) -> float:
    raise StrataError("the folder cannot be read")


@pytest.mark.parametrize(
    "third",
    [
        {"preemptible": "false"},
        {"checkpoint_dir": "/ckpt/none"},
        {"priority": 5},
    ],
    ids=["not-willing", "no-checkpoint", "higher-priority"],
)
def test_who_may_not_be_moved_is_not_proposed(third: dict[str, Any]) -> None:
    cluster = half_full(**third)
    whole(cluster)
    cluster.step()
    assert "Job/default/half move" in reasons(cluster)["room-by-moving"]
    cluster.controller.saved_s = fails
    cluster.step(after_s=60.0)
    assert "Job/default/half move" in reasons(cluster)["room-by-moving"], "what was seen holds for a while"
    cluster.step(after_s=LOOK_S)
    assert "room-by-moving" not in reasons(cluster)


def test_by_policy_they_move_and_who_waited_goes_first() -> None:
    cluster = half_full(does_make_room=True)
    whole(cluster)
    cluster.step()
    assert suspended(cluster) == ["third"]
    assert "MovedForAnother" in [action.reason for action in cluster.done if isinstance(action, Event)]
    cluster.step()
    assert (cluster.nodes("whole"), jobs.is_suspended(cluster.job("whole"))) == (("n2",), False)
    cluster.step()
    assert (cluster.nodes("third"), jobs.is_suspended(cluster.job("third"))) == (("n1",), False)
    assert cluster.step(after_s=60.0) == []


def test_while_room_is_made_nobody_else_takes_it_and_it_is_given_up_in_time() -> None:
    """The mover's pod is slow to end: its devices come free one step after others might have had them."""
    cluster = half_full(does_make_room=True)
    pod = objects.pod("third-0", on="n2", resource="nvidia.com/gpu", count=3, annotations=way(cluster))
    cluster.put(kinds.POD, pod)
    whole(cluster)
    cluster.step()
    assert jobs.is_suspended(cluster.job("third"))
    cluster.put(kinds.JOB, objects.job("greedy", devices=5, accelerator=A100, priority=9))
    cluster.step()
    assert cluster.nodes("greedy") == (), "the five that are free on n2 are held"
    cluster.step(after_s=HOLD_S)
    assert cluster.nodes("greedy") == ("n2",)


def test_who_was_moved_in_vain_is_left_alone_for_an_hour() -> None:
    cluster = half_full(does_make_room=True)
    stays = {"metadata": {"annotations": {PREEMPTIBLE: "false"}}}
    cluster.put(kinds.JOB, merged(cluster.job("half"), stays))
    whole(cluster)
    cluster.step()
    assert suspended(cluster) == ["third"]
    late = [objects.pod(f"late-{at}", on=at, resource="nvidia.com/gpu", count=2) for at in ("n1", "n2")]
    for pod in late:
        cluster.put(kinds.POD, pod)  # those that come alone take of the room
    cluster.step(after_s=HOLD_S)
    cluster.step(after_s=60.0)
    assert cluster.nodes("third") == ("n2",)
    for pod in late:
        cluster.cache.changed(kinds.POD, pod, is_gone=True)
    cluster.step(after_s=60.0)
    assert suspended(cluster) == []
    assert "Job/default/third" not in reasons(cluster).get("room-by-moving", "")
    cluster.step(after_s=AGAIN_S)
    assert suspended(cluster) == ["third"]


def test_room_is_not_held_where_who_should_leave_has_changed_meanwhile() -> None:
    cluster = half_full(does_make_room=True)
    whole(cluster)
    apply = cluster.controller.apply

    def conflict(actions: Iterable[Action]) -> list[Failure]:
        some = list(actions)
        refused = [one for one in some if isinstance(one, Patch) and one.ref.name == "third"]
        apply([one for one in some if one not in refused])
        return [Failure(one, ApiFailed("changed", status=409), "look-again") for one in refused]

    cluster.controller.apply = conflict
    cluster.step()
    assert not jobs.is_suspended(cluster.job("third"))
    cluster.put(kinds.JOB, objects.job("small", devices=5, accelerator=A100, priority=9))
    cluster.step()
    assert cluster.nodes("small") == ("n2",)


@pytest.mark.parametrize("is_making", [False, True], ids=["proposed", "made"])
@pytest.mark.parametrize("change", ["shrinks", "vanishes"])
def test_a_node_that_loses_devices_or_goes_while_room_is_looked_for_ends_nothing(
    change: str, is_making: bool
) -> None:
    cluster = half_full(does_make_room=True)
    if is_making:
        pod = objects.pod("third-0", on="n2", resource="nvidia.com/gpu", count=3, annotations=way(cluster))
        cluster.put(kinds.POD, pod)
        whole(cluster)
        cluster.step()
        assert suspended(cluster) == ["third"]
    if change == "shrinks":
        for name in ("n1", "n2"):
            cluster.put(kinds.COMPUTE_NODE, objects.devices(name, count=1))
    else:
        cluster.cache.changed(kinds.NODE, cluster.objects["Node", "n2"], is_gone=True)
    whole(cluster)
    cluster.step(after_s=60.0)
    assert cluster.nodes("whole") == ()


def way(cluster: Cluster) -> dict[str, str]:
    annotations: dict[str, str] = cluster.job("third")["spec"]["template"]["metadata"]["annotations"]
    return annotations


def test_a_word_that_is_neither_is_refused_when_the_job_is_created() -> None:
    from strata.cluster.admission.job_defaults import job_defaults
    from strata.errors import BadFile

    with pytest.raises(BadFile, match="'yes' should be true or false"):
        job_defaults(objects.job("x", devices=1, preemptible="yes"))
