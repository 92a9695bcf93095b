"""The four layers in words every Linux kernel knows: steps to take, each only where the kernel offers it.

A list and nothing else: who takes the steps reads what was there before, so as to undo them.

References
----------
Linux Documentation: filesystems/resctrl.rst; core-api/irq/irq-affinity.rst; admin-guide/pm/cpufreq.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata.host.machine.cpus import Cpus, show
from strata.host.machine.kernel import Kernel
from strata.host.policy.cgroups import cgroup_steps
from strata.host.policy.split import CpuSplit, split
from strata.host.policy.step import LeftOut, Step
from strata.host.threads.classify import Classified
from strata.host.threads.pools import LayerName

NICE: Final[Mapping[LayerName, int]] = {"critical": -10, "support": 5, "rest": 10}
"""Nice values where they differ from what threads have; the pipeline keeps its own."""
NOISE: Final = 0.05
"""Share of a CPU from which a thread that belongs to no job is worth being niced."""
STARTERS: Final = re.compile(
    r"systemd|init$|kubelet|containerd|dockerd|docker|crio|conmon|podman|runc|slurm|raylet|ray::|gcs_server|sshd|cron|"
    r"atd$|supervisord|torchrun|mpirun|mpiexec|orted|prted|hydra|pbs_mom|lsf|sge_execd|(ba|z|da|k|fi)?sh$|tmux|screen"
)
"""Programs that start those of others: what they are given, jobs would keep."""
_OWN_CGROUP: Final = re.compile(r"/strata-(critical|pipeline|support)$")
"""Those that `cgroup_steps` makes."""
BANDWIDTH_PERCENT: Final = 50
"""What resctrl leaves the data pipeline of the memory bandwidth."""
SETTLED_S: Final = 5.0
"""Threads younger than this, as compilers' are, are gone before a step is taken."""


@dataclass(frozen=True, slots=True)
class PlainPolicy:
    """The plain-kernel equivalent of the four layers."""

    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...]
    split: CpuSplit


def plain(cpus: Cpus, kernel: Kernel, threads: Sequence[Classified]) -> PlainPolicy:
    """Return the steps that give a host's threads the four layers without sched_ext."""
    # What an earlier policy moved is still of its job's cgroup.
    everyone = [_at_home(thread) for thread in threads]
    threads = [thread for thread in everyone if _is_ours(thread)]
    parts = split(cpus, threads)
    if not any(thread.layer != "rest" for thread in threads):
        return PlainPolicy((), (LeftOut("everything", "no thread of a job was found"),), parts)
    items = (
        *_nice(threads, is_shared=any(thread.is_other_job for thread in everyone)),
        *_left_alone(everyone),
        *cgroup_steps(threads, kernel, parts, spared=[thread for thread in everyone if not _is_ours(thread)]),
        # Behind the cpusets: older kernels forget an affinity when a thread enters one.
        *_affinity(threads, cpus, parts),
        *_memory(threads, kernel),
        *_interrupts(threads, kernel, parts),
        *_frequency(cpus, parts),
        *_bandwidth(threads, kernel),
    )
    steps = tuple(item for item in items if isinstance(item, Step))
    return PlainPolicy(steps, tuple(item for item in items if isinstance(item, LeftOut)), parts)


def _at_home(thread: Classified) -> Classified:
    home = _OWN_CGROUP.sub("", thread.thread.cgroup)
    return replace(thread, thread=replace(thread.thread, cgroup=home)) if home != thread.thread.cgroup else thread


def _is_ours(thread: Classified) -> bool:
    """Return whether steps may touch a thread: not of another job, nor put forward by its name alone."""
    return not thread.is_other_job and (thread.is_vouched or thread.layer == "rest")


def _left_alone(threads: Sequence[Classified]) -> Iterator[LeftOut]:
    others = sorted({thread.job for thread in threads if thread.is_other_job and thread.job is not None})
    if others:
        what = f"other jobs on accelerators: {', '.join(map(str, others))}"
        yield LeftOut(what, "neither put forward nor held back for this one")
        yield LeftOut("nice -10 of critical threads", "it would put them before those of the other jobs")
    named = sorted({thread.thread.pid for thread in threads if not thread.is_vouched and thread.layer != "rest"})
    if named:
        shown = ", ".join(map(str, named[:5])) + (" ..." if len(named) > 5 else "")
        why = "any user can give any thread such a name; --pid says that it is a job"
        yield LeftOut(f"processes that only names of threads speak for: {shown}", why)


def _task(thread: Classified) -> str:
    return f"/proc/{thread.thread.pid}/task/{thread.thread.tid}"


