"""A request's stream to its client: one JSON document or server-sent events, as the client takes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from strata.net.http import Receive, Scope, Send
from strata.serving.gateway.driver import GONE, Driver
from strata.serving.gateway.openai import DONE, ApiError, Writer, event
from strata.serving.gateway.request_stream import Piece, RequestStream


class GenerationResponse:
    """An ASGI response. Whatever ends it (the client has gone, stalls, the time is up), the request ends too."""

    def __init__(self, driver: Driver, stream: RequestStream, counted: AbstractContextManager[None]) -> None:
        self.driver, self.stream, self.counted = driver, stream, counted
        self.writer = Writer(stream.request, stream.request_id, stream.created)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, listening for the client to hang up."""
        with self.counted, self._listening(scope, receive):
            await self._write(send, scope.get("state", {}).get("write"))

    @contextmanager
    def _listening(self, scope: Scope, receive: Receive) -> Iterator[None]:
        """End the request when its client has gone, or nothing more is written to it."""
        leave = partial(self.driver.leave, self.stream)
        listen, task = scope.get("state", {}).get("listen"), None
        if listen:
            listen(leave)
        else:
            task = asyncio.create_task(_gone(receive, leave))
        try:
            yield
        finally:
            leave()
            if task:
                task.cancel()
            else:
                listen(None)

    async def _write(self, send: Send, shortcut: Callable[[bytes], bool] | None) -> None:
        has_begun = False
        try:
            pieces = await self.stream.take()  # nothing is promised to the client before there is something
            if self.stream.request.stream:
                await _start(send, 200, b"text/event-stream; charset=utf-8", _NO_BUFFERS)
                has_begun = True
                await self._stream(send, pieces, shortcut)
            else:
                document = await self._document(pieces)
                await _start(send, 200, b"application/json", {b"content-length": b"%d" % len(document)})
                await send({"type": "http.response.body", "body": document})
        except ApiError as fault:
            if fault.status == GONE:
                return
            if has_begun:
                # The status is long sent: an error event says so, and no [DONE] pretends that this was all.
                await send({"type": "http.response.body", "body": b"data: " + fault.body + b"\n\n"})
                return
            headers = {name.encode(): value.encode() for name, value in fault.headers.items()}
            headers[b"content-length"] = b"%d" % len(fault.body)
            await _start(send, fault.status, b"application/json", headers)
            await send({"type": "http.response.body", "body": fault.body})

    async def _document(self, pieces: list[Piece]) -> bytes:
        received = list[Piece]()
        while pieces:
            received += pieces
            pieces = await self.stream.take()
        stream, writer = self.stream, self.writer
        if received and isinstance(received[0], bytes):
            return received[0]
        text = "".join(piece for piece in received if isinstance(piece, str))
        return json.dumps(writer.whole(text, stream.finish or "stop", stream.usage)).encode()

    async def _stream(self, send: Send, pieces: list[Piece], shortcut: Callable[[bytes], bool] | None) -> None:
        stream, writer, is_first, is_relayed = self.stream, self.writer, True, False
        while pieces:
            data = []
            for piece in pieces:
                if isinstance(piece, str):
                    data.append(event(writer.chunk(piece, is_first=is_first)))
                else:
                    is_relayed = True
                    data.append(piece)
                is_first = False
            body = b"".join(data)
            if shortcut is None or not shortcut(body):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if is_relayed:
                stream.write = shortcut
            pieces = await stream.take()
        last = b"" if stream.request.kind == "other" else DONE
        if not is_relayed and last:  # an engine has said how it ended
            if stream.request.has_usage:
                last = event(writer.usage(stream.usage)) + last
            last = event(writer.chunk("", stream.finish, is_first=is_first)) + last
        await send({"type": "http.response.body", "body": last})


_NO_BUFFERS = {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"}


async def _gone(receive: Receive, leave: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leave()


async def _start(send: Send, status: int, content_type: bytes, headers: dict[bytes, bytes]) -> None:
    everything = [(b"content-type", content_type), *headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": everything})
