"""The frame every server shares: token, limits, honest errors and a drain that loses nothing.

`Frame` is plain ASGI around any application, so that it also holds for streams; `server.serve` runs it. What
uvicorn and Starlette do of this, and what they cannot, is in docs/decisions/0010.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from strata.net.metrics import Counter

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

SWALLOWED: Final = 8
"""So many times the body limit is read and forgotten before a refusal, so that the client gets to hear it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take.

    head_s, body_s: to send the head, the body. answer_s: we, to begin an answer. stall_s: the client, to read on.
    """

    body_bytes: int = 2**20
    header_bytes: int = 16 * 2**10
    connections: int = 4096
    head_s: float = 15.0
    body_s: float = 30.0
    answer_s: float = 600.0
    stall_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Realm:
    """Paths that begin alike. token: what opens them, empty where nothing has to. drains: no new request is taken
    while the server stops, and it waits for those that run. opens: whether another bearer opens them as well.
    """

    prefix: str
    token: str = ""
    drains: bool = True
    opens: Callable[[str], bool] = lambda bearer: False


UPGRADE: Final = "strata.upgrade"


class Upgraded:
    """The answer to a request for another protocol: returns when the connection has ended."""

    def __init__(self, name: str, protocol: asyncio.Protocol) -> None:
        self._name, self._protocol = name, protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the connection over."""
        await send({"type": UPGRADE, "status": 101, "name": self._name, "protocol": self._protocol})
        while (await receive())["type"] != "http.disconnect":
            pass


class Stalled(Exception):
    """The client takes no more of the answer; its connection is gone."""


