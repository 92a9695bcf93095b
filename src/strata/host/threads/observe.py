"""The threads of this machine, read from /proc; what goes away while it is read is left out.

References
----------
proc(5): /proc/PID/stat, status, schedstat, cgroup, fd. Linux Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from strata.fleet.local import cpu_list
from strata.host.machine.cgroups import cgroup_of
from strata.host.machine.kernel import read_attribute, stat_fields, threads_in
from strata.host.threads.gpus import gpus as gpus_of
from strata.host.threads.snapshot import Gpu, Snapshot, Thread

ACCELERATOR_FILES: Final = re.compile(
    r"/dev/(nvidia\d+|nvidiactl|nvidia-uvm(-tools)?|davinci\d+|davinci_manager|kfd|cambricon_dev\d+"
    r"|mtgpu\.\d+|accel/accel\d+|accel\d+|hl\d+|neuron\d+|iluvatar\d+|xpu\d+|biren/card_\d+)"
)
"""What drivers call their devices: NVIDIA, Ascend, AMD and Hygon, Cambricon, Moore Threads, Habana, TPU …"""
NS_PER_S: Final = 1e9


def observe(root: Path = Path("/"), *, gpus: tuple[Gpu, ...] | None = None) -> Snapshot:
    """Read all user threads below a root with proc and sys. `gpus` None: found through sysfs and NVML.

    Nothing is needed; without root the files of other users' processes stay hidden, and are counted.
    """
    proc = root / "proc"
    uptime_s = _uptime_s(proc)
    threads: list[Thread] = []
    devices: dict[int, tuple[str, ...]] = {}
    num_hidden = 0
    for folder in proc.glob("[0-9]*"):
        members = _threads(folder, uptime_s)
        if not members:
            continue
        threads += members
        held = devices_of(folder)
        if held is None:
            num_hidden += 1
        elif held:
            devices[int(folder.name)] = held
    ordered = tuple(sorted(threads, key=lambda thread: (thread.pid, thread.tid)))
    return Snapshot(ordered, devices, gpus_of(root) if gpus is None else gpus, num_hidden)


def threads_of(pids: Iterable[int], root: Path = Path("/")) -> tuple[Thread, ...]:
    """Read the threads of some processes, in their order; of one that has ended none."""
    uptime_s = _uptime_s(root / "proc")
    return tuple(thread for pid in pids for thread in _threads(root / "proc" / str(pid), uptime_s))


def _uptime_s(proc: Path) -> float:
    return float((read_attribute(proc / "uptime").split() or ["0"])[0])


def _threads(process: Path, uptime_s: float) -> list[Thread]:
    leader = status_of(process / "status")
    # Kernel threads have no memory of their own, and nothing here places them.
    if not leader or "VmSize" not in leader:
        return []
    tasks = [_thread(folder, leader, uptime_s) for folder in threads_in(process)]
    return [thread for thread in tasks if thread is not None]


def _thread(task: Path, leader: Mapping[str, str], uptime_s: float) -> Thread | None:
    status, fields = status_of(task / "status"), stat_fields(task / "stat")
    if not status or not fields:
        return None
    start_ticks = int(fields[19])
    schedstat = read_attribute(task / "schedstat").split()
    has_times = len(schedstat) == 3
    hertz = os.sysconf("SC_CLK_TCK")
    return Thread(
        int(task.name),
        int(leader["Tgid"]),
        int(leader["PPid"]),
        status["Name"],
        leader["Name"],
        cgroup_of(read_attribute(task / "cgroup")),
        start_ticks,
        max(0.0, uptime_s - start_ticks / hertz),
        int(schedstat[0]) / NS_PER_S if has_times else (int(fields[11]) + int(fields[12])) / hertz,
        int(schedstat[1]) / NS_PER_S if has_times else None,
        int(schedstat[2]) if has_times else 0,
        int(status.get("voluntary_ctxt_switches", 0)),
        int(status.get("nonvoluntary_ctxt_switches", 0)),
        int(fields[16]),
        cpu_list(status.get("Cpus_allowed_list")),
        int(status.get("Uid", "0 0").split()[1]),
    )


def status_of(path: Path) -> dict[str, str]:
    """Return a file of status by its keys; nothing where it has ended."""
    status = {}
    for line in read_attribute(path).split("\n"):
        key, colon, value = line.partition(":\t")
        if colon:
            # A name keeps its spaces; numbers are padded with them.
            status[key] = value if key == "Name" else value.strip()
    return status if {"Name", "Tgid", "PPid"} <= status.keys() else {}


def devices_of(process: Path) -> tuple[str, ...] | None:
    """Return the accelerator files a process holds; None where one may not look."""
    targets = set()
    try:
        for descriptor in (process / "fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:  # closed since
                continue
            if ACCELERATOR_FILES.fullmatch(target):
                targets.add(target)
    except PermissionError:
        return None
    except OSError:  # the process has ended
        return ()
    return tuple(sorted(targets))
