"""The real command in a process of its own, over real sockets; only its workers are made up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from tests.serving.gateway.world import SHAPE, FakeEngine, FakeWorker, foretold, text_of
from tests.support.live_server import listening


class SocketWorker(FakeWorker):
    """A made-up worker behind a real socket."""

    def __init__(self, name, gateway_url):
        super().__init__(name)
        self.is_loaded = asyncio.Event()
        self.client = httpx.AsyncClient(
            base_url=gateway_url, headers={"authorization": "Bearer nodes"}, timeout=300
        )

    async def post(self, path, body):
        answer = await self.client.post(path, json=body)
        if path == "/nodes/loaded":
            self.is_loaded.set()
        return answer


@asynccontextmanager
async def gateway(*options, num_workers=2):
    """Yield the process, a client of it and its workers, which are loaded."""
    told = ["--port", "0", "--layers", str(SHAPE.num_layers), "--hidden", str(SHAPE.info.hidden_size), *options]
    told += ["--heartbeat-timeout", "600"]  # they send none
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "strata", "serve", "gateway", *told),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ
        | {"STRATA_TOKEN": "clients", "STRATA_NODE_TOKEN": "nodes", "STRATA_BACKEND_TOKEN": "engines"},
    )
    try:
        line = (await process.stdout.readline()).decode()
        url = line.removeprefix("gateway listens at ").strip()
        async with AsyncExitStack() as stack:
            headers = {"authorization": "Bearer clients"}
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=300))
            workers = [SocketWorker(name, url) for name in "abcdefgh"[:num_workers]]
            for worker in workers:
                stack.push_async_callback(worker.client.aclose)
                port = await stack.enter_async_context(listening(worker.frame("nodes")))
                worker.url = f"http://127.0.0.1:{port}"
                assert (await worker.join()).status_code == 200
            for worker in workers:
                await worker.is_loaded.wait()
            yield process, client, workers
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def asked(**more):
    return {"model": "tiny", "prompt": "hello", "max_tokens": 20, "temperature": 0} | more


def test_abuse_is_refused_and_the_gateway_goes_on():
    async def scenario():
        async with gateway() as (_, client, workers):
            path = "/v1/completions"
            statuses = [
                (await client.post(path, content=b"{" * 1000)).status_code,
                (await client.post(path, content=b'{"model":' + b"[" * 500_000)).status_code,
                (await client.post(path, content=b"x" * 36_000_000)).status_code,
                (await client.post(path, json=asked(), headers={"x-long": "x" * 20_000})).status_code,
                (await client.post(path, json=asked(), headers={"x-long": "x" * 60_000})).status_code,
                (await client.post(path, json=asked(model="other"))).status_code,
                (
                    await client.post(path, json=asked(), headers={"authorization": "Bearer nodes"}, timeout=300)
                ).status_code,
                (await client.post("/nodes/heartbeat", json={})).status_code,
                (await workers[0].join(incarnation=0)).status_code,
            ]
            return statuses, await client.post(path, json=asked()), await client.get("/healthz")

    statuses, answer, health = asyncio.run(scenario())
    # Three times the limit: the frame's 431 if the head arrived in one piece, uvicorn's 400 if it did not.
    assert statuses.pop(4) in (400, 431)
    assert statuses == [400, 400, 413, 431, 404, 401, 401, 409]
    assert answer.json()["choices"][0]["text"] == foretold("hello", 20)
    assert health.status_code == 200


def test_a_stream_over_real_sockets_survives_the_death_of_its_worker():
    async def scenario():
        async with gateway() as (_, client, workers):
            for worker in workers:
                worker.go.clear()
            stream = asyncio.create_task(client.post("/v1/completions", json=asked(stream=True)))
            waiting = [asyncio.create_task(worker.waits.wait()) for worker in workers]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            one = next(worker for worker in workers if worker.num_open)
            one.tokens_left = 7
            for worker in workers:
                worker.go.set()
            body = (await stream).content
            for task in waiting:
                task.cancel()
            return body, one.is_dead

    body, is_dead = asyncio.run(scenario())
    assert is_dead
    assert text_of(body) == foretold("hello", 20)


def test_sigterm_finishes_what_runs_refuses_what_comes_and_exits_with_0():
    async def scenario():
        async with gateway(num_workers=1) as (process, client, [worker]):
            worker.go.clear()
            running = asyncio.create_task(client.post("/v1/completions", json=asked()))
            await worker.waits.wait()
            process.send_signal(signal.SIGTERM)
            while (health := await client.get("/healthz")).status_code == 200:
                pass
            refused = await client.post("/v1/completions", json=asked())
            heartbeat = await worker.tell("heartbeat")
            worker.go.set()
            answer = await running
            return health, refused, heartbeat, answer, await process.wait()

    health, refused, heartbeat, answer, code = asyncio.run(scenario())
    assert health.json() == {"status": "unavailable", "reason": "stopping"}
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert heartbeat.status_code == 200
    assert answer.json()["choices"][0]["text"] == foretold("hello", 20)
    assert code == 0


def test_a_request_that_does_not_end_in_time_is_told_so():
    async def scenario():
        async with gateway("--drain", "0.1", num_workers=1) as (process, client, [worker]):
            worker.go.clear()
            running = asyncio.create_task(client.post("/v1/completions", json=asked()))
            await worker.waits.wait()
            process.send_signal(signal.SIGTERM)
            answer = await running
            worker.go.set()
            return answer, await process.wait()

    answer, code = asyncio.run(scenario())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
    assert code == 0


def test_an_engine_that_says_what_it_serves_is_fronted_under_that_name():
    async def scenario():
        engine = FakeEngine("a")
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(listening(engine.frame("engines")))
            option = f"http://127.0.0.1:{port},slots=2"
            _, client, _ = await stack.enter_async_context(gateway("--backend", option, num_workers=0))
            while (await client.get("/healthz")).status_code != 200:
                pass
            models = (await client.get("/v1/models")).json()["data"]
            return models, await client.post("/v1/completions", json=asked(model="llama", stream=True))

    models, answer = asyncio.run(scenario())
    assert [model["id"] for model in models] == ["llama"]  # no worker has joined
    assert text_of(answer.content) == foretold("hello", 20)
