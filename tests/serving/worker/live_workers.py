"""A gateway with workers, all of them real processes, as tests ask and watch them."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx

from tests.support.real_processes import LIMIT_S, until

ESTABLISHED = "01"
BEATS = ["--heartbeat-timeout", "15"]  # which a busy machine keeps nobody silent for


class Live:
    """A gateway with three workers, none of which holds the model alone, or with a neighbour.

    options: those that say which model, to all.
    """

    def __init__(self, processes, *, memory, model="tiny", options=()):
        self.processes, self.model, self.memory, self.options = processes, model, memory, options
        self.gateway = processes.start("gateway", "--port", "0", *BEATS, *options)
        self.workers = {}
        self.numbers = count()
        self.client = httpx.Client(timeout=LIMIT_S, trust_env=False)
        processes.callback(self.client.close)
        self._add_together("n0", "n1", "n2")
        self.until_lengths(3)

    def _add_together(self, *names):
        """Add workers that join at once: on a busy machine the first two would serve without the last."""
        peer = f"0100007F:{int(self.gateway.address.rpartition(':')[2]):04X}"

        def waiting():
            """Return how many connections to the gateway are open."""
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            return sum(fields[2:4] == [peer, ESTABLISHED] for fields in lines)

        self.gateway.popen.send_signal(signal.SIGSTOP)
        try:
            for name in names:
                self.add(name)
            until(lambda: waiting() >= len(names), lambda: f"{len(names)} workers to ask for the gateway")
        finally:
            self.gateway.popen.send_signal(signal.SIGCONT)

    def add(self, name, memory=None):
        told = ["--gateway", self.gateway.address, "--id", name, "--memory", memory or self.memory]
        self.workers[name] = self.processes.start("worker", *told, *self.options)

    @property
    def status(self):
        return self.client.get(f"{self.gateway.address}/status").json()[self.model]

    @property
    def nodes(self):
        return [node["id"] for node in self.status["nodes"]]

    @property
    def pipelines(self):
        return [one for one in self.status["pipelines"] if one["phase"] == "serving"]

    @property
    def serving(self):
        """Names of the workers in pipelines that serve."""
        return {name for pipeline in self.pipelines for name, _, _ in pipeline["stages"]}

    def until_lengths(self, *lengths):
        """Wait until so many workers each make a pipeline that serves."""
        until(
            lambda: sorted(len(one["stages"]) for one in self.pipelines) == list(lengths),
            lambda: f"pipelines of {lengths}: {self.status}",
        )

    def ask(self, prompt, **fields):
        """Return the id and the text of a completion."""
        answer = self.post("completions", prompt=prompt, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"], answer.json()["choices"][0]["text"]

    def post(self, path, **fields):
        """Return what the gateway answers."""
        body = {"model": self.model, "temperature": 0.0} | fields
        return self.client.post(f"{self.gateway.address}/v1/{path}", json=body)

    def attempts(self, request_id):
        timeline = self.client.get(f"{self.gateway.address}/decisions/{request_id}").json()["timeline"]
        return max(entry.get("attempt", 0) for entry in timeline)

    def order(self, **fields):
        """Return the first worker's address, and what the gateway would send it."""
        (pipeline,) = self.pipelines
        stages = [
            {
                "version": pipeline["version"],
                "node_id": name,
                "url": self.workers[name].address,
                "first": first,
                "end": end,
            }
            for name, first, end in pipeline["stages"]
        ]
        message = {"request_id": f"test-{next(self.numbers)}", "attempt": 1, "stages": stages}
        return stages[0]["url"], message | fields

    def gauge(self, name, metric):
        page = self.client.get(f"{self.workers[name].address}/metrics").text
        return float(page.split(f"\n{metric} ")[1].split()[0])

    @contextmanager
    def streaming(self, prompt, **fields):
        """Open a stream and wait for its first token; yields its id and what returns the rest, all as one text."""
        body = {"model": self.model, "prompt": prompt, "temperature": 0.0, "stream": True} | fields
        with self.client.stream("POST", f"{self.gateway.address}/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            chunks = (json.loads(line[6:]) for line in lines if line.startswith("data: {"))
            first = next(chunks)

            def text():
                return "".join(chunk["choices"][0]["text"] for chunk in (first, *chunks) if chunk["choices"])

            yield first["id"], text

    def route(self, request_id):
        """Return the nodes that a request runs on now."""
        timeline = self.client.get(f"{self.gateway.address}/decisions/{request_id}").json()["timeline"]
        return [stage[0] for stage in [entry for entry in timeline if "route" in entry][-1]["route"]]

    def is_free(self):
        return not any(self.gauge(name, "strata_worker_kv_bytes") for name in self.workers)
