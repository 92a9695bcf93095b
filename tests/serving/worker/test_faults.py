"""Workers of real weights, each a machine of its own: cut off, stopped, out of memory, on a slow disk.

Each has a network namespace. Clients ask all the while: whatever breaks, a request ends with the text that
transformers generates, or hears that it has none.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from strata.evaluation.testbed.namespaces import Namespaces, address
from strata.serving.gateway.build import DEMAND
from tests.serving.pretrained import folders
from tests.serving.worker import scarcity
from tests.serving.worker.clients import Client
from tests.serving.worker.processes import Processes
from tests.support.real_processes import LIMIT_S, until

pytestmark = [
    pytest.mark.real("torch", "transformers"),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("tc") is None,
        reason="makes network namespaces: needs root and iproute2",
    ),
]

NAMES = ("gateway", "a", "b", "c", "whole")
"""Of each namespace, by its number."""
CLIENTS, TOKENS = 6, 60
CALM_S = 5.0
SOON_S = 60.0
"""Long beside what it takes to notice a fault, short beside HEARTBEATS and what steps may take."""
SLOW_BYTES_PER_S = 100_000
WEIGHT_BYTES = 100_000
"""Fewer than any layer's weights have: what comes so slowly takes seconds."""
HEARTBEATS = ("--heartbeat-timeout", "240")
"""So long that they are of no help."""
CLONE_NEWNET = 0x40000000
"""Of `setns`, which Python has from 3.12 on."""
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "once", "upon", "a", "time"]


def do(*command):
    subprocess.run(command, check=True, capture_output=True)


class House:
    """A gateway, three workers in a row and one that is enough, each in its namespace."""

    def __init__(self, processes, namespaces, folder, tmp_path):
        from strata.serving.pretrained.folder import read_folder

        self.processes, self.namespaces, self.folder = processes, namespaces, folder
        hosted = read_folder(folder).hosted
        self.model = hosted.name

        def need(first, end):
            kv = hosted.kv_bytes(first, end, tokens=DEMAND.kv_tokens)
            return hosted.weight_bytes(first, end) + DEMAND.batch * kv

        # What the larger of two workers would need, if it left nothing free: it takes three, which have memory for
        # so many sequences that they and the other one beside them give more tokens/s than all in a row.
        least = min(max(need(0, cut), need(cut, 5)) for cut in range(1, 5))
        self.memory = {"a": f"{least}B", "b": f"{least}B", "c": f"{least}B", "whole": "64MB"}
        self.token = tmp_path / "token"
        self.token.write_text("nodes of this test alone")
        self.token.chmod(0o600)
        for source, dest in self.ways(NAMES):
            # Sooner again after a fault than the testbed's links, which lose nothing, ask for.
            route = f"{address(dest)}/32", "dev", f"to-{dest}"
            do("ip", "-n", namespaces.names[source], "route", "replace", *route)
        self.gateway = self.start(
            "gateway", "gateway", "--host", address(0), "--port", "0",
            *HEARTBEATS, "--node-network", "10.77.0.0/24", "--model", str(folder),
        )  # fmt: skip
        self.url = self.gateway.address
        self.workers = {}
        for name in NAMES[1:4]:
            self.add(name)

    def settle(self):
        """Wait until all workers are in and some serve; the first time all of them do.

        Three in a row and one beside them, unless the machine is so busy that some look much slower.
        """
        if "whole" not in self.workers:
            until(lambda: self.lengths == [3], lambda: f"a pipeline of 3: {self.status}")
            self.add("whole")
            until(lambda: len(self.serving) == 4, lambda: f"all four to serve: {self.status}")
        until(lambda: len(self.status["nodes"]) == 4 and self.lengths, lambda: f"all workers: {self.status}")

    def start(self, name, *arguments):
        within = self.namespaces.command(NAMES.index(name), ())
        return self.processes.start(*arguments, "--node-token-file", str(self.token), within=within)

    def add(self, name, folder=None):
        self.workers[name] = self.start(
            name, "worker", "--gateway", self.url, "--id", name, "--bind", f"{address(NAMES.index(name))}:0",
            "--memory", self.memory[name], "--model", str(folder or self.folder),
        )  # fmt: skip

    def ways(self, names, others=NAMES):
        """Return the ways between some machines and others, both directions, by numbers."""
        pairs = {(NAMES.index(one), NAMES.index(other)) for one in names for other in others if one != other}
        return pairs | {(dest, source) for source, dest in pairs}

    @contextmanager
    def cut(self, names, others=NAMES):
        """Lose every packet between machines, of which nobody hears."""
        for source, dest in self.ways(names, others):
            name = self.namespaces.names[source]
            do("tc", "-n", name, "qdisc", "replace", "dev", f"to-{dest}", "root", "blackhole")
        try:
            yield
        finally:
            for source, dest in self.ways(names, others):
                do("tc", "-n", self.namespaces.names[source], "qdisc", "del", "dev", f"to-{dest}", "root")

    @property
    def status(self):
        return httpx.get(f"{self.url}/status", timeout=LIMIT_S, trust_env=False).json()[self.model]

    @property
    def lengths(self):
        return sorted(len(one["stages"]) for one in self.status["pipelines"] if one["phase"] == "serving")

    @property
    def serving(self):
        """Names of the workers in pipelines that serve."""
        serving = [one for one in self.status["pipelines"] if one["phase"] == "serving"]
        return {stage[0] for one in serving for stage in one["stages"]}

    def route(self):
        """Return the workers of a pipeline of several, while requests run there."""

        def busy():
            serving = [one for one in self.status["pipelines"] if one["phase"] == "serving" and one["running"]]
            return next((one["stages"] for one in serving if len(one["stages"]) > 1), None)

        return [stage[0] for stage in until(busy, lambda: f"requests to run: {self.status}")]


