"""What runs inside of the guest: its first process, and what tests ask of it. Nothing but Python's own library."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
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
    _loopback_up()
    os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME="/root", TERM="dumb", COLUMNS="115")
    if child := os.fork():
        while os.wait()[0] != child:  # orphans are ours
            pass
        Path("/proc/sysrq-trigger").write_text("o")
        time.sleep(60)
    # Answers come however busy the machine is; what is started from here is as all else.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(50))
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


def _loopback_up():
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = struct.unpack(
            "16sh", fcntl.ioctl(any_socket, get_flags, struct.pack("16sh22x", b"lo", 0))[:18]
        )
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh22x", name, flags | up))


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
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to, stderr=to)
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


def write(path, what, mode=0o644):
    """Write a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(what)
    if not path.startswith(("/proc", "/sys")):
        Path(path).chmod(mode)


def leaders(name):
    """Return the numbers of processes of a name, oldest first."""
    paths = (path for path in Path("/proc").glob("[0-9]*/comm") if text(path) == name)
    return sorted(int(path.parent.name) for path in paths)


def kill(number, *pids):
    """Send any processes a signal."""
    for pid in pids:
        os.kill(pid, number)


def until_named(pid, name, seconds):
    """Wait until a process has a thread of that name; return whether it has."""
    until_s = time.monotonic() + seconds
    while not (found := name in [text(path) for path in Path(f"/proc/{pid}/task").glob("*/comm")]):
        if time.monotonic() > until_s:
            break
        time.sleep(0.05)
    return found


def waits(tid, seconds):
    """Return how long a thread ran and waited for a CPU in so many seconds, and how often it got one."""
    path = next(Path("/proc").glob(f"[0-9]*/task/{tid}/schedstat"))
    begin_s, before = time.monotonic(), [int(one) for one in path.read_text().split()]
    time.sleep(seconds)
    after, wall_s = [int(one) for one in path.read_text().split()], time.monotonic() - begin_s
    ran, waited, turns = (b - a for a, b in zip(before, after, strict=True))
    return {"wall_ms": 1e3 * wall_s, "run_ms": ran / 1e6, "wait_ms": waited / 1e6, "turns": turns}


def quietest(tid, windows=8, seconds=2.0):
    """Return `waits` of the window in which a thread waited least; others have what the machine below took."""
    time.sleep(3)  # a scheduler gets to know what runs
    return min((waits(tid, seconds) for _ in range(windows)), key=lambda one: one["wait_ms"] / one["wall_ms"])


def until(path, wanted, seconds):
    """Wait until a file says what is wanted, and return how long that took; None where it never does."""
    begin_s = time.monotonic()
    while text(path) != wanted:
        if time.monotonic() - begin_s > seconds:
            return None
        time.sleep(0.1)
    return time.monotonic() - begin_s


def page(url):
    """Return a page's status and text."""
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]


def ended(pid, seconds):
    """Wait until a process is gone; return whether it is."""
    until_s = time.monotonic() + seconds
    while (is_there := Path(f"/proc/{pid}").exists()) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not is_there


def kill_at(command, path, lines):
    """Start a command and kill it as soon as a file has so many lines; return its exit code."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and text(path).count("\n") + 1 < lines:
            time.sleep(0.0005)
        process.kill()
    return process.returncode


def group(path, *pids):
    """Make a cgroup of some processes."""
    folder = Path("/sys/fs/cgroup") / path
    folder.mkdir(exist_ok=True)
    for pid in pids:
        (folder / "cgroup.procs").write_text(str(pid))


def settings(*pids):
    """Return all that a plain policy may have changed: cgroups, interrupts, and each thread of some processes."""
    root, found = Path("/sys/fs/cgroup"), {}
    controls = ("type", "subtree_control", "procs", "threads")
    names = [*(f"cgroup.{one}" for one in controls), "cpu.weight", "cpu.idle", "cpuset.cpus", "cpuset.mems"]
    for path in root.rglob("*"):
        # Whose home is the root comes and goes.
        if path.name in names and (path.parent != root or path.name == "cgroup.subtree_control"):
            found[str(path)] = " ".join(sorted(text(path).split()))
    for path in Path("/proc/irq").glob("[0-9]*/smp_affinity_list"):
        found[str(path)] = text(path)
    for pid in pids:
        for tid in map(int, os.listdir(f"/proc/{pid}/task")):
            mine = sorted(os.sched_getaffinity(tid)), os.getpriority(os.PRIO_PROCESS, tid)
            found[f"thread {tid}"] = str(mine)
    return found


def fake_gpu(node):
    """Show a GPU beside a NUMA node, in sysfs and as /dev/nvidia0; there is neither a card nor a driver."""
    card = Path("/run/pci/0000:3b:00.0")
    card.mkdir(parents=True)
    for name, what in (
        ("vendor", "0x10de"),
        ("device", "0x2330"),
        ("class", "0x030200"),
        ("numa_node", str(node)),
    ):
        (card / name).write_text(what + "\n")
    bind = 4096
    assert ctypes.CDLL(None).mount(b"/run/pci", b"/sys/bus/pci/devices", None, bind, None) == 0
    null = os.stat("/dev/null")
    os.mknod("/dev/nvidia0", null.st_mode, null.st_rdev)


def start_with(path, command):
    """Start a command that holds a file open, and return its process number."""
    with open(path) as held:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[held.fileno()])
    started[process.pid] = process
    return process.pid
