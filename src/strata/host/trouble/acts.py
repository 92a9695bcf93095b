"""What a trial runs: a session of processes that all end with it. Needs the standard library alone.

Started as `python acts.py NICE "WHAT NAME CPU" ...` in a session of its own; ends when its standard input does, so
also when its parent is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

LONGEST_S = 20.0
"""Every act ends by then, whatever happens."""
STORM_S = 0.0001
"""Between two calls of a storm: thousands a second, and no more than a recorder can follow."""


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
}


def main(nice: int, acts: list[str]) -> None:
    """Run acts, each `WHAT NAME CPU` (-1: any), until standard input ends; once all run, print their ids."""
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
            ACTS[what](end_s)
            os._exit(0)
    os.write(sys.stdout.fileno(), f"{' '.join(map(str, pids))}\n".encode())
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
