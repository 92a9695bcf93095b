"""The ways to other workers: a kept connection to each that this one sends to."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Final, NamedTuple

from strata.net.frames import PING, FrameConnection, FrameError, WireFrame, connect
from strata.serving.tasks import TaskSet
from strata.serving.wire import FaultMessage, KvMessage, OpenMessage
from strata.serving.worker import steps as codec
from strata.serving.worker.holder import AttemptKey

CONNECT_LIMIT_S: Final = 3.0
HOP_LIMIT_S: Final = 2.0
HOP_TRIES: Final = 3
"""The least of so many is the hop: what disturbs only adds."""
AT_ONCE: Final = 16
"""Peers measured at the same time: more would measure our own queue."""
SHARE: Final = 1 / 6
"""Of the longest silence there may be, what a peer is given at least to answer a ping (assumed)."""
TIMES: Final = 5
RECENT: Final = 16
"""So many times the longest that it took to answer one of the last so many (assumed)."""
CHECKS: Final = 4
"""Looks within the least time that a peer may be silent."""


def patience_s(silence_s: float, longest_s: float) -> float:
    """Return how long a ping may go without an answer, by the longest that one took lately.

    Pings are answered by a worker's event loop, beside whatever its layers do: no step is too long for them.
    """
    return min(silence_s, max(SHARE * silence_s, TIMES * longest_s))


async def watch(connection: FrameConnection, silence_s: float) -> None:
    """Ping while a connection lasts: a peer that stands still answers nothing, and says nothing of its end."""
    now_s, took_s = asyncio.get_running_loop().time, deque[float]([0.0], maxlen=RECENT)
    while connection.is_open:
        asked_s, taken = now_s(), connection.num_taken
        connection.send(PING, 0)
        num_before = connection.num_sent
        await asyncio.sleep(SHARE * silence_s / CHECKS)
        while connection.is_open and connection.heard_s < asked_s:
            if taken < min(num_before, connection.num_taken):  # it takes what is before the ping
                asked_s, taken = now_s(), connection.num_taken
            due_s = patience_s(silence_s, max(took_s))
            if now_s() - asked_s > due_s:
                connection.abort(f"nothing was heard for {due_s:.3g} s")
                return
            await asyncio.sleep(SHARE * silence_s / CHECKS)
        took_s.append(connection.answered_s - asked_s)


class _Parts(NamedTuple):
    parts: list[bytes]
    whole: asyncio.Future[None]


class Link:
    """What goes to one worker: frames, in order, from the first one on that a connection is asked for."""

    def __init__(self, url: str, links: Links) -> None:
        self.url, self._links = url, links
        self._keys = dict[int, AttemptKey]()
        self._next = self._num_fetches = 0
        self._fetches = dict[int, _Parts]()
        self._unsent: list[tuple[int, int, tuple[bytes, ...]]] | None = []
        self.connection = FrameConnection(
            self._heard, self._lost, frame_bytes=links.frame_bytes, frame_s=links.silence_s
        )
        self._opening = links.tasks.start(self._open())

    def open(self, key: AttemptKey, message: OpenMessage) -> int:
        """Begin a sequence there; return its number on this link."""
        number, self._next = self._next, self._next + 1
        self._keys[number] = key
        body = message.model_copy(update={"sequence": number}).model_dump_json().encode()
        self._send(codec.OPEN, 1, body)
        return number

    def steps(self, rows: list[tuple[codec.StepRow, codec.Activations]]) -> None:
        """Hand steps over."""
        self._send(codec.STEP, len(rows), *codec.pack_steps(rows))

    def results(self, rows: list[codec.ResultRow]) -> None:
        """Send tokens to the worker that drives their sequences."""
        self._send(codec.RESULT, len(rows), codec.pack_results(rows))

    def end(self, number: int, *, is_kept: bool = False) -> None:
        """Have a sequence forgotten there; or what it has cached kept for a while."""
        if self._keys.pop(number, None) is not None:
            self._send(codec.PARK if is_kept else codec.END, 1, codec.pack_end(number))

    async def fetch(self, message: KvMessage) -> list[bytes]:
        """Return the parts that are asked for. Raises FrameError where they are not there, or the link ends."""
        self._num_fetches = number = (self._num_fetches + 1) % 2**16
        self._fetches[number] = answer = _Parts([], asyncio.get_running_loop().create_future())
        try:
            self._send(codec.ASK_KV, number, message.model_dump_json().encode())
            await answer.whole
            return answer.parts
        finally:
            del self._fetches[number]

    async def hop_s(self) -> float:
        """Return half of the least time there and back. Raises FrameError where the link ends."""
        await asyncio.shield(self._opening)
        best = float("inf")
        for _ in range(HOP_TRIES):
            start = perf_counter()
            await self.connection.ping()
            best = min(best, perf_counter() - start)
        return best / 2

    def close(self) -> None:
        """Close it; what was sent goes out first."""
        self._opening.cancel()
        self.connection.close()

    def _send(self, kind: int, count: int, *parts: bytes) -> None:
        if self._unsent is not None:
            self._unsent.append((kind, count, parts))
        else:
            self.connection.send(kind, count, *parts)

    async def _open(self) -> None:
        try:
            await self._links.connect(self.url, self.connection)
        except FrameError as error:
            self._lost(str(error))
            return
        waited, self._unsent = self._unsent or (), None
        for kind, count, parts in waited:
            self.connection.send(kind, count, *parts)
        self._links.tasks.start(watch(self.connection, self._links.silence_s))

    def _heard(self, frame: WireFrame) -> None:
        if frame.kind in (codec.KV, codec.NO_KV):
            self._take(frame)
            return
        if frame.kind != codec.FAULT:
            raise FrameError(f"a frame of kind {frame.kind}, which is none of a worker that is sent to")
        try:
            fault = FaultMessage.model_validate_json(frame.payload)
        except ValueError as error:
            raise FrameError(f"no fault: {error}") from None
        if key := self._keys.pop(fault.sequence, None):
            self._links.on_fault(key, fault)

    def _take(self, frame: WireFrame) -> None:
        answer = self._fetches.get(frame.number)
        if answer is None or answer.whole.done():
            return  # nobody waits for it any more
        if frame.kind == codec.NO_KV:
            answer.whole.set_exception(FrameError(frame.payload.decode(errors="replace")))
        elif frame.payload:
            answer.parts.append(frame.payload)
        else:
            answer.whole.set_result(None)

    def _lost(self, why: str) -> None:
        self._links.forget(self)
        for answer in self._fetches.values():
            if not answer.whole.done():
                answer.whole.set_exception(FrameError(why))
        self._links.on_lost(self, why)


class Links:
    """Links by address. silence_s: a peer that is silent for longer hangs."""

    def __init__(
        self,
        *,
        token: str,
        fingerprint: str,
        frame_bytes: int,
        silence_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.frame_bytes, self.silence_s, self.tasks = frame_bytes, silence_s, TaskSet()
        self.on_fault: Callable[[AttemptKey, FaultMessage], None] = lambda key, fault: None
        self.on_lost: Callable[[Link, str], None] = lambda link, why: None
        self._headers = {codec.MODEL_HEADER: fingerprint}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._tls = tls
        self._links = dict[str, Link]()

    def to(self, url: str) -> Link:
        """Return the link to an address; a new one where there is none that works."""
        if url not in self._links:
            self._links[url] = Link(url, self)
        return self._links[url]

    def forget(self, link: Link) -> None:
        """Make a new one the next time."""
        if self._links.get(link.url) is link:
            del self._links[link.url]

    async def connect(self, url: str, connection: FrameConnection) -> None:
        """Open a connection. Raises FrameError."""
        await connect(
            url + codec.PATH,
            connection,
            protocol=codec.PROTOCOL,
            headers=self._headers,
            connect_s=min(CONNECT_LIMIT_S, self.silence_s),
            tls=self._tls,
        )

    async def hops(self, peers: Mapping[str, str]) -> dict[str, float]:
        """Return the one-way latency to each of the peers that answer in time [s], over the way steps take."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def hop(url: str) -> float | None:
            async with turn:
                with suppress(TimeoutError, FrameError):
                    async with asyncio.timeout(HOP_LIMIT_S):
                        return await self.to(url).hop_s()
            return None  # not measured this time; whether it lives is the gateway's to say

        hops_s = await asyncio.gather(*(hop(url) for url in peers.values()))
        return {name: hop_s for name, hop_s in zip(peers, hops_s, strict=True) if hop_s is not None}

    async def close(self) -> None:
        """Close all."""
        for link in list(self._links.values()):
            link.close()
        self._links.clear()
        await self.tasks.close()
