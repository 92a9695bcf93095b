"""The four layers in words every Linux kernel knows: steps to take, each only where the kernel offers it.

A list and nothing else: who takes the steps reads what was there before, so as to undo them.

References
----------
Linux Documentation: admin-guide/cgroup-v2.rst (threads, cpu.weight, cpu.idle, cpuset), filesystems/resctrl.rst.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from strata.host.cpus import Cpus, show
from strata.host.kernel import Kernel
from strata.host.layers.split import Split, split
from strata.host.threads.classify import Classified
from strata.host.threads.pools import LayerName

Act = Literal["write", "mkdir", "attach", "nice", "affinity", "scheduler", "migrate"]

NICE: Final[Mapping[LayerName, int]] = {"critical": -10, "support": 5, "rest": 10}
"""Nice values where they differ from what threads have; the pipeline keeps its own."""
WEIGHT: Final[Mapping[LayerName, int]] = {"critical": 1000, "pipeline": 100, "support": 50, "rest": 10}
"""cpu.weight, the same as the policy of scx_layered has."""
NOISE: Final = 0.05
"""Share of a CPU from which a thread that belongs to no job is worth being niced."""
BANDWIDTH_PERCENT: Final = 50
"""What resctrl leaves the data pipeline of the memory bandwidth."""
SETTLED_S: Final = 5.0
"""Threads younger than this, as compilers' are, are gone before a step is taken."""
SYSTEM: Final = ("/system.slice", "/init.scope", "/user.slice")
"""Cgroups with daemons and shells, which must never wait until all else sleeps."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    write: `value` into the file `path`. mkdir: the folder `path`. attach: thread number `value` into the list
    `path`. nice, affinity, scheduler (`BATCH 0`, `FIFO 10`): of the thread `path` (/proc/PID/task/TID). migrate:
    memory of the process `path` (/proc/PID) to NUMA node `value`. start_ticks: when the thread started, since its
    number may be used again; 0 where no thread is meant.
    """

    act: Act
    path: str
    value: str
    why: str
    layer: LayerName
    start_ticks: int = 0

    def to_dict(self) -> dict[str, str | int]:
        """Return the stable JSON form."""
        said: dict[str, str | int] = {
            "act": self.act,
            "path": self.path,
            "value": self.value,
            "layer": self.layer,
            "why": self.why,
        }
        return {**said, "start_ticks": self.start_ticks} if self.start_ticks else said


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of the policy that is not done here, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain-kernel equivalent of the four layers."""

    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...]
    split: Split


def plain(cpus: Cpus, kernel: Kernel, threads: Sequence[Classified]) -> Plain:
    """Return the steps that give a host's threads the four layers without sched_ext."""
    parts = split(cpus, threads)
    steps: list[Step] = []
    left: list[LeftOut] = []
    if not any(one.layer != "rest" for one in threads):
        return Plain((), (LeftOut("everything", "no thread of a job was found"),), parts)
    steps += _nice(threads)
    steps += _cgroups(threads, kernel, parts, left)
    # Behind the cpusets: older kernels forget an affinity when a thread enters one.
    steps += _affinity(threads, cpus, parts, left)
    steps += _memory(threads, kernel, left)
    steps += _interrupts(kernel, parts, left)
    steps += _frequency(cpus, parts, left)
    steps += _bandwidth(threads, kernel, left)
    return Plain(tuple(steps), tuple(left), parts)


def _task(one: Classified) -> str:
    return f"/proc/{one.thread.pid}/task/{one.thread.tid}"


def _nice(threads: Sequence[Classified]) -> Iterator[Step]:
    for one in threads:
        wanted = NICE.get(one.layer)
        if wanted is None or one.thread.nice == wanted:
            continue
        if one.layer == "rest" and (one.thread.busy < NOISE or one.thread.age_s < SETTLED_S):
            continue
        # Nobody's own choice is made worse for it: a critical thread at -15 stays there, a polite one at 19 too.
        if (wanted < 0) == (one.thread.nice < wanted):
            continue
        why = f"{one.thread.name}: {one.evidence[0]}"
        yield Step("nice", _task(one), str(wanted), why, one.layer, one.thread.start_ticks)


