"""Load on a real `strata serve gateway` process: errors, rates, latency, and what its memory does.

    python benchmarks/gateway_load.py --seconds 20 --connections 64 [--tokens 16] [--stream] [--wrk]

The workers are made up (they answer at once, all tokens in one write) and share a process with the load; all is on
one machine. --wrk also runs wrk (https://github.com/wg/wrk), where it is installed. Prints JSON. Memory is VmRSS
and VmHWM of /proc/PID/status, cpu_ms_per_request the gateway's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from strata.net import metrics
from strata.net.http import Frame, Limits, Realm
from strata.net.server import listen, uvicorn_server
from strata.serving.worker.shape import Shape

SHAPE = Shape(num_layers=4, hidden_size=32)


class Worker:
    """Loads at once and answers at once."""

    def __init__(self, name: str, gateway: httpx.AsyncClient) -> None:
        self.name, self.gateway, self.url = name, gateway, ""
        self.loaded = asyncio.Event()
        self.running: set[str] = set()

    async def tell(self, what: str, **more: object) -> None:
        answer = await self.gateway.post(f"/nodes/{what}", json={"node_id": self.name, "incarnation": 1, **more})
        answer.raise_for_status()

    async def join(self) -> None:
        rates = {"compute_capability": 1e13, "memory_bytes": 1e10, "memory_bandwidth_bytes_per_s": 1e11}
        await self.tell("join", url=self.url, fingerprint=SHAPE.fingerprint, **rates)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self.tell("heartbeat", running=sorted(self.running))

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        data = b""
        if scope["path"] == "/generate":
            asked = json.loads(body)
            self.running.add(asked["request_id"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            data = b"".join(
                b'{"token":%d}\n' % (65 + number % 26)
                for number in range(asked["max_tokens"] - len(asked["generated"]))
            )
            data += b'{"finish":"length"}\n'
            self.running.discard(asked["request_id"])
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/load":
                await self.tell("loaded", version=json.loads(body)["version"])
                self.loaded.set()
        await send({"type": "http.response.body", "body": data})


@asynccontextmanager
async def listening(worker: Worker):
    requests = metrics.Counter("requests_total", "R.", ["code"], registry=metrics.Registry())
    frame = Frame(worker, realms=[Realm("/")], limits=Limits(), requests=requests)
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn_server(frame)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        worker.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield
        finally:
            server.should_exit = True
            await serving


def memory_mib(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    sizes = {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "VmHWM")}
    return {name: round(value, 1) for name, value in sizes.items()}


def cpu_s(pid: int) -> float:
    """Return user and system time of a process (fields 14 and 15 of proc(5), `stat`)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(url: str, pid: int, options: argparse.Namespace, seconds: float) -> dict[str, object]:
    body = {"model": "tiny", "prompt": "hello " * 20, "max_tokens": options.tokens, "stream": options.stream}
    content, until = json.dumps(body), time.perf_counter() + seconds
    outcomes: Counter[str] = Counter()
    took_s: list[float] = []

    async def send_in_turn() -> None:
        # A client a connection: the load must not queue in a pool of its own.
        async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
            while (start := time.perf_counter()) < until:
                try:
                    answer = await client.post("/v1/completions", content=content)
                    is_whole = b'"length"' in answer.content
                    outcomes["ok" if answer.status_code == 200 and is_whole else str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    outcomes[type(error).__name__] += 1
                took_s.append(time.perf_counter() - start)

    start, busy_s = time.perf_counter(), cpu_s(pid)
    await asyncio.gather(*(send_in_turn() for _ in range(options.connections)))
    elapsed_s, took_s = time.perf_counter() - start, sorted(took_s)
    count, busy_s = len(took_s), cpu_s(pid) - busy_s
    return {
        "requests": count,
        "outcomes": dict(outcomes),
        "requests_per_s": round(count / elapsed_s, 1),
        "tokens_per_s": round(outcomes["ok"] * options.tokens / elapsed_s, 1),
        "cpu_ms_per_request": round(1e3 * busy_s / count, 2),
        "p50_ms": round(1e3 * took_s[count // 2], 1),
        "p99_ms": round(1e3 * took_s[count * 99 // 100], 1),
    }


async def unfinished(client: httpx.AsyncClient) -> int:
    """Return what is left once the gateway has noticed that wrk has hung up."""
    for _ in range(50):
        left = (await client.get("/status")).json()["tiny"]["requests"]["unfinished"]
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


async def wrk(url: str, options: argparse.Namespace) -> dict[str, object]:
    body = json.dumps({"model": "tiny", "prompt": "hello " * 20, "max_tokens": options.tokens})
    script = f"wrk.method = 'POST'\nwrk.body = [[{body}]]\nwrk.headers['content-type'] = 'application/json'\n"
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds:g}s", "--timeout", "30s"]
        process = await asyncio.create_subprocess_exec(
            *command, "--latency", "-s", file.name, f"{url}/v1/completions", stdout=asyncio.subprocess.PIPE
        )
        text = (await process.communicate())[0].decode()
    rate, errors = re.search(r"Requests/sec:\s+([\d.]+)", text), re.findall(r"(?:Socket errors|Non-2xx).*", text)
    tail = re.search(r"99%\s+(\S+)", text)
    return {
        "requests_per_s": float(rate[1]) if rate else 0.0,
        "p99": tail[1] if tail else None,
        "errors": [line.strip() for line in errors],
    }


async def stop(process: asyncio.subprocess.Process) -> int:
    if process.returncode is None:
        process.terminate()
    return await process.wait()


async def main(options: argparse.Namespace) -> None:
    task = asyncio.current_task()
    # A benchmark that is told to stop must not leave its gateway behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shape = ["--layers", str(SHAPE.num_layers), "--hidden", str(SHAPE.hidden_size)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "strata", "serve", "gateway", "--port", "0", "--heartbeat-timeout", "12", *shape),
        stdout=asyncio.subprocess.PIPE,
    )
    answer: dict[str, object] = {
        "connections": options.connections,
        "tokens": options.tokens,
        "stream": options.stream,
    }
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stop, process)
        url = (await process.stdout.readline()).decode().removeprefix("gateway listens at ").strip()
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30.0))
        workers = [Worker(f"w{number}", client) for number in range(4)]
        for worker in workers:
            await stack.enter_async_context(listening(worker))
            await worker.join()
        for worker in workers:
            await worker.loaded.wait()
        beats = [asyncio.create_task(worker.beat()) for worker in workers]
        stack.callback(lambda: [beat.cancel() for beat in beats])
        await load(url, process.pid, options, options.seconds / 4)  # warm
        answer["before_mib"] = memory_mib(process.pid)
        answer["load"] = await load(url, process.pid, options, options.seconds)
        answer["after_mib"] = memory_mib(process.pid)
        if options.wrk and shutil.which("wrk"):
            answer["wrk"] = await wrk(url, options)
            answer["after_wrk_mib"] = memory_mib(process.pid)
        metrics = (await client.get("/metrics")).text
        answer["faults"] = [line for line in metrics.splitlines() if line.startswith("strata_faults_total")]
        answer["unfinished"] = await unfinished(client)
        answer["exit_code"] = await stop(process)
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--wrk", action="store_true")
    asyncio.run(main(parser.parse_args()))
