"""What a pipeline of workers costs beside one worker: the same requests through one and through several stages.

Workers are real processes with the made-up model; the gateway of this process only tells them their layers, so
that none of its time is counted. CPU time of all workers together is what to compare on a machine with other work.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from strata.errors import StrataError
from strata.evaluation.bench.gateway import START_S, cpu_s
from strata.evaluation.bench.loops import finish
from strata.tables import Shown, rows

PROMPT: Final = tuple(range(1, 17))
LONG_PROMPT: Final = tuple(i % 256 for i in range(512))
"""Of what is handed over, or computed anew."""
TOKEN: Final = re.compile(rb'{"token":(\d+)}')
BEAT_S: Final = 0.2
LATE: Final = 50
"""Times as many answers as are asked for that may be over before they are interrupted."""
QUIET_S: Final = 3600.0
"""From one heartbeat to the next once all has been heard: they would be counted with the tokens."""


@dataclass(frozen=True, slots=True)
class PipelineLoad:
    """Each client asks so many requests, one after the other, each of so many tokens."""

    stages: int
    requests: int
    tokens: int
    layers: int
    hidden: int


def measure(load: PipelineLoad, *, clients: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a run for one stage and one for several, for each number of clients."""
    for stages in dict.fromkeys((1, load.stages)):
        with _Workers(load, stages) as workers:
            finish(_run, workers, load, 1, requests=1)  # warm
            for count in clients:
                before_s = workers.cpu_s
                run = finish(_run, workers, load, count, requests=load.requests)
                spent_s = workers.cpu_s - before_s
                made = count * load.requests * load.tokens
                yield {
                    "stages": stages,
                    "clients": count,
                    **run,
                    "cpu_ms_per_token": 1e3 * spent_s / made,
                    "hop_s": workers.hop_s() if stages > 1 else 0.0,
                    "load_average": os.getloadavg()[0],
                }
            for is_kept in (True, False):
                yield {"stages": stages, **finish(_interrupted, workers, load, is_kept=is_kept)}


