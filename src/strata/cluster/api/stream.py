"""A watch while it is read: one JSON event a line, and an end that another thread can bring about."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import Object


def lines_of(chunks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of a body, cut at \n alone: a string in the JSON may hold U+0085, which httpx cuts at too.

    What follows the last \n is half an event of a connection that broke, and is dropped.
    """
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def event_of(line: bytes) -> tuple[str, Object]:
    """Return one event. Raises ApiFailed where it is the server's end of the watch, as 410 is."""
    try:
        event: dict[str, Any] = json.loads(line)
        kind, obj = str(event["type"]), event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiFailed(f"the API server sent something that is not a watch event: {line[:80]!r}") from error
    if kind == "ERROR":
        raise ApiFailed(
            f"the API server ended the watch: {obj.get('message', '')}",
            status=int(obj.get("code") or 0),
            reason=str(obj.get("reason") or ""),
        )
    return kind, obj


class Stream(Iterator[tuple[str, Object]]):
    """Yields (type, object). `failures`: what the HTTP client raises, told as ApiFailed."""

    def __init__(self, response: Any, what: str, *, failures: tuple[type[Exception], ...]) -> None:
        self._response, self._is_closed = response, False
        self._events = self._read(what, failures)

    def __next__(self) -> tuple[str, Object]:
        return next(self._events)

    def _read(self, what: str, failures: tuple[type[Exception], ...]) -> Iterator[tuple[str, Object]]:
        try:
            for line in lines_of(self._response.iter_bytes()):
                yield event_of(line)
        except failures as error:
            if not self._is_closed:
                raise ApiFailed(f"{what}: the stream broke: {type(error).__name__}: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """End it, also from another thread while this one waits for the next event.

        Closing a socket does not wake who reads it; shutting it down does. It is shut below TLS, which is not
        meant to be closed under a reader.
        """
        self._is_closed = True
        network = self._response.extensions.get("network_stream")
        connection = network and network.get_extra_info("socket")
        if connection is None:  # no socket, no other thread that waits for it
            self._response.close()
            return
        try:
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        except OSError:  # the server was faster
            return
