"""A gateway with workers that exist only in this process: no socket, no torch, time by hand.

A worker's next token is a function of all tokens before it, so that an answer can be foretold however often it was
interrupted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from strata.net.http import Frame, Limits, Realm
from strata.net.metrics import Counter, Registry
from strata.serving.gateway.access import NodeAccess
from strata.serving.gateway.app import make_frame
from strata.serving.gateway.build import DEMAND
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.keys import ClientKeys
from strata.serving.gateway.workers import Workers
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.live.events import Tick
from strata.serving.tokens import ByteTokenizer, encode
from strata.serving.wire import GenerateMessage, RangeMessage
from strata.serving.worker.shape import Shape
from tests.serving.texts import decode

SHAPE = Shape(num_layers=4, hidden_size=32).hosted
FAST = SchedulerConfig(heartbeat_timeout=12.0, heartbeat_interval_s=1.0)


def next_token(tokens: Sequence[int]) -> int:
    """A printable byte."""
    return 33 + (7 * len(tokens) + 31 * tokens[-1] + sum(tokens)) % 90


def foretold(prompt: str, count: int) -> str:
    """What the workers will say."""
    tokens = list(encode(prompt))
    for _ in range(count):
        tokens.append(next_token(tokens))
    return decode(tokens[-count:])


class Stream(httpx.AsyncByteStream):
    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self.chunks:
            yield chunk

    async def aclose(self) -> None:
        await self.chunks.aclose()


class Host:
    """Something with an address. `is_dead`: nothing connects, and what was connected breaks."""

    def __init__(self, name: str) -> None:
        self.name, self.url, self.is_dead = name, f"http://{name}.test", False
        self.heard: list[tuple[str, Any]] = []

    async def answer(self, path: str, body: bytes) -> httpx.Response:
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as an ASGI application, for hosts behind a real socket."""
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        self.heard.append((scope["path"], body))
        answer = await self.answer(scope["path"], body)
        await send({"type": "http.response.start", "status": answer.status_code, "headers": []})
        async for chunk in answer.stream:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def frame(self, token: str = "") -> Frame:
        requests = Counter("requests_total", "R.", ["code"], registry=Registry())
        return Frame(self, realms=[Realm("/", token)], limits=Limits(), requests=requests)

    def said(self, path: str) -> list[Any]:
        """Return the bodies that came to a path."""
        return [body for to, body in self.heard if to == path]


class Wires(httpx.AsyncBaseTransport):
    """Streams between the gateway and hosts; httpx's own ASGI transport hands over whole bodies only."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = {f"{host.name}.test": host for host in hosts}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = self.hosts.get(request.url.host)
        if host is None or host.is_dead:
            raise httpx.ConnectError("refused", request=request)
        body = await request.aread()
        host.heard.append((request.url.path, json.loads(body) if body else None))
        return await host.answer(request.url.path, body)


class FakeWorker(Host):
    """Loads at once. Before each token it waits for `go`; after `tokens_left` tokens it dies."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.go = asyncio.Event()
        self.go.set()
        self.tokens_left: float = float("inf")
        self.num_open = self.num_sent = 0
        self.waits = asyncio.Event()
        self.post: Callable[[str, dict[str, Any]], Any]
        self.incarnation = 1

    async def answer(self, path: str, body: bytes) -> httpx.Response:
        if path == "/generate":
            return httpx.Response(200, stream=Stream(self.generate(GenerateMessage.model_validate_json(body))))
        if path == "/healthz":
            return httpx.Response(200, json={"node_id": self.name, "incarnation": self.incarnation, "loaded": []})
        if path == "/load":
            message = RangeMessage.model_validate_json(body)
            await self.tell("loaded", version=message.version)
        return httpx.Response(204)

    async def tell(self, what: str, **more: Any) -> httpx.Response:
        return await self.post(f"/nodes/{what}", {"node_id": self.name, "incarnation": self.incarnation, **more})

    async def join(self, **more: Any) -> httpx.Response:
        card = {
            "url": self.url,
            "compute_capability": 1e12,
            "memory_bytes": 1e9,
            "memory_bandwidth_bytes_per_s": 1e10,
            "fingerprint": SHAPE.fingerprint,
        }
        return await self.tell("join", **(card | more))

    async def generate(self, message: GenerateMessage) -> AsyncIterator[bytes]:
        tokens, said = [*message.prompt, *message.generated], len(message.generated)
        self.num_open += 1
        try:
            for _ in range(said, message.max_tokens):
                if not self.go.is_set():
                    self.waits.set()
                    await self.go.wait()
                if self.tokens_left <= 0:
                    self.is_dead = True
                    raise httpx.ReadError("reset")
                self.tokens_left -= 1
                self.num_sent += 1
                tokens.append(next_token(tokens))
                yield b'{"token":%d}\n' % tokens[-1]
            yield b'{"finish":"length"}\n'
        finally:
            self.num_open -= 1