def _affinity(threads: Sequence[Classified], cpus: Cpus, parts: Split, left: list[LeftOut]) -> Iterator[Step]:
    if len(cpus.nodes) < 2:
        return
    everywhere = set(cpus.numbers)
    pinned = 0
    for one in threads:
        # Supporting frameworks keep to their few CPUs, wherever those are.
        if one.layer in ("support", "rest") or one.node is None or one.node not in cpus.nodes:
            continue
        if one.thread.cpus and set(one.thread.cpus) < everywhere:
            pinned += 1
            continue
        node = cpus.nodes[one.node]
        # Within the layer's cpuset, or the kernel would refuse it.
        near = [cpu for cpu in node if cpu in (parts.of(one.layer) or node)]
        if not near:
            continue
        why = f"GPU {', '.join(map(str, one.gpus))} of its process hangs off NUMA node {one.node}"
        yield Step("affinity", _task(one), show(near), why, one.layer, one.thread.start_ticks)
    if pinned:
        what = f"affinity of {pinned} {'thread' if pinned == 1 else 'threads'}"
        left.append(LeftOut(what, "pinned by the application itself"))


def _cgroups(threads: Sequence[Classified], kernel: Kernel, parts: Split, left: list[LeftOut]) -> Iterator[Step]:
    needed = [name for name in ("cpu", "cpuset") if name not in kernel.controllers]
    if not kernel.cgroup_root or needed:
        why = f"no controller {' and '.join(needed)} there" if kernel.cgroup_root else "cgroup v2 is not mounted"
        left.append(LeftOut("cpu.weight, cpu.idle, cpuset", why))
        return
    if not parts.critical:
        left.append(LeftOut("cpuset.cpus", "too few CPUs to set some aside"))
    jobs = sorted({one.thread.cgroup for one in threads if one.layer != "rest"})
    if "" in jobs:
        left.append(LeftOut("cgroups of threads in the root cgroup", "it can neither be weighted nor confined"))
    for job in (job for job in jobs if job):
        yield from _job(job, [one for one in threads if one.thread.cgroup == job], kernel, parts)
    yield from _others(jobs, threads, kernel, parts)


def _job(job: str, threads: Sequence[Classified], kernel: Kernel, parts: Split) -> Iterator[Step]:
    """Yield a threaded child for each layer in a job's cgroup, so that threads of one process differ."""
    base = f"{kernel.cgroup_root}{job}"
    above = job.split("/")[1:]
    for depth in range(len(above)):
        folder = "/".join([kernel.cgroup_root, *above[:depth]])
        why = f"the cgroups of {job} need both controllers"
        yield Step("write", f"{folder}/cgroup.subtree_control", "+cpu +cpuset", why, "critical")
    layers = [layer for layer in WEIGHT if layer != "rest" and any(one.layer == layer for one in threads)]
    for layer in layers:
        child = f"{base}/strata-{layer}"
        why = "threads of one process belong to different layers"
        yield Step("mkdir", child, "", why, layer)
        yield Step("write", f"{child}/cgroup.type", "threaded", why, layer)
    yield Step(
        "write", f"{base}/cgroup.subtree_control", "+cpu +cpuset", "the layers below differ in them", layers[0]
    )
    for layer in layers:
        child, mine = f"{base}/strata-{layer}", [one for one in threads if one.layer == layer]
        yield Step("write", f"{child}/cpu.weight", str(WEIGHT[layer]), "its share where CPUs are short", layer)
        if chosen := parts.of(layer):
            yield Step("write", f"{child}/cpuset.cpus", show(chosen), parts.why(layer), layer)
        nodes = {one.node for one in mine if one.gpus}
        is_near = layer != "support" and len(kernel.memory_nodes) > 1
        if is_near and len(nodes) == 1 and (node := nodes.pop()) is not None:
            yield Step(
                "write", f"{child}/cpuset.mems", str(node), "memory beside the GPU; pages move with it", layer
            )
        for one in mine:
            tid, why = str(one.thread.tid), one.evidence[0]
            yield Step("attach", f"{child}/cgroup.threads", tid, why, layer, one.thread.start_ticks)


