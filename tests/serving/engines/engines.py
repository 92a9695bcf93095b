"""Real engines behind a real gateway, all of them processes on the loopback."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.serving.worker.processes import Processes
from tests.support.ports import free_ports
from tests.support.real_processes import LIMIT_S, until

HERE = Path(__file__).parent
MODEL = "llama"
BEATS = ["--heartbeat-timeout", "24"]  # a look every two seconds
START_S = 1200.0
"""vLLM imports for a minute on two quiet cores, and was seen to take four on busy ones."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
"""What keeps vLLM off the network, on one core of a machine that it shares, and small [GiB]."""


SHARED_FILE = re.compile(r" (/dev/shm/\S+)$", re.MULTILINE)


def find() -> Path | None:
    """Return the folder of `make engines`; None where it has not run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strata" / "engines"
    return cache if (cache / "sources").exists() else None


def python(*arguments: str | Path) -> list[str]:
    """A command line of the engines' own Python."""
    folder = find()
    assert folder is not None
    return [str(folder / "bin" / "python"), *map(str, arguments)]


@functools.cache
def model(name: str) -> Path:
    """Return a model of random weights, written once: `llama.gguf`, or a folder."""
    folder = Path(tempfile.mkdtemp(prefix="strata-engines-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(
        python(HERE / "write_models.py", folder / name),
        check=True, env=os.environ | QUIET, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    return folder / name


class Engine:
    """An engine, or a rank of one, with all its processes."""

    def __init__(self, log: Path, command: list[str], port: int = 0, **variables: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log, self._file = log, log.open("w")
        self.popen = subprocess.Popen(
            command,
            stdout=self._file,
            stderr=self._file,
            env=os.environ | QUIET | variables,
            start_new_session=True,
        )

    def is_up(self) -> bool:
        """Whether it answers."""
        assert self.popen.poll() is None, self.log.read_text()[-4000:]
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def wait(self) -> None:
        """Return when it answers."""
        until(self.is_up, lambda: f"{self.url}: {self.log.read_text()[-4000:]}", limit_s=START_S)

    def ask(self, path: str = "completions", **fields) -> dict:
        """Ask it, past the gateway."""
        body = {"model": MODEL, "temperature": 0} | fields
        answer = httpx.post(f"{self.url}/v1/{path}", json=body, timeout=LIMIT_S, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self) -> str:
        """Return its metrics."""
        return httpx.get(f"{self.url}/metrics", timeout=LIMIT_S, trust_env=False).text

    def metric(self, name: str) -> float:
        """Return the sum of a metric's series."""
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.page(), re.MULTILINE)
        return sum(map(float, found))

    def kill(self) -> None:
        """End all of its processes at once, and what they share in memory, which would stay."""
        shared = self._shared_memory()
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(LIMIT_S)
        for file in shared:
            file.unlink(missing_ok=True)

    def _shared_memory(self) -> set[Path]:
        shared = set[Path]()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                group = int((process / "stat").read_text().rpartition(")")[2].split()[2])
                if group == self.popen.pid:
                    shared |= set(map(Path, SHARED_FILE.findall((process / "maps").read_text())))
            except OSError:  # it has ended
                continue
        return shared

    def close(self) -> None:
        """Leave nothing behind."""
        if self.popen.poll() is None:
            self.kill()
        self._file.close()


class Stream:
    """An answer of the gateway that comes piece by piece."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        self._events = (line.removeprefix("data: ") for line in lines if line)
        self.chunks: list[dict] = []
        self.is_done = False

    @property
    def id(self) -> str:
        return self.chunks[0]["id"]

    @property
    def text(self) -> str:
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)

    def read(self, letters: float = float("inf")) -> str:
        """Read so many letters, or all; return the text so far."""
        while len(self.text) < letters:
            event = next(self._events, None)
            if event is None:
                break
            if event == "[DONE]":
                self.is_done = True
            else:
                self.chunks.append(json.loads(event))
        return self.text


class Front(Processes):
    """A gateway, what it says, and engines whose logs lie beside its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.client = self.enter_context(httpx.Client(timeout=LIMIT_S, trust_env=False))

    def engine(self, name: str, command: list[str], port: int = 0, **variables: str) -> Engine:
        """Start an engine."""
        made = Engine(self.folder / f"{name}.log", command, port, **variables)
        self.callback(made.close)
        return made

    def llama_cpp(self, port: int = 0, *, name: str = MODEL, slots: int = 2) -> Engine:
        """Start a llama.cpp server."""
        port = port or free_ports(1)[0]
        command = python(HERE / "llama_server.py", model("llama.gguf"), name, port, slots)
        return self.engine(f"llama-{port}", command, port)

    def open(self, *backends: str, options: Sequence[str] = ()) -> Front:
        """Start the gateway before engines."""
        told = [word for backend in backends for word in ("--backend", backend)]
        self.gateway = self.start("gateway", "--port", "0", *BEATS, *told, *options)
        self.client.base_url = self.gateway.address
        return self

    def status(self, name: str = MODEL) -> dict:
        """What the gateway says of a model."""
        return self.client.get("/status").json().get(name, {"nodes": [], "suspects": []})

    def node(self, number: int, name: str = MODEL) -> dict | None:
        """What it says of a backend that serves."""
        return next((node for node in self.status(name)["nodes"] if node["id"] == f"backend-{number}"), None)

    def until_nodes(self, *numbers: int, name: str = MODEL) -> None:
        """Wait until these backends serve, and no others."""
        wanted = [f"backend-{number}" for number in numbers]
        until(
            lambda: [node["id"] for node in self.status(name)["nodes"]] == wanted,
            lambda: f"{wanted}: {self.status(name)}, {self.gateway.log}",
        )

    def ask(self, path: str = "completions", **fields) -> dict:
        """Ask the gateway."""
        answer = self.client.post(f"/v1/{path}", json={"model": MODEL, "temperature": 0} | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @contextmanager
    def stream(self, path: str = "completions", **fields):
        """Open a stream."""
        body = {"model": MODEL, "temperature": 0, "stream": True} | fields
        with self.client.stream("POST", f"/v1/{path}", json=body) as answer:
            yield Stream(answer)

    def where(self, request_id: str) -> list[int]:
        """Return the numbers of the backends that a request was sent to, in turn."""
        timeline = self.client.get(f"/decisions/{request_id}").json()["timeline"]
        return [int(entry["route"][0][0].removeprefix("backend-")) for entry in timeline if "route" in entry]
