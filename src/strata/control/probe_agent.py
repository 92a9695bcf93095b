"""One end of the probes of a domain: `python -m strata.control.probe_agent`, in the domain's network.

It prints its machine's address and the port it listens at. A line of input `HOST PORT BYTES` sends so many bytes
to the agent there; the result is a line of JSON: bytes a second over the link, and half the handshake's time. The
receiver counts what else arrived on the same device meanwhile: a link that a job shares is as fast as both
together.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 10.0
_CHUNK: Final = 2**16
_HEAD: Final = 4
"""The first of so many parts is not timed: a rested link's token bucket lets it through at once."""


def main() -> None:
    """Serve until the input ends."""
    listener = socket.create_server(("", 0), backlog=64)
    threading.Thread(target=_serve, args=(listener,), daemon=True).start()
    print(_own_address(), listener.getsockname()[1], flush=True)  # noqa: T201 - what the parent waits for
    result: dict[str, float | str]
    for line in sys.stdin:
        host, port, num_bytes = line.split()
        try:
            result = _send(host, int(port), int(num_bytes))
        except (OSError, ValueError) as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)  # noqa: T201


def _own_address() -> str:
    """Return the address that leads out of here, or the machine's name; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect(("192.0.2.1", 9))  # of no machine: RFC 5737
            return str(out.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _send(host: str, port: int, num_bytes: int) -> dict[str, float | str]:
    start = time.monotonic()
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        latency_s = (time.monotonic() - start) / 2
        connection.sendall(f"{num_bytes:020d}".encode() + bytes(num_bytes))
        rate = float(connection.makefile("rb").readline())
    return {"bandwidth_bytes_per_s": rate, "latency_s": latency_s}


def _serve(listener: socket.socket) -> None:
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=_receive, args=(connection, peer[0]), daemon=True).start()


def _receive(connection: socket.socket, host: str) -> None:
    connection.settimeout(_TIMEOUT_S)
    counter = _counter(host)
    try:
        with connection:
            left = int(connection.recv(20, socket.MSG_WAITALL))
            _take(connection, left // _HEAD)
            before, start = _read(counter), time.monotonic()
            arrived = _take(connection, left - left // _HEAD)
            seconds = max(time.monotonic() - start, 1e-6)
            crossed = max(arrived, _read(counter) - before)
            connection.sendall(f"{crossed / seconds}\n".encode())
    except (OSError, ValueError):
        return  # the sender sees a broken connection, and says so


def _take(connection: socket.socket, num_bytes: int) -> int:
    """Return how many bytes arrived: all of them. Raises OSError where the sender is gone before."""
    left = num_bytes
    while left:
        chunk = connection.recv(min(left, _CHUNK))
        if not chunk:
            raise OSError("the sender is gone")
        left -= len(chunk)
    return num_bytes


def _counter(host: str) -> Path | None:
    """Return the count of bytes received on the device that leads to a host alone; None where others share it."""
    wanted = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}"
    for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]:
        device, dest, _, _, _, _, _, mask, *_ = line.split()
        if dest == wanted and mask == "FFFFFFFF":
            return Path("/sys/class/net", device, "statistics/rx_bytes")
    return None


def _read(counter: Path | None) -> int:
    return int(counter.read_text(encoding="ascii")) if counter is not None and counter.exists() else 0


if __name__ == "__main__":
    main()
