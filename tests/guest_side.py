"""What runs inside of the guest: its first process, and what tests ask of it. Nothing but Python's own library."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

MOUNTS = {
    "/proc": "proc",
    "/sys": "sysfs",
    "/dev": "devtmpfs",
    "/sys/fs/cgroup": "cgroup2",
    "/sys/fs/bpf": "bpf",
    "/sys/kernel/debug": "debugfs",
    "/sys/kernel/tracing": "tracefs",
}
SCX = Path("/sys/kernel/sched_ext")
started: dict[int, subprocess.Popen] = {}


def main():
    """Be the first process: mount, then answer calls until the machine is switched off."""
    for path, kind in MOUNTS.items():
        if ctypes.CDLL(None).mount(kind.encode(), path.encode(), kind.encode(), 0, None):
            sys.stderr.write(f"not mounted: {path}\n")
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME="/root", TERM="dumb", COLUMNS="115")
    if child := os.fork():
        while os.wait()[0] != child:  # orphans are ours
            pass
        Path("/proc/sysrq-trigger").write_text("o")
        time.sleep(60)
    # Answers come however busy the machine is; what is started from here is as all else.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(50))
    sys.modules["guest_side"] = sys.modules["__main__"]
    while not (ports := list(Path("/dev").glob("vport*"))):
        time.sleep(0.05)
    port = os.open(ports[0], os.O_RDWR)
    answer = {"value": "ready"}
    while True:
        left = memoryview(json.dumps(answer).encode() + b"\n")
        while left:
            left = left[os.write(port, left) :]
        call = b""
        while not call.endswith(b"\n"):
            call += os.read(port, 2**16)
        answer = _answered(json.loads(call))


def _answered(call):
    try:
        function = getattr(importlib.import_module(call["module"]), call["name"])
        return {"value": function(*call["args"], **call["named"])}
    except BaseException:
        return {"error": traceback.format_exc()}


# --- what tests ask ------------------------------------------------------------------------------------------


def run(command, seconds=None):
    """Run a command to its end; one that takes longer is killed, and its code is None."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            code = None
    return {"code": code, "out": out.decode(errors="replace"), "err": err.decode(errors="replace")}


def start(command, log="/dev/null"):
    """Start a command that goes on, and return its process number."""
    with open(log, "wb") as to:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to, stderr=to, start_new_session=True)
    started[process.pid] = process
    return process.pid


def end(pid, number=15, seconds=60.0):
    """Send a started process a signal (0: none), and return its exit code; None where it does not end."""
    process = started[pid]
    if number:
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode


def text(path):
    """Return what a file says; "" where there is none."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def write(path, what):
    """Write a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(what)


def threads(name):
    """Return the threads of a name as [process, thread], oldest first."""
    paths = Path("/proc").glob("[0-9]*/task/[0-9]*")
    return sorted([int(path.parts[2]), int(path.parts[4])] for path in paths if text(path / "comm") == name)


def waits(tid, seconds):
    """Return how long a thread ran and waited for a CPU in so many seconds, and how often it got one."""
    path = next(Path("/proc").glob(f"[0-9]*/task/{tid}/schedstat"))
    begin_s, before = time.monotonic(), [int(one) for one in path.read_text().split()]
    time.sleep(seconds)
    after, wall_s = [int(one) for one in path.read_text().split()], time.monotonic() - begin_s
    ran, waited, turns = (b - a for a, b in zip(before, after, strict=True))
    return {"wall_ms": 1e3 * wall_s, "run_ms": ran / 1e6, "wait_ms": waited / 1e6, "turns": turns}


def until(path, wanted, seconds):
    """Wait until a file says what is wanted, and return how long that took; None where it never does."""
    begin_s = time.monotonic()
    while text(path) != wanted:
        if time.monotonic() - begin_s > seconds:
            return None
        time.sleep(0.1)
    return time.monotonic() - begin_s


if __name__ == "__main__":
    main()
