"""What scx_layered says of itself, asked on its Unix socket: one JSON object a line, both ways.

A connection remembers what it was told, so that figures are of the time since it asked last: it is kept open.

References
----------
sched-ext/scx 7a58a3a1: rust/scx_stats/src/server.rs, scheds/rust/scx_layered/src/stats.rs (SysStats, LayerStats).
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Final

SOCKET: Final = Path("var/run/scx/root/stats")
MAX_ANSWER_BYTES: Final = 4 * 2**20
"""16 layers of a hundred figures on 32 nodes are under 100 KB."""


class NoStats(Exception):
    """scx_layered does not answer, or not what is understood; it may be starting, or ending."""


class Stats:
    """A connection that is made when it is needed, and again after it broke."""

    def __init__(self, path: Path, *, timeout_s: float = 2.0) -> None:
        self.path, self.timeout_s = path, timeout_s
        self._stream: BufferedRWPair[Any, Any] | None = None

    def ask(self) -> dict[str, Any]:
        """Return the figures since the last call. Raises NoStats."""
        try:
            answer = json.loads(self._exchange({"req": "stats", "args": {"target": "top"}}))
            if answer["errno"] != 0:
                raise NoStats(f"scx_layered answers with error {answer['errno']}")
            response = answer["args"]["resp"]
            if not isinstance(response, dict):
                raise NoStats("scx_layered answers with no figures")
            return response
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.close()
            raise NoStats(f"{self.path}: {error!r}") from None

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            # What an earlier call could not send is not sent now either.
            with suppress(OSError):
                self._stream.close()
            self._stream = None

    def _exchange(self, request: dict[str, Any]) -> bytes:
        if self._stream is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self.timeout_s)
                connection.connect(str(self.path))
                self._stream = connection.makefile("rwb")  # which keeps the connection open
        self._stream.write(json.dumps(request).encode() + b"\n")
        self._stream.flush()
        answer = self._stream.readline(MAX_ANSWER_BYTES)
        if not answer.endswith(b"\n"):
            raise ConnectionError("the answer is cut off")
        return answer