class FakeEngine(Host):
    """Speaks as vLLM does. `chunks_left`: then it dies; `status`: of every request but /v1/models.

    pause_at: letters after which a stream waits for `resumes`. is_deaf: to /v1/models; hangs: all else.
    pages: what it says of itself, by path.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.chunks_left: float = float("inf")
        self.status = 200
        self.polled = asyncio.Event()
        self.pause_at = -1
        self.owner = "somebody"
        self.delta: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.document: dict[str, Any] | None = None
        self.is_deaf = self.hangs = False
        self.model = "llama"
        self.pages: dict[str, str] = {}
        self.resumes = asyncio.Event()

    async def answer(self, path: str, body: bytes) -> httpx.Response:
        if path == "/v1/models":
            if self.is_deaf:
                raise httpx.ReadTimeout("deaf")
            self.polled.set()
            return httpx.Response(200, json={"data": [{"id": self.model, "owned_by": self.owner}]})
        if path in ("/metrics", "/props"):
            return httpx.Response(200 if path in self.pages else 404, text=self.pages.get(path, ""))
        if self.hangs:
            raise httpx.ReadTimeout("hangs")
        if self.status != 200:
            error = {"error": {"message": "no", "code": "engine's own"}}
            return httpx.Response(self.status, json=error, headers=self.headers)
        asked = json.loads(body)
        if asked.get("stream") and "prompt" not in asked and "messages" not in asked:
            return httpx.Response(200, stream=Stream(self.stream("", {}, is_chat=False)))
        if self.document is not None and not asked.get("stream"):
            return httpx.Response(200, json=self.document)
        count = asked.get("max_tokens") or asked.get("max_completion_tokens") or 8
        prompt = str(asked.get("prompt") or asked["messages"][-1]["content"])
        if asked.get("continue_final_message"):
            assert asked["add_generation_prompt"] is False
            prompt = asked["messages"][-2]["content"] + prompt
        text, is_chat = foretold(prompt, count), path.endswith("chat/completions")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
        if asked.get("stream"):
            return httpx.Response(200, stream=Stream(self.stream(text, usage, is_chat=is_chat)))
        if self.chunks_left < count:
            self.is_dead = True
            raise httpx.ReadError("reset")
        choice = {"index": 0, "finish_reason": "length", "text": text, "matched_stop": None}
        return httpx.Response(200, json={"id": "theirs", "choices": [choice], "usage": usage})

    async def stream(self, text: str, usage: Any, *, is_chat: bool) -> AsyncIterator[bytes]:
        for number, letter in enumerate(text):
            if number == self.pause_at:
                await self.resumes.wait()
            if self.chunks_left <= 0:
                self.is_dead = True
                raise httpx.ReadError("reset")
            self.chunks_left -= 1
            choice = {"index": 0, "finish_reason": None}
            role = {} if number else {"role": "assistant"}
            choice |= {"delta": {"content": letter} | role | self.delta} if is_chat else {"text": letter}
            yield b"data: %s\n\n" % json.dumps({"id": "theirs", "choices": [choice]}).encode()
        last = {"index": 0, "finish_reason": "length", "text": "", "delta": {}}
        yield b"data: %s\n\n" % json.dumps({"id": "theirs", "choices": [last]}).encode()
        yield b"data: %s\n\n" % json.dumps({"id": "theirs", "choices": [], "usage": usage}).encode()
        yield b"data: [DONE]\n\n"


async def near(host: str) -> list[str]:
    """Every name is this machine's."""
    return ["127.0.0.1"]


