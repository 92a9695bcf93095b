"""The host agent's DaemonSet on a real node: what it sees of others' pods with no more rights than it asks for."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from strata.cluster.api.kinds import POD, is_true, name_of
from tests import ROOT
from tests.cluster import objects
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.cluster.integration.real_node import RealNode
from tests.support.real_processes import until

pytestmark = pytest.mark.real("grpc", "node", "node-rights")

MANIFEST = ROOT / "deploy/components/host-agent/agent.yaml"
SYSTEM = "strata-system"
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


def programs():
    """Return the folders of this machine that Python and strata are in: the image is of one static program."""
    places = {Path(place) for place in ("/usr", "/lib", "/lib64", ROOT, sys.prefix, sys.base_prefix)}
    return sorted(place for place in places if place.is_dir() and not places & set(place.parents))


def daemon_set():
    """Return it as it is in `deploy/`; only the program comes from this machine and not from the image."""
    made = yaml.safe_load(MANIFEST.read_text())
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {"image": IMAGE, "command": [sys.executable, "-m", "strata"]}
    container["args"] += ["--interval", "0.3"]
    container["env"] = [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]  # as the image of deploy/Dockerfile
    for number, place in enumerate(programs()):
        pod["volumes"].append({"name": f"p{number}", "hostPath": {"path": str(place)}})
        mount = {"name": f"p{number}", "mountPath": str(place), "readOnly": True}
        container["volumeMounts"].append(mount)
    return made


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


def logs(node, namespace):
    return "\n".join(path.read_text() for path in sorted(node.logs.glob(f"{namespace}_*/*/*.log")))


def test_the_agent_knows_jobs_of_other_users_with_the_two_capabilities_it_asks_for(node, plane, api, namespace):
    """Without DAC_READ_SEARCH it knew the variables and devices of root's processes alone."""
    plane.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump(daemon_set()))
    api.create(POD, busy_pod("busy", namespace))

    def agent():
        pods, _ = api.list(POD, namespace=SYSTEM)
        return next((pod for pod in pods if is_true(pod, "Ready")), None)

    pod = until(agent, lambda: logs(node, SYSTEM))
    url = f"http://{pod['status']['podIP']}:9102/metrics"

    def series(name, **labels):
        with urllib.request.urlopen(url, timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return [sample.value for sample in samples if labels.items() <= sample.labels.items()]

    mine = {"job_name": "train", "rank": "3"}
    delays = "strata_host_run_queue_delay_seconds_total"
    until(lambda: sum(series(delays, **mine)) > 1.0, lambda: logs(node, SYSTEM))
    assert series("strata_host_threads", **mine) == [2 * os.cpu_count() + 1]
    until(lambda: series("strata_host_step", **mine) == [7], lambda: "the step that the program wrote")
    assert series("strata_host_throttled_seconds_total", job_name="train") == [0], "a pod without a limit"
    (status,) = api.get(POD, name_of(pod), SYSTEM)["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert [effective_capabilities(process) for process in agents()] == [sum(1 << bit for bit in CAPABILITIES)]