def _nice(threads: Sequence[Classified], *, is_shared: bool) -> Iterator[Step]:
    for thread in threads:
        wanted = NICE.get(thread.layer)
        if is_shared and wanted is not None and wanted < 0:
            continue
        if wanted is None or thread.thread.nice == wanted:
            continue
        if thread.layer == "rest" and (thread.thread.busy < NOISE or thread.thread.age_s < SETTLED_S):
            continue
        # What it starts from now on would have its value too, and that may be a job.
        if wanted > 0 and (thread.thread.pid == 1 or STARTERS.match(thread.thread.process)):
            continue
        # Nobody's own choice is made worse for it: a critical thread at -15 stays there, a polite one at 19 too.
        if (wanted < 0) == (thread.thread.nice < wanted):
            continue
        why = f"{thread.thread.name}: {thread.evidence[0]}"
        yield Step("nice", _task(thread), str(wanted), why, thread.layer, thread.thread.start_ticks)


def _affinity(threads: Sequence[Classified], cpus: Cpus, parts: CpuSplit) -> Iterator[Step | LeftOut]:
    if len(cpus.nodes) < 2:
        return
    everywhere = set(cpus.numbers)
    pinned = 0
    for thread in threads:
        # Supporting frameworks keep to their few CPUs, wherever those are.
        if thread.layer in ("support", "rest") or thread.node is None or thread.node not in cpus.nodes:
            continue
        if thread.thread.cpus and set(thread.thread.cpus) < everywhere:
            pinned += 1
            continue
        node = cpus.nodes[thread.node]
        # Within the layer's cpuset, or the kernel would refuse it.
        near = [cpu for cpu in node if cpu in (parts.of(thread.layer) or node)]
        if not near:
            continue
        why = f"GPU {', '.join(map(str, thread.gpus))} of its process hangs off NUMA node {thread.node}"
        yield Step("affinity", _task(thread), show(near), why, thread.layer, thread.thread.start_ticks)
    if pinned:
        what = f"affinity of {pinned} {'thread' if pinned == 1 else 'threads'}"
        yield LeftOut(what, "pinned by the application itself")


def _memory(threads: Sequence[Classified], kernel: Kernel) -> Iterator[Step | LeftOut]:
    if len(kernel.memory_nodes) < 2:
        yield LeftOut("memory beside the GPU", "the machine has one NUMA node with memory")
        return
    for thread in threads:
        if thread.thread.is_leader and thread.layer != "rest" and thread.node in kernel.memory_nodes:
            why = f"its memory goes to the NUMA node of GPU {', '.join(map(str, thread.gpus))}"
            start = thread.thread.start_ticks
            yield Step("migrate", f"/proc/{thread.thread.pid}", str(thread.node), why, thread.layer, start)


def _interrupts(threads: Sequence[Classified], kernel: Kernel, parts: CpuSplit) -> Iterator[Step | LeftOut]:
    if not parts.critical:
        yield LeftOut("interrupts off critical CPUs", "no CPU is set aside for critical threads")
        return
    if any(thread.thread.name == "irqbalance" for thread in threads):
        why = (
            f"irqbalance moves them back unless IRQBALANCE_BANNED_CPULIST={show(parts.critical)}, or it is stopped"
        )
        yield LeftOut("interrupts staying there", why)
    for irq, where in kernel.irqs.items():
        kept = [cpu for cpu in where if cpu not in parts.critical]
        # One that may land on critical CPUs only was put there; it goes where the others are.
        if len(kept) < len(where):
            to = show(kept or parts.shared)
            yield Step(
                "write", f"/proc/irq/{irq}/smp_affinity_list", to, "interrupts stay off launch CPUs", "critical"
            )


def _frequency(cpus: Cpus, parts: CpuSplit) -> Iterator[Step | LeftOut]:
    slow = [cpu for cpu in cpus.all if cpu.number in parts.critical and 0 < cpu.floor_hz < cpu.top_hz]
    if not any(cpu.top_hz for cpu in cpus.all):
        yield LeftOut("frequency floor", "the kernel has no cpufreq here")
    for cpu in slow:
        path = f"/sys/devices/system/cpu/cpu{cpu.number}/cpufreq/scaling_min_freq"
        yield Step("write", path, f"{cpu.top_hz / 1e3:.0f}", "critical CPUs do not slow down", "critical")


def _bandwidth(threads: Sequence[Classified], kernel: Kernel) -> Iterator[Step | LeftOut]:
    own = [thread for thread in threads if thread.layer == "pipeline"]
    if not kernel.resctrl_domains:
        why = "resctrl is not mounted, or caps no bandwidth in percents"
        yield LeftOut("memory bandwidth of the pipeline", why)
        return
    if not own:
        return
    folder = "/sys/fs/resctrl/strata-pipeline"
    caps = ";".join(f"{domain}={BANDWIDTH_PERCENT}" for domain in kernel.resctrl_domains)
    yield Step("mkdir", folder, "", "a group with a cap of its own", "pipeline")
    yield Step("write", f"{folder}/schemata", f"MB:{caps}", "loaders leave bandwidth to the launch", "pipeline")
    for thread in own:
        tid, start = str(thread.thread.tid), thread.thread.start_ticks
        yield Step("attach", f"{folder}/tasks", tid, thread.evidence[0], "pipeline", start)
