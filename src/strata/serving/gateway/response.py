"""Ticket to client: one JSON document or server-sent events, as the client takes them."""

from __future__ import annotations

import asyncio
import json

from strata.net.http import Receive, Scope, Send, error_body, kind_of
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.openai import DONE, Writer, event
from strata.serving.gateway.request_stream import ApiError, Piece, RequestStream


class GenerationResponse:
    """An ASGI response. Whatever ends it (the client has gone, stalls, the time is up), the request ends too."""

    def __init__(self, driver: Driver, stream: RequestStream, writer: Writer) -> None:
        self.driver, self.stream, self.writer = driver, stream, writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, listening for the client to hang up."""
        write = asyncio.create_task(self._write(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({write, gone}, return_when=asyncio.FIRST_COMPLETED)
            if write.done():
                await write
        finally:
            self.driver.leave(self.stream)
            for task in (write, gone):
                task.cancel()
            await asyncio.gather(write, gone, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        try:
            pieces = await self.stream.take()  # nothing is promised to the client before there is something
        except ApiError as fault:
            await _whole(send, fault.status, fault_body(fault), retry_after_s=fault.retry_after_s)
            return
        if self.stream.request.is_stream:
            await self._stream(send, pieces)
        else:
            await self._document(send, pieces)

    async def _document(self, send: Send, pieces: list[Piece]) -> None:
        received = list[Piece]()
        try:
            while pieces:
                received += pieces
                pieces = await self.stream.take()
        except ApiError as fault:
            await _whole(send, fault.status, fault_body(fault), retry_after_s=fault.retry_after_s)
            return
        stream, writer = self.stream, self.writer
        if received and isinstance(received[0], dict):
            answer = writer.relayed(received[0], is_chunk=False)
        else:
            text = "".join(piece for piece in received if isinstance(piece, str))
            answer = writer.whole(text, stream.finish or "stop", stream.usage)
        await _whole(send, 200, json.dumps(answer).encode())

    async def _stream(self, send: Send, pieces: list[Piece]) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        stream, writer, is_first, is_relayed = self.stream, self.writer, True, False
        try:
            while pieces:
                data = []
                for piece in pieces:
                    if isinstance(piece, str):
                        data.append(event(writer.chunk(piece, is_first=is_first)))
                    else:
                        is_relayed = True
                        data.append(event(writer.relayed(piece, is_chunk=True)))
                    is_first = False
                await send({"type": "http.response.body", "body": b"".join(data), "more_body": True})
                pieces = await stream.take()
        except ApiError as fault:
            # The status is long sent: an error event says so, and no [DONE] pretends that this was all.
            await send({"type": "http.response.body", "body": b"data: " + fault_body(fault) + b"\n\n"})
            return
        last = b""
        if not is_relayed:  # an engine has said how it ended
            last = event(writer.chunk("", stream.finish, is_first=is_first))
            if stream.request.has_usage:
                last += event(writer.usage(stream.usage))
        await send({"type": "http.response.body", "body": last + DONE})


def fault_body(fault: ApiError) -> bytes:
    """Return a fault in the form of OpenAI's API; an engine's own words as they are."""
    if fault.body is not None:
        return fault.body
    return error_body(fault.message, kind=kind_of(fault.status), code=fault.code, param=fault.param)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(send: Send, status: int, body: bytes, *, retry_after_s: float | None = None) -> None:
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, round(retry_after_s))).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
