"""Ports for servers that are started later, or by a program that takes no port 0."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that are free, and that the kernel gives to nobody who asks for any.

    One that it gave us could be another's by the time the server binds it: each connection takes such a port.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    kept = [port for port in range(10_000, 20_000) if not low <= port <= high]  # jobs meet at those above
    found: list[int] = []
    # Not the module's generator, which Hypothesis and seeds make the same in every worker.
    for port in random.SystemRandom().sample(kept, len(kept)):
        if len(found) == count:
            return found
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    raise AssertionError(f"no {count} free ports outside {low} to {high}")
