"""What a gateway adds to an engine: the same requests straight to an engine and through gateways before it.

The engine answers at once, or a token every so often, each in an event of its own, so that what is measured is
the way. It runs in a process of its own, as each gateway does; clients share this one. CPU time is what to compare
where a machine has other work: that of the gateway's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from strata.errors import StrataError
from strata.evaluation.bench.loops import finish
from strata.tables import Line, Shown, rows

MODEL: Final = "bench"
ROUTERS: Final = {"vllm-router": (), "sglang-router": ("launch",)}
"""Programs, and how they are told to start: where they are found they are measured as they are by default."""
PEERS: Final = (*ROUTERS, "dynamo")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
START_S: Final = 60.0
EVENT: Final = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"bench","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,'
    b'"finish_reason":%s,"token_ids":null}]}\n\n'
)
"""As large as those of vLLM."""


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """So many clients, each with a request at a time, until `requests` are answered by `tokens` events each.

    gap_s: from one token to the next.
    """

    clients: int
    requests: int
    tokens: int
    gap_s: float = 0.0


def measure(load: GatewayLoad, *, peers: Mapping[str, str], engine_port: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a run for each way: strata's gateway, routers that are installed, and peers.

    peers: addresses, by name, of gateways that stand before the engine's port already.
    """
    with _engine(engine_port) as port:
        engine = f"http://127.0.0.1:{port}"
        finish(_run, engine, replace(load, requests=load.clients))  # warm, as the others
        yield {"through": "direct", **finish(_run, engine, load)}
        with _strata(engine) as (url, pid):
            yield {"through": "strata", **_measured(url, pid, load)}
        for name, command in ROUTERS.items():
            if name not in peers and (program := shutil.which(name)):
                with _router([program, *command], engine) as (url, pid):
                    yield {"through": name, **_measured(url, pid, load)}
        for name, url in peers.items():
            yield {"through": name, **finish(_run, url, load)}


def _measured(url: str, pid: int, load: GatewayLoad) -> dict[str, Any]:
    """Return a run through a gateway of ours, warm, with what it took of a processor."""
    finish(_run, url, replace(load, requests=load.clients))
    before_s = cpu_s(pid)
    run = finish(_run, url, load)
    return {**run, "cpu_ms_per_request": 1e3 * (cpu_s(pid) - before_s) / load.requests}


def report(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what `-o json` prints: the runs, and which peers had none."""
    through = {run["through"] for run in runs}
    return {"runs": list(runs), "missing": [name for name in PEERS if name not in through], "trust": "measured"}


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown to people."""
    keys = ("requests_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "cpu_ms_per_request")
    body = [
        (run["through"], str(run["clients"]), *(_cell(run, key) for key in keys), str(run["errors"]))
        for run in data["runs"]
    ]
    headers = (
        "through",
        "clients",
        "requests/s",
        "TTFT p50 ms",
        "p99 ms",
        "TPOT p50 ms",
        "CPU ms/request",
        "errors",
    )
    yield rows(headers, body, right=range(1, len(headers)))
    if data["missing"]:
        yield Line(
            f"not measured, since neither installed nor named with --peer: {', '.join(data['missing'])}",
            style="yellow",
        )


def _cell(run: dict[str, Any], key: str) -> str:
    value = run.get(key)
    if value is None:
        return "-"
    return f"{value * 1e3:.2f}" if key.endswith("_s") and not key.endswith("per_s") else f"{value:.3g}"


# Clients


async def _run(url: str, load: GatewayLoad) -> dict[str, Any]:
    """Return the rates and times of a load, as its clients see them."""
    left = list(range(load.requests))
    ttft_s, tpot_s, errors = list[float](), list[float](), list[str]()

    async def client() -> None:
        connection = _Connection(url)
        try:
            while left:
                left.pop()
                try:
                    within_s = START_S + load.tokens * load.gap_s
                    first_s, whole_s, count = await asyncio.wait_for(connection.ask(load), within_s)
                except (OSError, ValueError, TimeoutError) as error:
                    errors.append(f"{type(error).__name__}: {error}")
                    connection.close()
                    continue
                if count != load.tokens:
                    errors.append(f"{count} events instead of {load.tokens}")
                ttft_s.append(first_s)
                tpot_s.append((whole_s - first_s) / max(load.tokens - 1, 1))
        finally:
            connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(load.clients)))
    seconds = time.perf_counter() - started

    def at(times: list[float], share: float) -> float | None:
        return float(np.quantile(times, share)) if times else None

    return {
        "clients": load.clients,
        "requests_per_s": len(ttft_s) / seconds,
        "ttft_p50_s": at(ttft_s, 0.5),
        "ttft_p99_s": at(ttft_s, 0.99),
        "tpot_p50_s": at(tpot_s, 0.5),
        "errors": len(errors),
        "first_error": next(iter(errors), None),
    }


