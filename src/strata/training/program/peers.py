"""Messages of arrays between the ranks of an attempt: TCP and NumPy, for `small` on machines without torch.

Rank 0 listens at MASTER_PORT and hands out who listens where. A send returns at once and moves while others
compute, as the cost model takes for granted; a receive waits. Whoever dies closes its connections, which ends the
others.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

_HEAD: Final = struct.Struct("!I")
_MEET_S: Final = 60.0
_PAUSE_S: Final = 0.2
_PIECE: Final = 2**15


class PeerLost(Exception):
    """Another rank is gone."""


class Peers:
    """The ranks of one attempt, joined. on_bytes(source, bytes, seconds): what a message's body took to come.

    pace(dest, bytes) is called before every piece that is sent, and may wait.
    """

    def __init__(
        self, *, rank: int, world_size: int, master: tuple[str, int], key: str,
        on_bytes: Callable[[int, int, float], None], pace: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.world_size, self._key, self._on_bytes = rank, world_size, key, on_bytes
        self._pace = pace or (lambda _dest, _num_bytes: None)
        self._inbox: dict[tuple[int, str], queue.Queue[Array]] = defaultdict(queue.Queue)
        self._outbox: dict[int, queue.Queue[tuple[str, Array] | None]] = {}
        self._senders: list[threading.Thread] = []
        self._lost: set[int] = set()
        listener = socket.create_server(("", master[1] if rank == 0 else 0), backlog=world_size + 8)
        self._table = {0: master}
        self._hosts: dict[int, str] = {}
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        if rank:
            self.send(0, "join", np.array([listener.getsockname()[1]], dtype=float))
            for there, host, port in self._receive(0, "table", deadline_s=_MEET_S):
                self._table[int(there)] = (str(ip_address(int(host))), int(port))
            return
        for other in range(1, world_size):
            port = int(self._receive(other, "join", deadline_s=_MEET_S)[0])
            self._table[other] = (self._hosts[other], port)
        rows = [(other, int(ip_address(host)), port) for other, (host, port) in self._table.items() if other]
        for other in range(1, world_size):
            self.send(other, "table", np.array(rows, dtype=float))

    def send(self, dest: int, tag: str, array: Array) -> None:
        """Hand an array to a rank, in the background; arrays of one tag arrive in order."""
        if dest not in self._outbox:
            self._outbox[dest] = queue.Queue()
            sender = threading.Thread(target=self._send_all, args=(dest,), daemon=True)
            self._senders.append(sender)
            sender.start()
        self._outbox[dest].put((tag, array))

    def receive(self, source: int, tag: str) -> Array:
        """Return the next array of a tag from a rank. Raises PeerLost where a rank is gone."""
        return self._receive(source, tag, deadline_s=None)

    def sum(self, ranks: list[int], tag: str, array: Array) -> Array:
        """Return the sum over the ranks, added in their order: the same bits on each of them."""
        if len(ranks) == 1:
            return array
        first = ranks[0]
        if self.rank != first:
            self.send(first, f"sum {tag}", array)
            return self.receive(first, f"total {tag}")
        total = array.copy()
        for other in ranks[1:]:
            total += self.receive(other, f"sum {tag}")
        for other in ranks[1:]:
            self.send(other, f"total {tag}", total)
        return total

    def close(self) -> None:
        """Return once everything handed over has been sent."""
        for outbox in self._outbox.values():
            outbox.put(None)
        for sender in self._senders:
            sender.join()

    def _receive(self, source: int, tag: str, *, deadline_s: float | None) -> Array:
        inbox, left_s = self._inbox[source, tag], deadline_s
        while left_s is None or left_s > 0:
            # Rank 0 hears from all in every step: whoever dies takes it along, and it takes the rest.
            is_lost = not self._lost.isdisjoint((source, 0))
            try:
                return inbox.get(timeout=_PAUSE_S)
            except queue.Empty:
                if is_lost:
                    break
                left_s = None if left_s is None else left_s - _PAUSE_S
        raise PeerLost(f"rank {source} is gone, or never came")

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._read_all, args=(connection,), daemon=True).start()

    def _read_all(self, connection: socket.socket) -> None:
        source = -1
        with connection:
            while True:
                try:
                    head = json.loads(_read(connection, _HEAD.unpack(_read(connection, _HEAD.size))[0]))
                    start = time.monotonic()
                    body = _read(connection, head["num_bytes"])
                except (OSError, ValueError):
                    break
                if head["key"] != self._key:  # not of this attempt: an older one's rank looks for its peers
                    return
                source = head["source"]
                self._hosts[source] = connection.getpeername()[0]
                self._on_bytes(source, len(body), time.monotonic() - start)
                self._inbox[source, head["tag"]].put(np.frombuffer(body).reshape(head["shape"]).copy())
        self._lost.add(source)

    def _send_all(self, dest: int) -> None:
        try:
            with self._connect(dest) as connection:
                while (item := self._outbox[dest].get()) is not None:
                    self._write(connection, dest, *item)
        except OSError:
            self._lost.add(dest)

    def _write(self, connection: socket.socket, dest: int, tag: str, array: Array) -> None:
        size = {"shape": array.shape, "num_bytes": array.nbytes}
        head: dict[str, Any] = {"source": self.rank, "tag": tag, "key": self._key, **size}
        text = json.dumps(head).encode()
        connection.sendall(_HEAD.pack(len(text)) + text)
        body = memoryview(np.ascontiguousarray(array).tobytes())
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            self._pace(dest, len(piece))
            connection.sendall(piece)

    def _connect(self, dest: int) -> socket.socket:
        deadline = time.monotonic() + _MEET_S
        while True:
            try:
                connection = socket.create_connection(self._table[dest], timeout=5)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def _read(connection: socket.socket, num_bytes: int) -> bytes:
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise OSError("the other end is closed")
        view = view[count:]
    return bytes(data)
