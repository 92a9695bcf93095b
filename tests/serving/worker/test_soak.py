"""Two gateways, workers of each, many clients, and one fault after the other: `make soak`.

Whatever breaks, a client has the text that one process says, once, or hears that it has none; no process grows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from statistics import median

import httpx
import pytest

from strata.serving.tokens import EOS, encode
from strata.serving.worker.shape import Shape
from tests.serving.texts import decode
from tests.serving.worker.clients import Client
from tests.serving.worker.live_workers import BEATS
from tests.serving.worker.processes import Processes
from tests.support.real_processes import LIMIT_S, until

SOAK_S = float(os.environ.get("STRATA_SOAK_S", "120"))
pytestmark = [
    pytest.mark.real("torch"),
    pytest.mark.full("minutes, and as long as STRATA_SOAK_S says"),
    pytest.mark.timeout(SOAK_S + 1800),
]

CLIENTS, PROMPTS, TOKENS = 200, 8, 24
PAUSE_S = 10.0
"""As long as a worker stands still (SIGSTOP), and between two faults."""
TIMELINE_BYTES, TIMELINES = 4096, 10_000
"""What a gateway remembers of a request, and of how many."""


@pytest.fixture(scope="module")
def texts():
    """What one process says after each prompt."""
    from tests.serving.worker.single_process import generate

    prompts = [f"request {number}" for number in range(PROMPTS)]
    return {
        prompt: decode(generate(Shape(), encode(prompt), max_tokens=TOKENS, stop_tokens=(EOS,)))
        for prompt in prompts
    }


class House:
    """Two gateways on ports that stay theirs: one before three workers in a row, one before one that is enough."""

    def __init__(self, processes):
        self.processes, self.gateways, self.workers = processes, [], {}
        for _ in range(2):
            self.gateways.append(processes.start("gateway", "--port", "0", *BEATS))
        for name, number, memory in (("a", 0, "15MB"), ("b", 0, "15MB"), ("c", 0, "15MB"), ("whole", 1, "64MB")):
            self.add(name, number, memory)
        self.urls = [gateway.address for gateway in self.gateways]

    def add(self, name, number, memory):
        told = ["--gateway", self.gateways[number].address, "--id", name, "--memory", memory]
        self.workers[name] = self.processes.start("worker", *told)

    def kill_worker(self):
        """kill -9 of one of three; it comes back under its name."""
        self.workers["b"].end(signal.SIGKILL)
        self.add("b", 0, "15MB")

    async def stop_worker(self):
        """SIGSTOP for ten seconds."""
        self.workers["c"].popen.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        self.workers["c"].popen.send_signal(signal.SIGCONT)

    async def kill_gateway(self):
        """kill -9 of a gateway beside the other; another one takes its port, and its workers join that."""
        port = self.urls[0].rpartition(":")[2]
        self.gateways[0].end(signal.SIGKILL)
        await asyncio.sleep(PAUSE_S / 2)
        self.gateways[0] = self.processes.start("gateway", "--port", port, *BEATS)

    async def faults(self):
        """One after the other, until cancelled."""
        while True:
            for fault in (self.kill_worker, self.stop_worker, self.kill_gateway):
                await asyncio.sleep(PAUSE_S)
                if (waits := fault()) is not None:
                    await waits

    def sizes(self):
        """Resident bytes of what lives from beginning to end."""
        return {name: resident_bytes(one.popen.pid) for name, one in self.lasting.items()}

    @property
    def lasting(self):
        return {"gateway": self.gateways[1], "a": self.workers["a"], "whole": self.workers["whole"]}


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def soaked(house, texts):
    """Return the ends of all requests, the texts that were wrong, and sizes over time with requests until then."""
    limits = httpx.Limits(max_connections=None)
    sizes = []
    async with httpx.AsyncClient(timeout=LIMIT_S, limits=limits, trust_env=False) as http:
        clients = [Client(http, house.urls, texts, number, tokens=TOKENS) for number in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        tasks.append(asyncio.create_task(house.faults()))
        try:
            for _ in range(30):
                done, _ = await asyncio.wait(tasks, timeout=SOAK_S / 30, return_when=asyncio.FIRST_COMPLETED)
                for task in done:  # none ends by itself
                    await task
                served = sum(client.ends["whole"] for client in clients)
                sizes.append((served, house.sizes()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    ends = sum((client.ends for client in clients), Counter())
    return ends, [one for client in clients for one in client.wrong], sizes


def test_whatever_breaks_every_request_ends_once_with_the_right_text_or_an_error_and_nothing_grows(
    texts, tmp_path
):
    with Processes(tmp_path) as processes:
        house = House(processes)
        ready(house)
        ends, wrong, sizes = asyncio.run(soaked(house, texts))
        ready(house)
        assert [said_by(url, prompt) for url in house.urls for prompt in texts] == [*texts.values()] * 2
        logs = [one.log for one in (*house.gateways, *house.workers.values())]
    sys.stdout.write(f"{SOAK_S:g} s, {CLIENTS} clients: {dict(ends)}\n")
    mib = {name: [round(size[name] / 2**20) for _, size in sizes[::6]] for name in sizes[0][1]}
    sys.stdout.write(f"MiB over time: {mib}\n")
    assert wrong == []
    assert ends["whole"] > 0
    assert not any("Traceback" in log for log in logs)
    third = len(sizes) // 3
    remembered = max(0, min(TIMELINES, sizes[-1][0]) - sizes[third][0]) * TIMELINE_BYTES
    for name in sizes[0][1]:
        before, after = (
            median(size[name] for _, size in part) for part in (sizes[third : 2 * third], sizes[-third:])
        )
        assert after < 1.1 * before + remembered, f"{name} grew from {before} to {after} bytes"


def ready(house):
    """Wait until both gateways serve."""
    for url in house.urls:
        until(lambda url=url: is_well(url), lambda url=url: f"{url} to serve")


def is_well(url):
    try:
        return httpx.get(f"{url}/healthz", timeout=LIMIT_S, trust_env=False).status_code == 200
    except httpx.ConnectError:
        return False


def said_by(url, prompt):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0.0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S, trust_env=False)
    return answer.json()["choices"][0]["text"]
