"""Work that switches all the time: two processes on one CPU send each other a byte.

Needs the standard library alone. Started as `python pipes.py NAME ROUNDS CPU`; prints the CPU time of both [s].
"""

from __future__ import annotations

import os
import sys
import time


def main(name: str, rounds: int, cpu: int) -> None:
    """Send a byte there and back so many times: two switches and two wakeups a round."""
    os.sched_setaffinity(0, {cpu})
    with open("/proc/self/comm", "w") as file:
        file.write(name)
    there, to_child = os.pipe()
    back, to_parent = os.pipe()
    child = os.fork()
    began_s = time.process_time()
    if child == 0:
        for _ in range(rounds):
            os.read(there, 1)
            os.write(to_parent, b"x")
        os.write(to_parent, str(time.process_time() - began_s).encode())
        os._exit(0)
    for _ in range(rounds):
        os.write(to_child, b"x")
        os.read(back, 1)
    ours_s = time.process_time() - began_s
    os.waitpid(child, 0)
    sys.stdout.write(f"{ours_s + float(os.read(back, 64))}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