class _Refusal(Exception):
    def __init__(self, status: int, message: str, code: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.retry_after_s = status, message, code, retry_after_s


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return an error in the form OpenAI's API has, which ours share."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def kind_of(status: int) -> str:
    """Return the `type` of an error with this status."""
    types = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    return types.get(status, "invalid_request_error" if status < 500 else "server_error")


class Frame:
    """An application with its limits. `requests` counts answers by status."""

    def __init__(self, app: App, *, realms: Sequence[Realm], limits: Limits, requests: Counter) -> None:
        self.app, self.limits, self.requests = app, limits, requests
        self.realms = sorted(realms, key=lambda realm: -len(realm.prefix))
        self.running = 0
        self.is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._calls: set[asyncio.Task[Any]] = set()

    def drain(self) -> None:
        """Take no new request of realms that drain."""
        self.is_draining = True

    async def idle(self) -> None:
        """Return when no request of a realm that drains is running."""
        await self._is_idle.wait()

    def give_up(self) -> None:
        """End what still runs when the time to drain is over; connections are closed a second later."""
        for call in self._calls:  # uvicorn would do so, and say that each is an error
            call.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything that is not HTTP passes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call, task = _Call(scope, receive, send, self.limits), asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            realm = self._admit(scope)
            with self._counted(realm):
                await call.run(self.app)
        except _Refusal as refusal:
            await call.refuse(refusal)
        except Stalled:
            await call.abort()
        except asyncio.CancelledError:  # a stream that was still open when the server stopped
            if not self.is_draining:
                raise
            await call.abort()
        except Exception as error:
            if call.is_gone:
                log.info("%s %s: the client has gone: %r", scope["method"], scope["path"], error)
            else:
                log.exception("%s %s failed", scope["method"], scope["path"])
                await call.refuse(_Refusal(500, "internal error", "internal"))
        finally:
            self._calls.discard(task)
            self.requests.labels(str(call.status or 499)).inc()

    def _admit(self, scope: Scope) -> Realm:
        path = scope["path"]
        realm = next((realm for realm in self.realms if path.startswith(realm.prefix)), Realm("/"))
        headers = scope["headers"]
        if sum(len(name) + len(value) + 4 for name, value in headers) > self.limits.header_bytes:
            raise _Refusal(431, f"headers exceed {self.limits.header_bytes} bytes", "headers-too-large")
        if realm.token and not _is_open(realm, bearer_of(headers)):
            raise _Refusal(401, "a valid bearer token is needed", "token-missing")
        if realm.drains and self.is_draining:
            raise _Refusal(503, "the server is stopping", "draining", 5.0)
        if realm.drains and self.running >= self.limits.connections:
            raise _Refusal(503, f"{self.running} requests are running", "too-many-connections", 1.0)
        return realm

    @contextmanager
    def _counted(self, realm: Realm) -> Iterator[None]:
        if not realm.drains:
            yield
            return
        self.running += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._is_idle.set()


class _Call:
    """One request under its limits."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.scope, self.limits = scope, limits
        self._receive, self._send = receive, send
        self._body_bytes = 0
        self._body_due_s = asyncio.get_running_loop().time() + limits.body_s
        self._is_read = self._is_refused = self._is_complete = False
        self.is_gone = False
        self.status = 0
        self._deadline: asyncio.Timeout | None = None
        state = scope.get("state", {})
        self._is_held: Callable[[], bool] = state.get("is_held", lambda: True)
        self._is_here: Callable[[], bool] = state.get("is_here", lambda: False)

    async def run(self, app: App) -> None:
        declared = dict(self.scope["headers"]).get(b"content-length", b"0")
        # A value that is not a number was refused by the server below.
        if declared.isdigit() and int(declared) > self.limits.body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.answer_s) as deadline:
                self._deadline = deadline
                await app(self.scope, self.receive, self.send)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise _Refusal(504, f"no answer after {self.limits.answer_s:g} s", "answer-too-late") from None

    async def receive(self) -> Message:
        try:
            if self._is_here():  # nothing to wait for
                message = await self._receive()
            else:
                async with asyncio.timeout_at(None if self._is_read else self._body_due_s):
                    message = await self._receive()
        except TimeoutError:
            self._is_refused = True
            raise _Refusal(408, f"the body took longer than {self.limits.body_s:g} s", "body-too-slow") from None
        if message["type"] == "http.request":
            self._body_bytes += len(message.get("body", b""))
            self._is_read = not message.get("more_body", False)
            if self._body_bytes > self.limits.body_bytes:
                self._is_refused = True
                raise self._too_large()
        else:
            self.is_gone = True
        return message

    async def send(self, message: Message) -> None:
        if self._is_refused:
            return  # frameworks answer 500 to any exception on its way through them: ours says more
        if message["type"] in ("http.response.start", UPGRADE):
            self.status = message["status"]
            if self._deadline:
                self._deadline.reschedule(None)
        if message["type"] == UPGRADE:
            self.scope["state"]["upgrade"](message["name"], message["protocol"])
            return
        await self._send_in_time(message)
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def _send_in_time(self, message: Message) -> None:
        if not self._is_held():  # nothing to wait for
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self.limits.stall_s):
                await self._send(message)
        except TimeoutError:
            raise Stalled(f"the client read nothing for {self.limits.stall_s:g} s") from None

    def _too_large(self) -> _Refusal:
        return _Refusal(413, f"the body exceeds {self.limits.body_bytes} bytes", "body-too-large")

    async def refuse(self, refusal: _Refusal) -> None:
        """Answer with an error, or break the connection where an answer has begun."""
        if self.status:
            if not self._is_complete:
                await self.abort()
            return
        self.status = refusal.status
        await self._swallow()
        body = error_body(refusal.message, kind=kind_of(refusal.status), code=refusal.code)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", f"{refusal.retry_after_s:.0f}".encode()))
        if refusal.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        with suppress(Stalled):
            await self._send_in_time({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await self._send_in_time({"type": "http.response.body", "body": body})

    async def _swallow(self) -> None:
        # A connection closed with its body unread is reset, and most clients then never see the answer. One that
        # asked first (`Expect: 100-continue`) has not sent it.
        if self._is_read or any(name == b"expect" for name, _ in self.scope["headers"]):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._body_due_s):
                while self._body_bytes <= SWALLOWED * self.limits.body_bytes:
                    message = await self._receive()
                    self._body_bytes += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def abort(self) -> None:
        """Break the connection, where the server below lets us; returns when it knows."""
        abort = self.scope.get("state", {}).get("abort")
        if abort:
            abort()
            await asyncio.sleep(0)


def bearer_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the bearer token of a request; empty where it has none."""
    authorization = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, credentials = authorization.partition(b" ")
    return credentials.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _is_open(realm: Realm, bearer: str) -> bool:
    return hmac.compare_digest(bearer.encode("latin-1"), realm.token.encode()) or realm.opens(bearer)