def report(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what `-o json` prints: runs, and of each of several stages its ratio to one with as many clients.

    interruptions: what comes between the last token of one attempt and the first of the next, by how it went on.
    cpu_ratio: CPU time a token. time_ratio: time a token without the measured hops, of which each stage has one.
    """
    interruptions = [run for run in runs if "goes_on_by" in run]
    runs = [run for run in runs if "clients" in run]
    alone = {run["clients"]: run for run in runs if run["stages"] == 1}
    ratios = [
        {
            "stages": run["stages"],
            "clients": run["clients"],
            "cpu_ratio": run["cpu_ms_per_token"] / alone_run["cpu_ms_per_token"],
            "time_ratio": (run["tpot_p50_s"] - run["stages"] * run["hop_s"]) / alone_run["tpot_p50_s"],
        }
        for run in runs
        if run["stages"] > 1 and (alone_run := alone.get(run["clients"])) and alone_run["cpu_ms_per_token"]
    ]
    return {"runs": runs, "ratios": ratios, "interruptions": interruptions, "trust": "measured"}


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown to people."""
    body: list[tuple[str, ...]] = [
        (
            str(run["stages"]),
            str(run["clients"]),
            f"{run['cpu_ms_per_token']:.3f}",
            f"{1e3 * run['tpot_p50_s']:.2f}",
            f"{run['tokens_per_s']:.0f}",
            f"{1e3 * run['hop_s']:.3f}",
            f"{run['load_average']:.1f}",
        )
        for run in data["runs"]
    ]
    headers: tuple[str, ...] = (
        "stages",
        "clients",
        "CPU ms/token",
        "TPOT p50 ms",
        "tokens/s",
        "hop ms",
        "load average",
    )
    yield rows(headers, body, right=range(len(headers)))
    ratios: list[tuple[str, ...]] = [
        (str(each["stages"]), str(each["clients"]), f"{each['cpu_ratio']:.2f}", f"{each['time_ratio']:.2f}")
        for each in data["ratios"]
    ]
    headers = ("stages", "clients", "CPU: times one stage", "TPOT less hops: times one stage")
    yield rows(headers, ratios, right=range(len(headers)))
    gaps: list[tuple[str, ...]] = [
        (
            str(each["stages"]),
            each["goes_on_by"],
            str(each["tokens"]),
            f"{1e3 * each['gap_p50_s']:.1f}",
            f"{each['cpu_ms']:.1f}",
        )
        for each in data["interruptions"]
    ]
    headers = ("stages", "goes on by", "tokens cached", "gap p50 ms", "CPU ms of it")
    yield rows(headers, gaps, right=(0, 2, 3, 4))


async def _run(workers: _Workers, load: PipelineLoad, clients: int, *, requests: int) -> dict[str, Any]:
    """Return the rates and times of a load, as its clients see them."""
    tpot_s = list[float]()

    async def client(number: int) -> None:
        for i in range(requests):
            heard = bytearray()
            times = _ask(workers, load, f"{time.time_ns()}-{number}-{i}", heard)
            stamps = await asyncio.wait_for(times, 10 * START_S)
            if len(stamps) != load.tokens:
                raise StrataError(f"{len(stamps)} tokens instead of {load.tokens}: {_end(heard)!r}")
            tpot_s.append((stamps[-1] - stamps[0]) / (load.tokens - 1))

    started = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - started
    return {
        "tpot_p50_s": statistics.median(tpot_s),
        "tokens_per_s": clients * requests * load.tokens / seconds,
    }


async def _ask(workers: _Workers, load: PipelineLoad, request_id: str, heard: bytearray) -> list[float]:
    """Return when each token came."""
    message = {"request_id": request_id, "attempt": 1, "prompt": PROMPT, "max_tokens": load.tokens}
    return [stamp async for stamp, _ in _tokens(workers, message, heard)]


async def _interrupted(workers: _Workers, load: PipelineLoad, *, is_kept: bool) -> dict[str, Any]:
    """Interrupt an answer in its middle, and go on with what was cached or without; by the same workers."""
    gaps_s, spent_s, half = list[float](), 0.0, load.tokens // 2
    for _ in range(LATE * load.requests):
        if len(gaps_s) == load.requests:
            break
        name = str(time.time_ns())
        message = {"request_id": name, "attempt": 1, "prompt": LONG_PROMPT, "max_tokens": load.tokens}
        generated, heard, heard_onward = list[int](), bytearray(), bytearray()
        async with aclosing(_tokens(workers, message, heard)) as tokens:
            async for _, token in tokens:
                generated.append(token)
                if len(generated) == half:
                    break
            before_s, start = workers.cpu_s, time.perf_counter()
            abort = {"request_id": name, "attempt": 1, "is_kept": is_kept}
            async for _data in _post(workers, "/abort", abort):
                pass
            message |= {"attempt": 2, "generated": generated}
            if is_kept:
                cached = len(LONG_PROMPT) + half - 1
                message["kept"] = {"attempt": 1, "tokens": cached, "stages": workers.stages}
            async with aclosing(_tokens(workers, message, heard_onward)) as onward:
                async for stamp, _ in onward:
                    gaps_s.append(stamp - start)
                    spent_s += workers.cpu_s - before_s
                    break
                else:
                    async for _ in tokens:
                        pass
                    # Where this process had no turn for long, the answer was over, and its memory free, before it
                    # was interrupted.
                    if b'"finish"' not in heard:
                        raise StrataError(f"an interrupted answer did not go on: {_end(heard_onward)!r}")
    if len(gaps_s) < load.requests:
        raise StrataError(
            "answers are over before they can be interrupted: this machine is too busy", hint="--tokens 256"
        )
    return {
        "goes_on_by": "moving" if is_kept else "computing",
        "tokens": len(LONG_PROMPT) + half - 1,
        "gap_p50_s": statistics.median(gaps_s),
        "cpu_ms": 1e3 * spent_s / load.requests,
    }


async def _tokens(
    workers: _Workers, message: dict[str, Any], heard: bytearray
) -> AsyncGenerator[tuple[float, int], None]:
    """Yield tokens, and when each came. heard: takes all that the worker answers."""
    async with aclosing(_post(workers, "/generate", message | {"stages": workers.stages})) as pieces:
        async for piece in pieces:
            heard += piece
            for token in TOKEN.findall(piece):
                yield time.perf_counter(), int(token)


def _end(heard: bytearray) -> bytes:
    """Return the last of what a worker answered, which says why it ended."""
    return bytes(heard[-200:])


async def _post(workers: _Workers, path: str, message: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield what the first worker answers, as it comes."""
    body = json.dumps(message).encode()
    host, _, port = workers.stages[0]["url"].removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while data := await reader.read(2**16):
            yield data
    finally:
        writer.close()


class _Workers(ExitStack):
    """Workers that have loaded their share of the layers, and the gateway that told them."""

    def __init__(self, load: PipelineLoad, count: int) -> None:
        super().__init__()
        cuts = [load.layers * i // count for i in range(count + 1)]
        self.ranges = {f"n{i}": (cuts[i], cuts[i + 1]) for i in range(count)}
        self.urls, self.loaded, self._hops = dict[str, str](), set[str](), dict[str, float]()
        gateway = self.enter_context(_gateway(self))
        model = ["--layers", str(load.layers), "--hidden", str(load.hidden)]
        processes = [self._start(["--id", name, "--gateway", gateway, *model]) for name in self.ranges]
        self._pids = [process.pid for process in processes]
        end = time.monotonic() + START_S
        while len(self.loaded) < count or (count > 1 and len(self._hops) < count):
            if time.monotonic() > end or any(process.poll() is not None for process in processes):
                raise StrataError("the workers of the measurement did not start", hint="strata serve worker")
            time.sleep(BEAT_S)
        self.stages: list[dict[str, Any]] = [
            {"version": 1, "node_id": name, "url": self.urls[name], "first": first, "end": end}
            for name, (first, end) in self.ranges.items()
        ]

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "strata", "serve", "worker", "--memory", "256MB", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        self.callback(process.wait)
        self.callback(process.send_signal, signal.SIGKILL)
        return process

    @property
    def cpu_s(self) -> float:
        """CPU time of all so far."""
        return sum(cpu_s(pid) for pid in self._pids)

    def hop_s(self) -> float:
        """Return the hop that workers measured: the median of all."""
        return statistics.median(self._hops.values())

    def heard(self, path: str, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to what a worker says."""
        name = message["node_id"]
        if path == "join":
            self.urls[name] = message["url"]
        if path == "loaded":
            self.loaded.add(name)
        count = len(self.ranges)
        if (hop_s := message.get("hop_s", {})) and len(hop_s) == count - 1:
            self._hops[name] = statistics.median(hop_s.values())
        first, end = self.ranges[name]
        return {
            "ranges": [{"version": 1, "first": first, "end": end}],
            "peers": {other: url for other, url in self.urls.items() if other != name},
            "heartbeat_interval_s": QUIET_S if name in (self._hops if count > 1 else self.loaded) else BEAT_S,
        }


@contextmanager
def _gateway(workers: _Workers) -> Iterator[str]:
    """Yield the address of a gateway that tells workers their layers, and no more."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from strata.net.http import Frame, Limits
    from strata.net.metrics import Counter, Registry
    from strata.net.server import listen, serving

    async def nodes(request: Request) -> JSONResponse:
        return JSONResponse(workers.heard(request.path_params["what"], await request.json()))

    counter = Counter("strata_bench_requests_total", "Answers by status.", ["code"], registry=Registry())
    app = Starlette(routes=[Route("/nodes/{what}", nodes, methods=["POST"])])
    frame = Frame(app, realms=(), limits=Limits(), requests=counter)
    with listen("127.0.0.1", 0) as listener, serving(frame, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
