"""The four layers of seed 004 as a policy of scx_layered, for the threads and the machine there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata.host.machine.cpus import Cpus
from strata.host.machine.kernel import Kernel
from strata.host.policy.logic import cgroup_path, covers, holds, layer_of
from strata.host.policy.policy import (
    MAX_COMM,
    MAX_ORS,
    MAX_PERF,
    Confined,
    Grouped,
    Layer,
    LayerKind,
    Match,
    Open,
    arguments,
)
from strata.host.threads.classify import Classified
from strata.host.threads.label import NAME_PREFIX
from strata.host.threads.pools import LAYERS, POOLS, LayerName, of_thread, stem
from strata.host.threads.snapshot import Thread

PROTECT_FROM: Final = 4
"""CPUs from which some can be kept for critical threads alone."""
SUPPORT_SHARE: Final = 8
"""Supporting frameworks get one CPU in so many."""
USUAL: Final[Mapping[LayerName, tuple[str, ...]]] = {
    "critical": ("pt_autograd_", "pt_nccl_", "NCCL ", "cuda-EvtHandlr", "acl_thread", "trainer_main"),
    "pipeline": ("pt_data_", "QueueFeederThre", "tf_data"),
    "support": ("pt_tcpstore", "pt_elastic", "grpc", "ray::"),
}
"""Names that frameworks give their threads; they find those that start after the policy was written."""

Block = tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class LayeredPolicy:
    """Layers and the arguments scx_layered needs with them, before `f:FILE`.

    missed: threads it was made for that fall into another layer than theirs, for lack of room for more blocks.
    """

    layers: tuple[Layer, ...]
    arguments: tuple[str, ...] = ()
    missed: tuple[Thread, ...] = ()


def generate(cpus: Cpus, kernel: Kernel, threads: Sequence[Classified] = ()) -> LayeredPolicy:
    """Return the four layers. Every thread of `threads` falls into its own layer, in as few blocks as that takes.

    Without threads, labels and the usual names tell the layers apart.
    """
    has_gpu = kernel.has_nvidia
    threads = [thread if thread.is_vouched else replace(thread, layer="rest") for thread in threads]
    before: list[Block] = []
    layers = []
    for name, text in LAYERS.items():
        blocks = _blocks(name, threads, before, has_gpu=has_gpu) if name != "rest" else ((),)
        layers.append(Layer(name, blocks, _kind(name, cpus, threads), text))
        before += blocks
    missed = (
        member.thread for member in threads if getattr(layer_of(member.thread, layers), "name", "") != member.layer
    )
    return LayeredPolicy(tuple(layers), arguments(layers, num_nodes=len(cpus.nodes)), tuple(missed))


def _blocks(
    name: LayerName, threads: Sequence[Classified], before: Sequence[Block], *, has_gpu: bool
) -> tuple[Block, ...]:
    labels = [label for facts in POOLS.values() if facts.layer == name for label in facts.labels]
    scope = _scope(threads)
    if scope is not None:
        joined = [(*scope, Match("CmdJoin", label)) for label in labels]
        # A label given before scx_layered started is in the name only.
        blocks: list[Block] = [*joined, *((*scope, Match("CommPrefix", NAME_PREFIX + label)) for label in labels)]
        usual = [(*scope, Match("CommPrefix", prefix)) for prefix in USUAL[name]]
    else:
        blocks, usual = [], []
    if name == "critical" and has_gpu:
        blocks.append((Match("UsedGpuPid", True), Match("IsGroupLeader", True)))
    own = [member.thread for member in threads if member.layer == name]
    others = [member.thread for member in threads if _is_behind(member.layer, name)]
    blocks += [block for block in usual if not _takes(block, others)]
    blocks = [block for block in blocks if not any(covers(wide, block) for wide in before)]
    for thread in sorted(own, key=lambda member: (not member.is_leader, member.name, member.tid)):
        if not any(_takes(block, [thread]) for block in (*before, *blocks)):
            blocks.append(next(block for block in _candidates(thread) if not _takes(block, others)))
    return tuple(_wider(blocks, others))


def _scope(threads: Sequence[Classified]) -> Block | None:
    """Return for whom labels and the usual names count: the job's cgroup and user, since any user may take a name.

    None for jobs of several users: then only threads that are there now are matched. Without any thread, as in a
    template, they count for all.
    """
    if not threads:
        return ()
    own = [member.thread for member in threads if member.job is not None]
    own = own or [member.thread for member in threads if member.layer != "rest"]
    users = {thread.user for thread in own} or {0}
    if len(users) > 1:
        return None
    user = (Match("UIDEquals", users.pop()),)
    groups = {cgroup_path(thread) for thread in own}
    return (Match("CgroupPrefix", groups.pop()), *user) if len(groups) == 1 and "/" not in groups else user


def _is_behind(other: LayerName, name: LayerName) -> bool:
    order = list(LAYERS)
    return order.index(other) > order.index(name)


def _takes(block: Block, threads: Iterable[Thread]) -> bool:
    return any(all(holds(match, thread) for match in block) for thread in threads)


def _candidates(thread: Thread) -> Iterator[Block]:
    """Yield conditions that hold for a thread, those that outlive its process first."""
    comm, pcomm = Match("CommPrefix", _start(stem(thread.name))), Match("PcommPrefix", _start(thread.process))
    # A name like "python" says nothing by itself: it takes the job's cgroup or at least its process as well.
    place = Match("CgroupPrefix", cgroup_path(thread))
    leads = Match("IsGroupLeader", thread.is_leader)
    if of_thread(thread.name) is not None:
        yield (Match("UIDEquals", thread.user), *((place,) if place.value != "/" else ()), comm)
    if place.value != "/":
        yield (place, comm)
        yield (place, comm, leads)
        yield (place, pcomm, comm, leads)
    elif comm.value != pcomm.value:
        yield (pcomm, comm)
    yield (Match("TGIDEquals", thread.pid), comm)
    yield (Match("TGIDEquals", thread.pid), comm, leads)
    yield (Match("PIDEquals", thread.tid),)


def _start(name: str) -> str:
    """Return the part of a name that a condition can hold: /proc escapes other bytes; 15 count."""
    return name.partition("\\")[0].encode()[: MAX_COMM - 1].decode(errors="ignore")


def _wider(blocks: list[Block], others: Sequence[Thread]) -> list[Block]:
    """Return as many blocks as a layer holds: processes are named instead of their threads, the rest goes."""
    if len(blocks) <= MAX_ORS:
        return blocks
    kept: list[Block] = []
    for block in blocks:
        whole = tuple(match for match in block if match.kind in ("TGIDEquals", "CgroupPrefix", "PcommPrefix"))
        chosen = whole if whole and not _takes(whole, others) else block
        if chosen not in kept:
            kept.append(chosen)
    return kept[:MAX_ORS]


def _kind(name: LayerName, cpus: Cpus, threads: Sequence[Classified]) -> LayerKind:
    total = len(cpus.numbers)
    nodes = sorted({thread.node for thread in threads if thread.layer == "critical" and thread.node is not None})
    # Where the GPUs of all jobs hang off some nodes, critical threads have nothing to do on the others.
    is_local = 0 < len(nodes) < len(cpus.nodes) and all(
        thread.node is not None for thread in threads if thread.layer == "critical" and thread.gpus
    )
    if name == "critical":
        return Grouped(
            util_range=(0.1, 0.6),
            # On a machine too small for a CPU of its own it takes one by preempting.
            cpus_range=(int(total >= PROTECT_FROM), max(1, total // 2)),
            protected=total >= PROTECT_FROM,
            preempt=True,
            prev_over_idle_core=True,
            yield_ignore=0.9,
            weight=1000,
            perf=MAX_PERF if {cpu.governor for cpu in cpus.all} == {"schedutil"} else 0,
            nodes=tuple(nodes) if is_local else (),
        )
    if name == "pipeline":
        return Grouped(util_range=(0.4, 0.85), util_peak_half_life_ms=1000, xllc_mig_min_us=1000.0, weight=100)
    if name == "support":
        fixed = max(1, total // SUPPORT_SHARE)
        return Confined(util_range=(0.4, 0.9), cpus_range=(fixed, fixed), weight=50)
    return Open(weight=10)
