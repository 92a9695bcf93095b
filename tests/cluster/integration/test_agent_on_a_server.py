"""The real agent as a process: made-up tools and a made-up /sys below it, a real API server above."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from strata.cluster.agent.publish import MANAGER
from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, meta
from tests.cluster.integration.definitions import define
from tests.fleet.discovery.tool_outputs import sample
from tests.support.real_processes import LIMIT_S, until


class Machine:
    """A node's tools and bus: chips c1 and c2 of the sample, by their real addresses."""

    def __init__(self, folder):
        self.root, self.tools = folder / "sys", folder / "bin"
        self.tools.mkdir()
        self.info = folder / "info.txt"
        text = sample("npu_smi_24.1.rc1.txt")
        self.say(text)
        tool = self.tools / "npu-smi"
        tool.write_text(f'#!/bin/sh\n[ "$*" = info ] && exec cat {self.info}\nexit 1\n')
        tool.chmod(0o755)
        for bus in ("c1", "c2", "81", "82"):
            device = self.device(bus)
            device.mkdir(parents=True)
            (device / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 0\n")
        port = self.root / "class/infiniband/mlx5_0/ports/1"
        (port / "gids").mkdir(parents=True)
        (port / "gids/0").write_text("fe80:0000:0000:0001:0c42:a103:0065:b1ee\n")
        for name, line in (("state", "4: ACTIVE"), ("rate", "200 Gb/sec (4X HDR)"), ("link_layer", "InfiniBand")):
            (port / name).write_text(f"{line}\n")

    def device(self, bus):
        return self.root / f"bus/pci/devices/0000:{bus}:00.0"

    def say(self, text):
        self.info.with_suffix(".new").write_text(text)
        self.info.with_suffix(".new").rename(self.info)

    def lose_chip(self, number, bus):
        lines = self.info.read_text().splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if f":{bus.upper()}:00.0" in line)
        assert lines[at - 1].startswith(f"| {number} ")
        self.say("".join(lines[: at - 1] + lines[at + 2 :]))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def agent(plane, api, machine):
    """The agent's process, whose kind the server knows."""
    define(api)
    options = ["--node", "node-7", "--every", "300ms", "--heartbeat", "5s", "--port", "0", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "strata", "kube", "agent", *options, "--sys-root", machine.root],
        env=os.environ | {"PATH": f"{machine.tools}:{os.environ['PATH']}", "KUBECONFIG": str(plane.kubeconfig())},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def states(api):
    """Health and faults by the bus of each device; empty where the node is not there."""
    try:
        obj = api.get(COMPUTE_NODE, "node-7")
    except ApiFailed:  # the server was just started again
        return {}
    if obj is None or "status" not in obj:
        return {}
    return {one.bus_id[5:7]: (one.health, one.faults) for one in fingerprint_of(obj).devices}


def test_faults_are_published_through_an_outage_and_the_agent_stops_when_told(plane, api, machine, agent):
    url = f"http://127.0.0.1:{agent.stdout.readline().split()[-1]}"
    known = until(lambda: states(api), lambda: "the first publication")
    assert known == {
        "c1": (1.0, ()),
        "c2": (1.0, ()),
        "81": (0.5, ("npu-warning",)),
        "82": (0.0, ("npu-alarm",)),
    }
    obj = api.get(COMPUTE_NODE, "node-7")
    assert {one["manager"] for one in meta(obj)["managedFields"]} == {MANAGER}
    assert obj["status"]["tool"] == "npu-smi"
    assert obj["status"]["rdmaGroup"] == "ib-fe80000000000001"
    assert [(port.card, port.rate_bytes_per_s) for port in fingerprint_of(obj).ports] == [("mlx5_0", 25e9)]

    counted = machine.device("c1") / "aer_dev_fatal"
    counts = iter(range(1, 10**9))

    def is_told():
        # Again and again: the first may come before the agent has opened the file.
        counted.write_text(f"TOTAL_ERR_FATAL {next(counts)}\n")
        return states(api)["c1"] == (0.0, ("aer-fatal",))

    until(is_told, lambda: states(api))

    plane.api_server.kill()
    machine.lose_chip(1, "c2")
    until(lambda: "lost" in httpx.get(f"{url}/metrics", timeout=LIMIT_S).text, lambda: "the chip to be missed")
    failed = 'strata_agent_publications_total{status="0"}'
    until(lambda: failed in httpx.get(f"{url}/metrics", timeout=LIMIT_S).text, lambda: "an attempt to publish")
    assert httpx.get(f"{url}/healthz", timeout=LIMIT_S).text == "ok"
    plane.start_api_server()
    until(lambda: states(api).get("c2") == (0.0, ("lost",)), lambda: states(api))
    assert list(states(api)) == ["c1", "c2", "81", "82"], "its number in placements is its place"

    agent.send_signal(signal.SIGTERM)

    assert agent.wait(LIMIT_S) == 0