def _others(jobs: Sequence[str], threads: Sequence[Classified], kernel: Kernel, parts: Split) -> Iterator[Step]:
    """Yield what holds everyone else back: top-level cgroups without a job."""
    tops = sorted({"/" + one.thread.cgroup.split("/")[1] for one in threads if one.thread.cgroup})
    for top in tops:
        if any(job == top or job.startswith(f"{top}/") for job in jobs):
            continue
        folder = f"{kernel.cgroup_root}{top}"
        if kernel.has_cpu_idle and top not in SYSTEM:
            yield Step("write", f"{folder}/cpu.idle", "1", "runs when nobody else wants to", "rest")
        else:
            yield Step("write", f"{folder}/cpu.weight", str(WEIGHT["rest"]), "what the job leaves", "rest")
        if parts.critical:
            yield Step("write", f"{folder}/cpuset.cpus", show(parts.shared), parts.why("rest"), "rest")


def _memory(threads: Sequence[Classified], kernel: Kernel, left: list[LeftOut]) -> Iterator[Step]:
    if len(kernel.memory_nodes) < 2:
        left.append(LeftOut("memory beside the GPU", "the machine has one NUMA node with memory"))
        return
    for one in threads:
        if one.thread.is_leader and one.layer != "rest" and one.node in kernel.memory_nodes:
            why = f"its memory goes to the NUMA node of GPU {', '.join(map(str, one.gpus))}"
            start = one.thread.start_ticks
            yield Step("migrate", f"/proc/{one.thread.pid}", str(one.node), why, one.layer, start)


def _interrupts(kernel: Kernel, parts: Split, left: list[LeftOut]) -> Iterator[Step]:
    if not parts.critical:
        left.append(LeftOut("interrupts off critical CPUs", "no CPU is set aside for critical threads"))
        return
    for irq, where in kernel.irqs.items():
        kept = [cpu for cpu in where if cpu not in parts.critical]
        # One that may land on critical CPUs only was put there; it goes where the others are.
        if len(kept) < len(where):
            to = show(kept or parts.shared)
            yield Step(
                "write", f"/proc/irq/{irq}/smp_affinity_list", to, "interrupts stay off launch CPUs", "critical"
            )


def _frequency(cpus: Cpus, parts: Split, left: list[LeftOut]) -> Iterator[Step]:
    slow = [cpu for cpu in cpus.all if cpu.number in parts.critical and 0 < cpu.floor_hz < cpu.top_hz]
    if not any(cpu.top_hz for cpu in cpus.all):
        left.append(LeftOut("frequency floor", "the kernel has no cpufreq here"))
    for cpu in slow:
        path = f"/sys/devices/system/cpu/cpu{cpu.number}/cpufreq/scaling_min_freq"
        yield Step("write", path, f"{cpu.top_hz / 1e3:.0f}", "critical CPUs do not slow down", "critical")


def _bandwidth(threads: Sequence[Classified], kernel: Kernel, left: list[LeftOut]) -> Iterator[Step]:
    mine = [one for one in threads if one.layer == "pipeline"]
    if not kernel.resctrl_domains:
        left.append(LeftOut("memory bandwidth of the pipeline", "resctrl is not mounted, or caps no bandwidth"))
        return
    if not mine:
        return
    folder = "/sys/fs/resctrl/strata-pipeline"
    caps = ";".join(f"{domain}={BANDWIDTH_PERCENT}" for domain in kernel.resctrl_domains)
    yield Step("mkdir", folder, "", "a group with a cap of its own", "pipeline")
    yield Step("write", f"{folder}/schemata", f"MB:{caps}", "loaders leave bandwidth to the launch", "pipeline")
    for one in mine:
        tid, start = str(one.thread.tid), one.thread.start_ticks
        yield Step("attach", f"{folder}/tasks", tid, one.evidence[0], "pipeline", start)
