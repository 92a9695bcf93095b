"""A course of faults under load, on a real control plane: no pod is lost or doubled, no device is given to two.

A kubelet that is killed is in test_real_node.py: nodes are objects here.
"""

from __future__ import annotations

import itertools
import random
import signal
import time

import pytest

from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import (
    COMPUTE_NODE,
    LEASE,
    NODE,
    POD,
    annotations_of,
    is_true,
    meta,
    moment,
    name_of,
)
from strata.cluster.api.placement_annotation import PLACEMENT, decode
from tests.cluster import objects
from tests.cluster.integration.strata_on_kubernetes import SYSTEM, Strata
from tests.support.real_processes import until

NODES = tuple(f"n{i:02}" for i in range(20))
SHAPES = ((1, 1), (2, 4), (4, 2), (8, 1), (2, 8), (1, 8))
"""Pods of a gang, and devices of each."""


class Course:
    """Nodes of eight devices, jobs in waves, and what must hold between them."""

    def __init__(self, strata, nodes, namespace) -> None:
        self.strata, self.api, self.plane, self.nodes, self.namespace = (
            strata,
            strata.api,
            strata.plane,
            nodes,
            namespace,
        )
        self.rng, self.numbers, self.jobs, self.controllers = random.Random(18), itertools.count(), {}, []
        for name in NODES:
            strata.devices(nodes, name)
        self.submit(26, 8, name="too-large")

    def submit(self, pods, devices, *, name="") -> str:
        """Create a gang; return its name."""
        name = name or f"gang-{next(self.numbers)}"
        self.strata.submit(self.namespace, objects.job(name, pods=pods, devices=devices))
        self.jobs[name] = pods, devices
        return name

    def wave(self, count=3) -> None:
        """Have some gangs arrive and older ones end, wait until each is placed or told why not, and look."""
        self.beat()
        placed = [name for name in self.jobs if self.places(name)]
        for name in self.rng.sample(placed, max(0, len(placed) - 6)):
            for pod in self.pods(name):
                self.nodes.finish(name_of(pod), self.namespace)
            until(lambda name=name: is_over(self.strata.job(self.namespace, name)), lambda name=name: name)
            del self.jobs[name]
        for shape in self.rng.choices(SHAPES, k=count):
            self.submit(*shape)
        self.settle()

    def beat(self) -> None:
        """Every agent is heard of."""
        for name in NODES:
            body = {"status": {"observedAt": moment(time.time(), "milliseconds")}}
            self.api.patch(COMPUTE_NODE, name, body=body, subresource="status")

    def settle(self) -> None:
        """Wait until each gang has its places, or its claim says why not; hold what must hold."""
        for name in self.jobs:
            if name == "too-large":
                until(lambda: self.strata.routed(self.namespace, "too-large") == "GangFitsNowhere", self.logs)
            else:
                until(lambda name=name: self.places(name), lambda name=name: f"{name}: {self.logs(name)}")
        taken = [place for name in self.jobs for place in self.places(name) or ()]
        assert len(taken) == len(set(taken)), "a device was given to two"

    def places(self, name):
        """Return the devices a gang holds, with their nodes; None while not every pod is bound."""
        pods, (count, devices) = self.pods(name), self.jobs[name]
        indices = {annotations_of(pod).get("batch.kubernetes.io/job-completion-index") for pod in pods}
        if len(pods) != count or any(not pod["spec"].get("nodeName") for pod in pods):
            return None
        assert len(indices) == count, "each pod of a gang once"
        taken = []
        for pod in pods:
            (place,) = decode(annotations_of(pod)[PLACEMENT], where=name).pods
            assert place.node == pod["spec"]["nodeName"]
            assert len(place.devices) == devices
            taken += [(place.node, device) for device in place.devices]
        return taken

    def pods(self, name):
        pods, _ = self.api.list(POD, namespace=self.namespace, labels=f"batch.kubernetes.io/job-name={name}")
        return [pod for pod in pods if not meta(pod).get("deletionTimestamp")]

    def logs(self, name="too-large"):
        said = "".join(each.log[-1500:] for each in self.controllers)
        return f"{self.strata.said(self.namespace, name)} {said}"

    def leader(self):
        """Return the controller that holds the Lease."""
        holder = ((self.api.get(LEASE, "strata-controller", SYSTEM) or {}).get("spec") or {}).get("holderIdentity")
        return next((each for each in self.controllers if each.identity == holder), None)

    def start_controller(self) -> None:
        identity = f"controller-{next(self.numbers)}"
        self.controllers.append(self.strata.controller("--identity", identity))
        self.controllers[-1].identity = identity


def is_over(job):
    return is_true(job, "Complete", "Failed")


@pytest.fixture
def course(plane, api, nodes, namespace, tmp_path):
    plane.controller_manager()
    with Strata(plane, api, tmp_path) as strata, plane.scheduler():
        strata.hook = strata.webhook()
        made = Course(strata, nodes, namespace)
        for _ in range(2):
            made.start_controller()
        yield made
        for name in NODES:
            api.delete(COMPUTE_NODE, name)


@pytest.mark.parametrize(("kills", "away_s"), [(2, 0), pytest.param(10, 60, marks=pytest.mark.full)])
def test_through_a_course_of_faults_no_pod_is_lost_none_is_doubled_and_every_gang_is_placed_or_told(
    course, kills, away_s
):
    course.wave(5)

    course.plane.api_server.kill()
    until(lambda: all("following" in each.log for each in course.controllers), course.controllers[0].log.strip)
    time.sleep(away_s)  # longer than a Lease: nobody leads when it is back
    course.plane.start_api_server()
    course.wave()

    course.strata.hook.popen.send_signal(signal.SIGKILL)
    course.strata.hook.popen.wait()
    with pytest.raises(ApiFailed, match="failed calling webhook"):
        course.submit(1, 1, name="refused")
    course.strata.hook = course.strata.webhook()
    course.wave()

    course.plane.etcd.kill()
    course.plane.start_etcd()
    course.wave()

    away = course.rng.sample(NODES, len(NODES) // 10)
    for name in away:
        ready(course.api, name, "Unknown")
    course.wave()  # by its end the controller has heard of it
    new = [course.submit(*shape) for shape in ((2, 4), (8, 1))]
    course.settle()
    assert not {node for name in new for node, _ in course.places(name)} & set(away)
    for name in away:
        ready(course.api, name, "True")
    course.wave()

    for _ in range(kills):
        leader = until(course.leader, lambda: str(course.api.get(LEASE, "strata-controller", SYSTEM)))
        leader.popen.send_signal(signal.SIGKILL)
        leader.popen.wait()
        course.controllers.remove(leader)
        course.start_controller()
        course.wave(2)

    name = course.submit(2, 8)
    course.settle()
    node, device = course.places(name)[0]
    course.strata.found(node, sick=(device,))

    def has_moved():
        places = course.places(name)
        return places and node not in {at for at, _ in places}

    until(has_moved, lambda: f"{name} to leave {node}: {course.logs(name)}")
    course.settle()
    assert any(taint["key"] == "ai.compute/unhealthy" for taint in course.strata.taints(node))
    for controller in course.controllers:
        assert "Traceback" not in controller.log


def ready(api, name, status):
    conditions = [{"type": "Ready", "status": status, "reason": "NodeStatusUnknown"}]
    api.patch(NODE, name, body={"status": {"conditions": conditions}}, subresource="status")
