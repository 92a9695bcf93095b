"""Three hosts, a real torch job across them and a neighbour beside one of its ranks: the agents say who is late.

A host is a namespace of the network and one of processes, whose first is its agent: what it sees is its own. All
share this machine's CPUs, of which the host with the neighbour has one to itself.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from strata.evaluation.testbed.namespaces import Namespaces, address
from tests.support.real_processes import LIMIT_S, until

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.real("torch", "starlette", "uvicorn"),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare", "nsenter"))),
        reason="needs root, ip, tc, unshare and nsenter",
    ),
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs: one for the host with a neighbour"),
]
RANK = Path(__file__).with_name("ddp_rank.py")
STRATA = (sys.executable, "-m", "strata", "host")
NOISY = 1
NEIGHBOUR = """
import os
from contextlib import suppress
os.nice(-20)
with suppress(OSError), open("/proc/self/autogroup", "w") as group:
    group.write("-20")
with open("/proc/self/comm", "w") as name:
    name.write("neighbour")
print(flush=True)
while True:
    pass
"""
"""It has 86 times the share of a trainer: thirty others on this machine are little beside it."""


class Host:
    """One host: `run` starts something on it; its processes end with its agent."""

    def __init__(self, network, number, stack):
        self.network, self.number, self.stack = network, number, stack
        self.cpu = CPUS[-1] if number == NOISY else CPUS[number % (len(CPUS) - 1)]
        inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        agent = (*STRATA, "agent", "--host", "0.0.0.0", "--interval", "1")
        shell = self._started(network.command(number, [*inside, *agent]), stderr=subprocess.PIPE)
        assert "metrics: http://" in shell.stderr.readline()
        self.first = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()[0]

    def run(self, *command, **environment):
        into = ("nsenter", "--target", self.first, "--net", "--pid", "--mount")
        # Each of a session of its own: the kernel shares CPUs out between sessions first.
        return self._started(
            [*into, "taskset", "--cpu-list", str(self.cpu), *command],
            env={**os.environ, **environment}, stdout=subprocess.PIPE,
        )  # fmt: skip

    def _started(self, command, **more):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **more)
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return process


def train(hosts, folder):
    """Start a rank on each host, and return once all do steps."""
    files = [folder / f"{rank}.jsonl" for rank in range(len(hosts))]
    for rank, (host, progress) in enumerate(zip(hosts, files, strict=True)):
        host.run(
            sys.executable, str(RANK), str(progress), STRATA_JOB="ddp", STRATA_PROGRESS=str(progress),
            RANK=str(rank), WORLD_SIZE=str(len(hosts)), MASTER_ADDR=address(0), MASTER_PORT="29500",
            GLOO_SOCKET_IFNAME=host.network.interface(rank), OMP_NUM_THREADS="1",
        )  # fmt: skip
    until(lambda: all(file.exists() and file.read_text().count("\n") > 1 for file in files), lambda: "steps")


def test_the_rank_beside_a_neighbour_is_named_with_its_host_its_thread_who_is_beside_it_and_the_cost(tmp_path):
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(3, has_latency=False))
        hosts = [Host(network, number, stack) for number in range(3)]
        train(hosts, tmp_path)
        neighbour = hosts[NOISY].run(sys.executable, "-c", NEIGHBOUR)
        neighbour.stdout.readline()
        agents = [f"host-{number}=http://{address(number)}:9102" for number in range(3)]
        answer = subprocess.run(
            network.command(0, [*STRATA, "ranks", *agents, "--seconds", "10", "-o", "json"]),
            stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S,
        )  # fmt: skip
        data = json.loads(answer.stdout)
    (job,) = data["jobs"]
    assert data["left_out"] == []
    assert (job["job"], job["host"], job["rank"], job["num_ranks"]) == ("ddp", f"host-{NOISY}", str(NOISY), 3)
    assert job["thread"].startswith(f"{Path(sys.executable).name[:15]} (")
    assert job["culprit"].startswith("neighbour, process ")
    assert job["device_s"] == pytest.approx(3 * job["beyond_median_s"], abs=1e-5)
    assert job["beyond_median_s"] > 0
