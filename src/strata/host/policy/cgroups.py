"""The four layers as cgroups of version 2: a threaded child a layer in each job, and the others held back.

References
----------
Linux Documentation: admin-guide/cgroup-v2.rst (threads, cpu.weight, cpu.idle, cpuset).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from strata.host.machine.cpus import show
from strata.host.machine.kernel import Kernel
from strata.host.policy.split import CpuSplit
from strata.host.policy.step import LeftOut, Step
from strata.host.threads.classify import Classified
from strata.host.threads.pools import LayerName

WEIGHT: Final[Mapping[LayerName, int]] = {"critical": 1000, "pipeline": 100, "support": 50, "rest": 10}
"""cpu.weight, the same as the policy of scx_layered has."""
CONTROLS: Final = {"cpu": "cpu.weight, cpu.idle", "cpuset": "cpuset.cpus, cpuset.mems"}
"""Controllers of cgroup v2, and the files of theirs that steps write."""
SYSTEM: Final = ("/system.slice", "/init.scope", "/user.slice")
"""Cgroups with daemons and shells, which must never wait until all else sleeps."""


def cgroup_steps(
    threads: Sequence[Classified], kernel: Kernel, parts: CpuSplit, *, spared: Sequence[Classified] = ()
) -> Iterator[Step | LeftOut]:
    """Yield the steps on cgroups, by the controllers there are; and what cannot be done here.

    spared: threads that no step may touch, so that no cgroup which holds one of them is held back.
    """
    for controller, files in CONTROLS.items():
        if controller not in kernel.controllers:
            why = f"no controller {controller} there" if kernel.cgroup_root else "no cgroup v2 at /sys/fs/cgroup"
            yield LeftOut(files, why)
    if not kernel.cgroup_root or not kernel.controllers & CONTROLS.keys():
        return
    if "cpuset" in kernel.controllers and not parts.critical:
        yield LeftOut("cpuset.cpus", "too few CPUs to set some aside")
    if any(_is_hidden(thread.thread.cgroup) and thread.layer != "rest" for thread in threads):
        yield LeftOut("cgroups of threads outside of this cgroup namespace", "not to be seen from here")
    threads = [thread for thread in threads if not _is_hidden(thread.thread.cgroup)]
    jobs = sorted({thread.thread.cgroup for thread in threads if thread.layer != "rest"})
    if "" in jobs:
        yield LeftOut("cgroups of threads in the root cgroup", "it can neither be weighted nor confined")
    shared = {thread.thread.cgroup for thread in spared if thread.is_other_job} & set(jobs)
    for job in sorted(shared - {""}):
        # Its children would compete with the other job's threads beside them.
        yield LeftOut(f"cgroups of layers in {job}", "another job on accelerators is in it as well")
    for job in (job for job in jobs if job and job not in shared):
        yield from _job(job, [thread for thread in threads if thread.thread.cgroup == job], kernel, parts)
    kept = {_top(thread.thread.cgroup) for thread in spared} | {_top(job) for job in jobs}
    yield from _others(kept, [*threads, *spared], kernel, parts)


def _job(job: str, threads: Sequence[Classified], kernel: Kernel, parts: CpuSplit) -> Iterator[Step]:
    """Yield a threaded child for each layer in a job's cgroup, so that threads of one process differ."""
    base = f"{kernel.cgroup_root}{job}"
    above = job.split("/")[1:]
    wanted = " ".join(f"+{controller}" for controller in CONTROLS if controller in kernel.controllers)
    for depth in range(len(above)):
        folder = "/".join([kernel.cgroup_root, *above[:depth]])
        why = f"the cgroups of {job} need controllers"
        yield Step("write", f"{folder}/cgroup.subtree_control", wanted, why, "critical")
    layers = [layer for layer in WEIGHT if layer != "rest" and any(thread.layer == layer for thread in threads)]
    for layer in layers:
        child = f"{base}/strata-{layer}"
        why = "threads of one process belong to different layers"
        yield Step("mkdir", child, "", why, layer)
        yield Step("write", f"{child}/cgroup.type", "threaded", why, layer)
    yield Step("write", f"{base}/cgroup.subtree_control", wanted, "the layers below differ in them", layers[0])
    for layer in layers:
        child, own = f"{base}/strata-{layer}", [thread for thread in threads if thread.layer == layer]
        if "cpu" in kernel.controllers:
            yield Step("write", f"{child}/cpu.weight", str(WEIGHT[layer]), "its share where CPUs are short", layer)
        has_sets = "cpuset" in kernel.controllers
        if has_sets and (chosen := parts.of(layer)):
            yield Step("write", f"{child}/cpuset.cpus", show(chosen), parts.why(layer), layer)
        nodes = {thread.node for thread in own if thread.gpus}
        is_near = has_sets and layer != "support" and len(kernel.memory_nodes) > 1
        if is_near and len(nodes) == 1 and (node := nodes.pop()) is not None:
            yield Step(
                "write", f"{child}/cpuset.mems", str(node), "memory beside the GPU; pages move with it", layer
            )
        for thread in own:
            tid, why = str(thread.thread.tid), thread.evidence[0]
            yield Step("attach", f"{child}/cgroup.threads", tid, why, layer, thread.thread.start_ticks)


def _others(
    kept: AbstractSet[str], threads: Sequence[Classified], kernel: Kernel, parts: CpuSplit
) -> Iterator[Step]:
    """Yield what holds everyone else back: top-level cgroups without a job, but those that are `kept`."""
    users: dict[str, set[int]] = {}
    for thread in threads:
        users.setdefault(_top(thread.thread.cgroup), set()).add(thread.thread.user)
    held_back = [top for top in sorted(users) if top and top not in kept]
    may_idle = {top for top in held_back if top not in SYSTEM}
    # Whoever has processes there only would starve.
    elsewhere = set().union(*(ids for top, ids in users.items() if top not in may_idle))
    for top in held_back:
        folder = f"{kernel.cgroup_root}{top}"
        if "cpu" in kernel.controllers and kernel.has_cpu_idle and top in may_idle and users[top] <= elsewhere:
            yield Step("write", f"{folder}/cpu.idle", "1", "runs when nobody else wants to", "rest")
        elif "cpu" in kernel.controllers:
            yield Step("write", f"{folder}/cpu.weight", str(WEIGHT["rest"]), "what the job leaves", "rest")
        if "cpuset" in kernel.controllers and parts.critical:
            yield Step("write", f"{folder}/cpuset.cpus", show(parts.shared), parts.why("rest"), "rest")


def _is_hidden(cgroup: str) -> bool:
    """Return whether it lies outside of this cgroup namespace, as others of a host do seen from a container."""
    return cgroup.startswith("/..")


def _top(cgroup: str) -> str:
    """Return the cgroup below the root that holds another; "" for the root."""
    return "/".join(cgroup.split("/")[:2])
