"""The controller's two threads over one book."""

from __future__ import annotations

import threading

from strata.cluster.api import kinds
from strata.cluster.api.actions import pascal
from strata.cluster.api.errors import ApiFailed
from tests.cluster import objects
from tests.cluster.controller.controlled_cluster import World, job

LIMIT_S = 30.0


def routed(world, name):
    (condition,) = world.server.objects["ComputeClaim", f"job-{name}"]["status"]["conditions"]
    return condition["status"], condition["reason"]


def test_a_job_that_is_taken_slowly_keeps_no_fault_waiting():
    world = World()
    asked, go_on = threading.Event(), threading.Event()
    patch = world.server.patch

    def slow(kind, name, namespace="", **said):
        if kind.kind == "Job":
            asked.set()
            assert go_on.wait(LIMIT_S)
        return patch(kind, name, namespace, **said)

    world.server.patch = slow
    world.server.put(kinds.JOB, job(kinds.JOB, "train", 1, 4))
    world.deliver(kinds.JOB, 1)
    placing = threading.Thread(target=world.manager.place)
    placing.start()
    assert asked.wait(LIMIT_S)
    world.server.put(kinds.COMPUTE_NODE, objects.devices("n1", sick=(0,)))
    world.deliver(kinds.COMPUTE_NODE, 1)
    world.manager.heal()
    (taint,) = world.server.objects["Node", "n1"]["spec"]["taints"]
    go_on.set()
    placing.join(LIMIT_S)
    assert taint["key"] == "ai.compute/unhealthy"
    assert world.server.objects["Job", "train"]["spec"]["suspend"] is False


def test_what_the_server_refuses_is_told_and_tried_again_later():
    world = World()
    patch, tries = world.server.patch, []

    def refusing(kind, name, namespace="", **said):
        if kind.kind == "Job":
            tries.append(name)
            raise ApiFailed("spec.template: field is immutable", status=422)
        return patch(kind, name, namespace, **said)

    world.server.patch = refusing
    world.server.put(kinds.JOB, job(kinds.JOB, "train", 1, 4))
    for _ in range(5):
        world.deliver(kinds.JOB, 9)
        world.deliver(kinds.COMPUTE_CLAIM, 9)
        world.turn()
    assert len(tries) == 1
    assert routed(world, "train") == ("False", pascal("release-refused"))
    assert "ReleaseRefused" in {event["reason"] for event in world.server.events}
    world.now_s += 60
    world.server.patch = patch
    world.turn()
    assert world.held()


def test_a_claim_says_so_where_a_job_runs_though_its_controller_ended_before_it_could():
    world = World()
    world.server.put(kinds.JOB, job(kinds.JOB, "big", 3, 8))
    world.deliver(kinds.JOB, 9)
    world.turn()
    assert routed(world, "big") == ("False", "GangFitsNowhere")

    def dead(*said, **more):
        raise ApiFailed("no answer")

    apply, world.server.apply = world.server.apply, dead
    world.server.put(kinds.NODE, objects.node("n3"))
    world.server.put(kinds.COMPUTE_NODE, objects.devices("n3"))
    world.deliver(kinds.NODE, 9)
    world.deliver(kinds.COMPUTE_NODE, 9)
    world.deliver(kinds.COMPUTE_CLAIM, 9)
    world.turn()
    assert world.held()
    world.server.apply = apply
    world.take_over()
    world.turn()
    assert routed(world, "big") == ("True", "GangRuns")


def test_no_claim_says_that_a_job_has_its_place_whose_release_failed():
    world = World()
    world.server.put(kinds.JOB, job(kinds.JOB, "train", 1, 4))
    world.deliver(kinds.JOB, 9)
    world.server.trouble = ["refused"]
    world.turn()
    assert not world.held()
    assert ("ComputeClaim", "job-train") not in world.server.objects
    world.turn()
    world.deliver(kinds.JOB, 9)
    assert world.held()
    assert routed(world, "train") == ("True", "GangPlaced")


def heard(world, *kinds_of_news):
    """Let the manager hear news of these kinds, one after the other, and return how often it healed."""
    manager, left, healed = world.manager, list(kinds_of_news), []
    heal = manager.heal

    def pump(timeout_s):
        if len(left) == 1:
            manager.stopped.set()
        return frozenset(left.pop(0))

    def counted():
        healed.append(1)
        heal()

    world.informer.pump, manager.heal, world.informer.unready = pump, counted, str
    manager.hear()
    return len(healed)


def test_news_of_pods_have_jobs_placed_and_no_node_looked_at():
    world = World()
    assert heard(world, {kinds.NODE}, {kinds.POD}, {kinds.JOB}) == 1
    assert world.manager._is_due.is_set()


def test_news_of_nodes_are_healed_as_they_come_but_for_a_tenth_of_the_time():
    world = World()
    nodes = {kinds.COMPUTE_NODE}
    assert heard(world, nodes, nodes) == 1, "looking took time, and none has passed"
    world = World()
    world.manager.clock = iter(range(1_800_000_000, 1_900_000_000, 60)).__next__
    assert heard(world, nodes, nodes) == 2


def test_who_holds_what_is_asked_for_slow_devices_as_often_as_these_are_looked_for():
    world = World()
    asked, holds = [], world.informer.cache.holds

    def counted():
        asked.append(1)
        return holds()

    world.informer.cache.holds = counted
    for _ in range(3):
        world.informer.fresh.add("n1")
        world.manager._look()
    assert len(asked) == 1
    world.now_s += 60
    world.informer.fresh.add("n1")
    world.manager._look()
    assert len(asked) == 2