class World:
    """A gateway of workers named a, b, ... ; `now_s` is its clock."""

    def __init__(
        self,
        *,
        num_workers: int = 2,
        config: SchedulerConfig = FAST,
        keys: ClientKeys | None = None,
        token: str = "",
        origins: Sequence[str] = (),
        fingerprint: str = SHAPE.fingerprint,
        **limits,
    ) -> None:
        self.workers = [FakeWorker(name) for name in "abcdefgh"[:num_workers]]
        self.now_s = 100.0
        self.gateway = Gateway(fingerprint=fingerprint)
        ids = itertools.count(1)
        self.gateway.new_id, self.gateway.wall_clock = lambda: str(next(ids)), lambda: 1.7e9
        backend_client = Workers(
            httpx.AsyncClient(transport=Wires(self.workers)),
            SHAPE,
            ByteTokenizer(),
            default_tokens=DEMAND.output_tokens,
            silence_s=60.0,
        )
        core = Core(config, SHAPE.info, DEMAND)
        self.driver = Driver(core, backend_client, self.gateway.meters, clock=lambda: self.now_s)
        self.gateway.drivers["tiny"] = self.gateway.workers = self.driver
        nodes = NodeAccess(is_local=True, resolve=near)
        self.frame: Frame = make_frame(
            self.gateway, limits=Limits(**limits), token=token, nodes=nodes, keys=keys, origins=origins
        )
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.frame), base_url="http://gateway")
        for worker in self.workers:
            worker.post = self.post

    async def post(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body)
        headers = {"content-type": "application/json"} | (headers or {})
        return await self.client.post(path, content=content, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path)

    async def complete(self, prompt: str = "hello", *, tokens: int = 8, **more: Any) -> httpx.Response:
        return await self.post(
            "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        )

    async def up(self) -> World:
        """Have all workers join and load."""
        for worker in self.workers:
            assert (await worker.join()).status_code == 200
        await self.passes(1.0)
        assert self.driver.core.status()["ready"]
        return self

    async def passes(self, seconds: float) -> None:
        """Let time pass; returns when what followed from it is done."""
        self.tick(seconds)
        await self.settled()

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.driver.post(Tick())

    async def settled(self) -> None:
        while self.driver.tasks:
            await asyncio.gather(*self.driver.tasks)

    async def down(self) -> None:
        await self.driver.stop()


def run(scenario: Callable[[World], Any], **made: Any) -> Any:
    """Run a scenario in a world that is up."""

    async def whole() -> Any:
        world = await World(**made).up()
        try:
            return await scenario(world)
        finally:
            await world.down()

    return asyncio.run(whole())


def events_of(body: bytes | str) -> list[Any]:
    """Read server-sent events; the last is "[DONE]" where that was sent."""
    text = body if isinstance(body, str) else body.decode()
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def text_of(body: bytes | str) -> str:
    """Return the text of a streamed answer."""
    choices = [c for one in events_of(body) if isinstance(one, dict) for c in one.get("choices", [])]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


class Caller:
    """A client that reads a streamed answer as it comes, or does not, or hangs up."""

    def __init__(self, world_frame: Frame, path: str, body: Any, *, bearer: str = "") -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"authorization", b"Bearer " + bearer.encode())] if bearer else [],
            "server": ("gateway", 80),
            "client": ("caller", 1),
        }
        self.status, self.body = 0, b""
        self.got = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        self.task = asyncio.create_task(world_frame(scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.body += message.get("body", b"")
        self.got.set()

    async def has(self, count: int) -> None:
        """Return when so many characters of text have come."""
        while len(text_of(self.body)) < count:
            self.got.clear()
            await self.got.wait()

    def hang_up(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})
