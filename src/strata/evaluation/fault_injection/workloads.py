"""What a trial runs: a session of processes that all end with it. Needs the standard library alone.

Started as `python acts.py NICE "WHAT NAME CPU" ...` in a session of its own; ends when its standard input does, so
also when its parent is killed, or so many seconds after all run as a line there says: acts of high priority may
leave their parent no CPU to end them with.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

LONGEST_S = 20.0
"""Every act ends by then, whatever happens."""
STORM_S = 0.0001
"""Between two calls of a storm: thousands a second, and no more than a recorder can follow."""
BURST = 80
"""Packets a millisecond: half the time of the CPU that receives them (measured), and no interrupt for each."""


def train(end_s: float) -> None:
    """Work some 5 ms, then wait 1.5 ms, as for a device."""
    while time.monotonic() < end_s:
        _spin(0.005)
        time.sleep(0.0015)


def rounds(end_s: float) -> None:
    """Work half a millisecond, then wait 1.5 ms: the trainer of the noisy-neighbour figures."""
    while time.monotonic() < end_s:
        _spin(0.0005)
        time.sleep(0.0015)


def hog(end_s: float) -> None:
    """Keep a CPU busy."""
    while time.monotonic() < end_s:
        _spin(0.05)


def forks(end_s: float) -> None:
    """Start one short process after the other."""
    while time.monotonic() < end_s:
        child = os.fork()
        if child == 0:
            _spin(0.001)
            os._exit(0)
        os.waitpid(child, 0)


def yields(end_s: float) -> None:
    """Give the CPU away, over and over."""
    while time.monotonic() < end_s:
        _spin(STORM_S)
        os.sched_yield()


def pipe(end_s: float) -> None:
    """Two processes that send each other a byte in turn."""
    there, to_child = os.pipe()
    back, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        while os.read(there, 1):
            _spin(STORM_S)
            os.write(to_parent, b"x")
        os._exit(0)
    os.close(there)
    while time.monotonic() < end_s:
        _spin(STORM_S)
        os.write(to_child, b"x")
        os.read(back, 1)
    os.close(to_child)
    os.waitpid(child, 0)


def flood(end_s: float) -> None:
    """Send packets that the CPU this is pinned to receives, from another: half its time is softirqs.

    In a network of its own, whose loopback alone is told so and which ends with the process. Raises OSError where
    none may be had.
    """
    import socket

    (hit,) = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - {hit})
    _own_loopback(hit)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _slow(receiver)
    receiver.bind(("127.0.0.1", 0))
    sender.connect(receiver.getsockname())
    while time.monotonic() < end_s:
        for _ in range(BURST):
            sender.send(b"x")
        time.sleep(0.001)


def _slow(receiver: socket.socket) -> None:
    """Have the kernel divide four thousand times before it drops a packet: 12 us, in the softirq it came with."""
    import ctypes
    import socket
    import struct

    load, divide, drop, most, attach = 0x00, 0x34, 0x06, 4096, 26
    lines = [(load, 7), *[(divide, 3)] * (most - 2), (drop, 0)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", code, 0, 0, k) for code, k in lines))
    receiver.setsockopt(socket.SOL_SOCKET, attach, struct.pack("HxxxxxxP", most, ctypes.addressof(program)))


def _own_loopback(cpu: int) -> None:
    """Enter a network with a loopback alone whose packets one CPU receives (receive packet steering)."""
    import ctypes
    import fcntl
    import socket
    import struct

    new_ns, new_net, private, up = 0x20000, 0x40000000, 0x4000 | 0x40000, 0x1 | 0x40
    set_flags, name = 0x8914, b"lo"
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    done(libc.unshare(new_ns | new_net))
    # /sys shows the network it was mounted in; ours is seen by this process alone.
    done(libc.mount(b"none", b"/", None, private, None))
    done(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", name, up))
    groups = [f"{(1 << cpu >> 32 * i) & 0xFFFFFFFF:x}" for i in reversed(range(cpu // 32 + 1))]
    with open("/sys/class/net/lo/queues/rx-0/rps_cpus", "w") as file:
        file.write(",".join(groups))


def _spin(seconds: float) -> None:
    """Compute for so long of CPU time, so that who waits is later by its wait."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


ACTS: dict[str, Callable[[float], None]] = {
    "train": train,
    "rounds": rounds,
    "hog": hog,
    "forks": forks,
    "yields": yields,
    "pipe": pipe,
    "flood": flood,
}


def main(nice: int, acts: list[str]) -> None:
    """Run acts, each `WHAT NAME CPU` (-1: any), until standard input ends; once all run, print their ids.

    An act that cannot be had here says why on a line of its own.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        # Where sessions share the CPUs fairly, whatever the nice values of their processes (sched(7), autogroup).
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(nice))
    except OSError:
        pass
    end_s = time.monotonic() + LONGEST_S
    pids = []
    for act in acts:
        what, name, cpu = act.split()
        pids.append(os.fork())
        if pids[-1] == 0:
            with open("/proc/self/comm", "w") as file:
                file.write(name)
            if cpu != "-1":
                os.sched_setaffinity(0, {int(cpu)})
            try:
                ACTS[what](end_s)
            except OSError as error:
                os.write(sys.stdout.fileno(), f"{what}: {error.strerror}\n".encode())
            os._exit(0)
    os.write(sys.stdout.fileno(), f"{' '.join(map(str, pids))}\n".encode())
    seconds = sys.stdin.readline()
    if seconds:
        select.select([sys.stdin], [], [], float(seconds))
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
