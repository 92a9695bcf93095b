"""A link with latency where the kernel has no netem: a process that hands packets from one end to the other, late.

Runs as `python -m strata.evaluation.testbed.relay HERE THERE` inside a namespace: makes two TUN devices of those
names, prints `ready`, and passes every packet of one to the other after the delay. The caller moves one device to
another namespace; the open file stays with us. A line of input is a new delay [s]; its end ends the relay.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

_TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_MAX_PACKET: Final = 65536


def main(names: Sequence[str]) -> None:
    """Relay between two new TUN devices until the input ends."""
    os.nice(-20)  # before the workers: a relay that waits for a core adds latency that nobody asked for
    here, there = (_open(name) for name in names)
    print("ready", flush=True)  # noqa: T201 - what the parent waits for
    other, queue = {here: there, there: here}, Delayed()
    while True:
        readable, _, _ = select.select([here, there, 0], [], [], queue.wait_s(time.monotonic()))
        now = time.monotonic()
        for source in readable:
            if source == 0:
                lines = os.read(0, 4096).split()
                if not lines:
                    return
                queue.delay_s = float(lines[-1])
            else:
                _drain(source, other[source], queue, now)
        for dest, packet in queue.due(time.monotonic()):
            _write(dest, packet)


class Delayed:
    """Packets on their way, first in first out; times are of one monotonic clock."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._packets: deque[tuple[float, int, bytes]] = deque()

    def add(self, now_s: float, dest: int, packet: bytes) -> None:
        """Take a packet in, to be handed on after the delay and never before an earlier one."""
        self._packets.append((now_s + self.delay_s, dest, packet))

    def due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Return the packets whose time has come, and forget them."""
        addresses = []
        while self._packets and self._packets[0][0] <= now_s:
            addresses.append(self._packets.popleft()[1:])
        return addresses

    def wait_s(self, now_s: float) -> float | None:
        """Return how long until the next packet is due, None where there is none."""
        return max(0.0, self._packets[0][0] - now_s) if self._packets else None


def _open(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _drain(source: int, dest: int, queue: Delayed, now_s: float) -> None:
    while True:
        try:
            packet = os.read(source, _MAX_PACKET)
        except BlockingIOError:
            return
        except OSError:  # the device is not up yet
            time.sleep(0.01)
            return
        queue.add(now_s, dest, packet)


def _write(dest: int, packet: bytes) -> None:
    try:
        os.write(dest, packet)
    except OSError:  # a full or a closed device loses packets, as a wire does
        return


if __name__ == "__main__":
    main(sys.argv[1:])