def in_gateways_namespace(namespaces, work):
    """Return what `work` returns in the gateway's namespace: that of a thread of its own."""

    def run():
        with Path("/run/netns", namespaces.names[0]).open() as where:
            assert ctypes.CDLL(None).setns(where.fileno(), CLONE_NEWNET) == 0
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


class Course:
    """Clients that ask all the while. ends: how their requests ended so far."""

    def __init__(self, house, namespaces, texts):
        self.house, self.namespaces, self.texts = house, namespaces, texts
        self.clients = []

    @property
    def ends(self):
        return sum((client.ends for client in self.clients), Counter())

    async def route(self):
        return await asyncio.to_thread(in_gateways_namespace, self.namespaces, self.house.route)

    async def goes_on(self):
        """Return when twice as many requests as there are clients have ended well since now."""
        enough = self.ends["whole"] + 2 * CLIENTS
        async with asyncio.timeout(SOON_S):
            while self.ends["whole"] < enough:
                await asyncio.sleep(0.1)

    async def _asked(self, fault):
        async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
            self.clients = [
                Client(http, [self.house.url], self.texts, number, tokens=TOKENS, model=self.house.model)
                for number in range(CLIENTS)
            ]
            tasks = [asyncio.create_task(client.run()) for client in self.clients]
            tasks.append(asyncio.create_task(self._broken(fault)))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:  # clients never end by themselves
                    await task
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _broken(self, fault):
        await asyncio.sleep(CALM_S)
        await fault(self)
        await asyncio.sleep(CALM_S)

    def run(self, fault):
        """Break something while clients ask; all workers are well before and after, and nothing said is wrong."""

        def work():
            self.house.settle()
            asyncio.run(self._asked(fault))
            self.house.settle()

        in_gateways_namespace(self.namespaces, work)
        sys.stdout.write(f"{dict(self.ends)}\n")
        assert [one for client in self.clients for one in client.wrong] == []
        assert set(self.ends) <= {"whole", "left"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folders.make("mistral", tmp_path_factory.mktemp("folders"))


@pytest.fixture(scope="module")
def texts(folder):
    """What transformers says after each prompt, of those that it does not end early."""
    tokenizer, said = folders.tokenizer(), {}
    for i in range(4):
        prompt = " ".join(WORDS[i : i + 4])
        tokens = tokenizer(prompt)["input_ids"]
        after = folders.generated(folder, tokens, TOKENS)
        whole, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (tokens + after, tokens))
        if len(after) == TOKENS:
            said[prompt] = whole[len(before) :]
    return said


@pytest.fixture(scope="module")
def namespaces():
    with Namespaces(len(NAMES), has_latency=False) as made:
        yield made


@pytest.fixture(scope="module")
def house(namespaces, folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("processes")
    with Processes(logs) as processes:
        yield House(processes, namespaces, folder, logs)


@pytest.fixture
def course(house, namespaces, texts):
    return Course(house, namespaces, texts)


def test_a_worker_that_is_cut_off_costs_no_request(course):
    async def fault(course):
        *_, last = await course.route()
        with course.house.cut([last]):
            await course.goes_on()

    course.run(fault)


def test_a_worker_that_others_do_not_reach_while_the_gateway_does_costs_no_request(course):
    async def fault(course):
        *_, last = await course.route()
        with course.house.cut([last], [name for name in NAMES[1:] if name != last]):
            await course.goes_on()

    course.run(fault)


def test_a_first_worker_that_the_gateway_does_not_reach_while_others_do_costs_no_request(course):
    async def fault(course):
        first, *_ = await course.route()
        with course.house.cut([first], ["gateway"]):
            await course.goes_on()

    course.run(fault)


def test_a_worker_that_stands_still_costs_no_request(course):
    async def fault(course):
        *_, last = await course.route()
        worker = course.house.workers[last].popen
        worker.send_signal(signal.SIGSTOP)
        try:
            await course.goes_on()
        finally:
            worker.send_signal(signal.SIGCONT)

    course.run(fault)


def test_a_worker_that_the_kernel_kills_for_memory_costs_no_request(course):
    async def fault(course):
        *_, last = await course.route()
        worker = course.house.workers[last].popen
        await asyncio.to_thread(memory.run_out, worker.pid)
        assert await asyncio.to_thread(worker.wait, SOON_S) == -signal.SIGKILL
        await course.goes_on()
        course.house.add(last)

    with scarcity.SmallMemory() as memory:
        course.run(fault)


def test_a_worker_whose_disk_is_slow_joins_late_and_costs_no_request(course, folder, tmp_path):
    async def fault(course):
        house = course.house
        *_, last = await course.route()

        def back():
            return disk.read_bytes > WEIGHT_BYTES and last in {node["id"] for node in house.status["nodes"]}

        house.workers[last].end(signal.SIGKILL)
        house.add(last, disk.folder)
        await course.goes_on()
        await asyncio.to_thread(
            in_gateways_namespace,
            course.namespaces,
            lambda: until(back, lambda: f"{last} to join: {house.status}"),
        )
        await course.goes_on()
        # The disk goes with this test, the worker may yet be given other layers.
        house.workers[last].end(signal.SIGKILL)
        house.add(last)

    with scarcity.SlowDisk(folder, tmp_path, bytes_per_s=SLOW_BYTES_PER_S) as disk:
        course.run(fault)
