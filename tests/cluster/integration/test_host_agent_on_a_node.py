"""The host agent's DaemonSet on a real node: what it sees of others' pods with no more rights than it asks for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.cluster.api.kinds import POD, name_of
from tests.cluster import objects
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.cluster.integration.daemon_sets import SYSTEM, NodePart
from tests.cluster.integration.real_node import RealNode
from tests.support.real_processes import until

pytestmark = pytest.mark.real("grpc", "node", "node-rights")

CAPABILITIES = (2, 19)
"""Bits of CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE (linux/capability.h)."""
# Two processes a CPU, so that each waits half of its time; a user's, who shows nothing to others.
BUSY = """
printf '{"step": 7}\\n{"st' > /tmp/progress
for i in $(seq $(($(grep -c ^processor /proc/cpuinfo) * 2))); do while :; do :; done & done
wait
"""


@pytest.fixture(scope="module")
def node(plane, api):
    plane.controller_manager()
    plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    with RealNode(plane, api) as made, plane.scheduler():
        yield made


def busy_pod(name, namespace):
    pod = objects.pod(name)
    pod["metadata"] = {"name": name, "namespace": namespace}
    env = {"STRATA_JOB": "train", "RANK": "3", "STRATA_PROGRESS": "/tmp/progress"}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", BUSY],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}]
    return pod | {"spec": {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}}


def agents():
    """Return the folders in /proc of agents that run in a container."""
    processes = (
        path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if b"host\0agent" in path.read_bytes()
    )
    return [process for process in processes if "kubepods" in (process / "cgroup").read_text()]


def effective_capabilities(process):
    lines = (line.split() for line in (process / "status").read_text().splitlines())
    return next(int(words[1], 16) for words in lines if words[0] == "CapEff:")


def test_the_agent_knows_jobs_of_other_users_with_the_two_capabilities_it_asks_for(node, api, namespace):
    """Without DAC_READ_SEARCH it knew the variables and devices of root's processes alone."""
    agent = NodePart(node, "components/host-agent/agent.yaml", "--interval", "0.3")
    api.create(POD, busy_pod("busy", namespace))
    mine = {"job_name": "train", "rank": "3"}
    delays = "strata_host_run_queue_delay_seconds_total"
    until(lambda: sum(agent.samples(delays, **mine)) > 1.0, lambda: agent.log)
    assert agent.samples("strata_host_threads", **mine) == [2 * os.cpu_count() + 1]
    until(lambda: agent.samples("strata_host_step", **mine) == [7], lambda: "the step that the program wrote")
    held = "strata_host_throttled_seconds_total"  # not read at every look
    until(lambda: agent.samples(held, job_name="train") == [0], lambda: "the throttling of a pod without a limit")
    (status,) = api.get(POD, name_of(agent.pod), SYSTEM)["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert [effective_capabilities(process) for process in agents()] == [sum(1 << bit for bit in CAPABILITIES)]