class _Connection:
    """A client's, which it keeps from one request to the next, as clients' libraries do."""

    def __init__(self, url: str) -> None:
        self._parts, self._url = urlsplit(url), url
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        """Begin anew with the next request."""
        if self._ends:
            self._ends[1].close()
        self._ends = None

    async def ask(self, load: GatewayLoad) -> tuple[float, float, int]:
        """Return the seconds until the first event and until the last, and the number of events with text."""
        if self._ends is None or self._ends[0].at_eof():
            self.close()
            self._ends = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        reader, writer = self._ends
        # Routers hand on what is said, but not every key.
        message = json.dumps([load.tokens, load.gap_s])
        ask = {"model": MODEL, "messages": [{"role": "user", "content": message}], "stream": True}
        body = json.dumps(ask | {"max_tokens": load.tokens}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._parts.netloc}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError(f"{self._url} answered {status.decode(errors='replace').strip()}")
        first_s, count = 0.0, 0
        while data := await reader.read(2**16):
            num_tokens = data.count(b'"content":" token"')
            if num_tokens and not count:
                first_s = time.perf_counter() - started
            count += num_tokens
            if data.endswith(b"0\r\n\r\n"):  # the last chunk
                break
        else:
            self.close()
        return first_s, time.perf_counter() - started, count


# The engine


class _Engine(asyncio.Protocol):
    """Answers a chat with events, written one by one, and all else with the model it serves."""

    def __init__(self) -> None:
        self._data, self._tasks = b"", set[asyncio.Task[None]]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            if len(rest) < length:
                return
            self._data = rest[length:]
            if not head.startswith(b"POST /v1/chat/completions "):  # routers ask more than we do
                model = b'{"data":[{"id":"%s"}]}' % MODEL.encode()
                self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(model) + model)
                continue
            stream = self._stream(*json.loads(json.loads(rest[:length])["messages"][0]["content"]))
            task = asyncio.get_running_loop().create_task(stream)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _stream(self, tokens: int, gap_s: float) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head)
        for number in range(tokens):
            event = EVENT % (b'"length"' if number == tokens - 1 else b"null")
            self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(gap_s)
        self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _serve_engine(port: int, says: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Engine, "127.0.0.1", port)
        says.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


@contextmanager
def _engine(port: int) -> Iterator[int]:
    """Yield the port of an engine in a process of its own."""
    context = get_context("spawn")
    hears, says = context.Pipe(duplex=False)
    process = context.Process(target=_serve_engine, args=(port, says), daemon=True)
    process.start()
    says.close()
    try:
        if not hears.poll(START_S):
            raise StrataError("the engine of the measurement did not start", hint="another --engine-port")
        yield hears.recv()
    except EOFError:
        raise StrataError("the engine of the measurement ended", hint="another --engine-port") from None
    finally:
        process.kill()
        process.join()
        hears.close()


@contextmanager
def _strata(engine: str) -> Iterator[tuple[str, int]]:
    """Yield the address of a gateway before the engine, and the number of its process."""

    arguments = ["serve", "gateway", "--port", "0", "--backend", f"{engine},model={MODEL},slots=1024"]
    with subprocess.Popen(
        [sys.executable, "-m", "strata", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().removeprefix("gateway listens at ")
            if not url:
                raise StrataError("the gateway did not start", hint="strata serve gateway")
            yield url, process.pid
            process.send_signal(signal.SIGTERM)
            process.wait(START_S)
        finally:
            process.kill()


@contextmanager
def _router(command: list[str], engine: str) -> Iterator[tuple[str, int]]:
    """Yield the address of another router before the engine, and the number of its process."""
    port, metrics_port = _free_port(), _free_port()
    url = f"http://127.0.0.1:{port}"
    command += ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            ends_s = time.monotonic() + START_S
            while finish(_run, url, GatewayLoad(1, 1, 1))["errors"]:
                if process.poll() is not None or time.monotonic() > ends_s:
                    raise StrataError(f"{command[0]} did not start", hint=" ".join(command))
                time.sleep(0.2)
            yield url, process.pid
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
