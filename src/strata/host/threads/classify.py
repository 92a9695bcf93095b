"""Which pool and layer a thread belongs to, by what it holds, is called, and does; each with its evidence.

Each piece of evidence speaks for one pool with a weight from 0 to 1; those for the same pool add up as independent
hints do, 1 - (1 - a)(1 - b); a runner-up takes half its own strength off. Weights are assumed, not fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata.host.threads.label import NAME_PREFIX
from strata.host.threads.pools import POOLS, LayerName, Pool, of_cgroup, of_thread, stem
from strata.host.threads.processes import is_contained
from strata.host.threads.snapshot import Snapshot, Thread

LEAST: Final = 0.3
"""Below this a guess is none."""
POOL_SIZE: Final = 100
"""The seed's pools of remote calls and routing have a thousand threads and more, its others up to some hundred."""
_LABELS: Final[Mapping[str, Pool]] = {label: pool for pool, facts in POOLS.items() for label in facts.labels}
_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/davinci_manager")
"""Files that whoever asks a driver anything opens; they say nothing of kernels."""


@dataclass(frozen=True, slots=True)
class Classified:
    """A thread with its pool (None: none of the nine), its layer, and why. gpus and node: those of its process.

    job: the process on an accelerator that it belongs to (its own, an ancestor, or one of its cgroup and user), or
    None. is_vouched: more than a name speaks for it, which any user gives any thread. is_other_job: `only` was
    asked for another job.
    """

    thread: Thread
    pool: Pool | None
    layer: LayerName
    confidence: float
    evidence: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    node: int | None = None
    job: int | None = None
    is_vouched: bool = True
    is_other_job: bool = False


@dataclass(frozen=True, slots=True)
class _Crew:
    """The threads of a process that are called as the process is, its first one left out."""

    count: int = 0
    busy: float = 0.0
    run_length_s: float = 0.0

    @property
    def is_computing(self) -> bool:
        """Return whether they run as parallel regions do, not as threads that wait for a message."""
        return self.count > 1 and self.busy > 0.1 and self.run_length_s > 100e-6


@dataclass(frozen=True, slots=True)
class _Process:
    """What is known of a process: `uses` an accelerator for computing, or only `asks` about it."""

    uses: bool
    asks: bool
    why: str
    gpus: tuple[int, ...]
    node: int | None
    is_child_of_user: bool
    job: int | None
    sizes: Mapping[str, int]
    unnamed: _Crew


def classify(snapshot: Snapshot) -> tuple[Classified, ...]:
    """Return every thread of a snapshot with its pool and layer."""
    users = {pid for pid in snapshot.processes if _uses(snapshot, pid)[0]}
    leaders = {pid: snapshot.processes[pid][0] for pid in sorted(users)}
    homes = {(leader.cgroup, leader.user): pid for pid, leader in leaders.items() if leader.cgroup.strip("/")}
    processes = {pid: _process(snapshot, pid, users, homes) for pid in snapshot.processes}
    return tuple(_classified(thread, processes[thread.pid]) for thread in snapshot.threads)


def changes(
    before: tuple[Classified, ...], after: tuple[Classified, ...]
) -> tuple[tuple[str, Classified | None, Classified | None], ...]:
    """Return what is new: `born`, `changed` (its pool or layer), `gone`, each with the thread before and after."""
    old = {thread.thread.key: thread for thread in before}
    new = {thread.thread.key: thread for thread in after}
    changed: list[tuple[str, Classified | None, Classified | None]] = []
    for key, thread in new.items():
        was = old.get(key)
        if was is None:
            changed.append(("born", None, thread))
        elif (was.pool, was.layer) != (thread.pool, thread.layer):
            changed.append(("changed", was, thread))
    changed += [("gone", thread, None) for key, thread in old.items() if key not in new]
    return tuple(changed)


def _uses(snapshot: Snapshot, pid: int) -> tuple[bool, str]:
    """Return whether a process computes on an accelerator, and what says so."""
    named = [gpu.index for gpu in snapshot.gpus if pid in gpu.pids]
    if named:
        return True, f"the driver lists its process on GPU {', '.join(map(str, named))}"
    files = [file for file in snapshot.devices.get(pid, ()) if file not in _CONTROL]
    if not files or (snapshot.is_listed and any(file.startswith("/dev/nvidia") for file in files)):
        return False, ""
    inherited = set(files) <= set(snapshot.devices.get(snapshot.parents.get(pid, 0), ()))
    # A child that was forked holds its parent's files without ever using them.
    return (False, "") if inherited else (True, f"its process holds {', '.join(files[:2])}")


def _process(snapshot: Snapshot, pid: int, users: set[int], homes: Mapping[tuple[str, int], int]) -> _Process:
    uses, why = _uses(snapshot, pid)
    owner = pid if uses else next((ancestor for ancestor in snapshot.ancestors(pid) if ancestor in users), None)
    files = snapshot.devices.get(owner, ()) if owner is not None else ()
    listed = [gpu for gpu in snapshot.gpus if owner in gpu.pids]
    gpus = listed or [gpu for gpu in snapshot.gpus if gpu.file in files]
    nodes = {gpu.node for gpu in gpus}
    member = snapshot.processes[pid][0]
    return _Process(
        uses,
        bool(snapshot.devices.get(pid)),
        why,
        tuple(gpu.index for gpu in gpus),
        # Threads that serve GPUs on two nodes have no home on either.
        nodes.pop() if len(nodes) == 1 else None,
        not uses and owner is not None,
        owner if owner is not None else homes.get((member.cgroup, member.user)),
        Counter(stem(thread.name) for thread in snapshot.processes[pid]),
        _crew(snapshot.processes[pid]),
    )


def _crew(threads: Sequence[Thread]) -> _Crew:
    unnamed = [thread for thread in threads if not thread.is_leader and thread.name == thread.process]
    num_runs = sum(thread.num_runs for thread in unnamed)
    run_s = sum(thread.run_s or 0.0 for thread in unnamed)
    return _Crew(len(unnamed), sum(thread.busy for thread in unnamed), run_s / num_runs if num_runs else 0.0)


def _classified(thread: Thread, process: _Process) -> Classified:
    against: dict[Pool, float] = {}
    reasons: dict[Pool, list[str]] = {}
    for pool, weight, why in _evidence(thread, process):
        against[pool] = against.get(pool, 1.0) * (1.0 - weight)
        reasons.setdefault(pool, []).append(why)
    ranked = sorted(against, key=lambda pool: (against[pool], -POOLS[pool].importance))
    best = ranked[0] if ranked else None
    confidence = (1.0 - against[best]) if best is not None else 0.0
    if len(ranked) > 1:
        confidence *= 1.0 - 0.5 * (1.0 - against[ranked[1]])
    # Who asks the driver was let in by the device's rights; root of the machine itself needs no name to get ahead.
    is_vouched = process.job is not None or process.asks or (thread.user == 0 and not is_contained(thread.cgroup))
    if best is None or confidence < LEAST:
        layer, why = _unknown(process)
        return Classified(
            thread, None, layer, 0.0, (why,), process.gpus, process.node, process.job, is_vouched=is_vouched
        )
    evidence = tuple(reasons[best])
    if len(ranked) > 1:
        evidence += (f"but {reasons[ranked[1]][0]} ({ranked[1]})",)
    return Classified(
        thread,
        best,
        POOLS[best].layer,
        round(confidence, 3),
        evidence,
        process.gpus,
        process.node,
        process.job,
        is_vouched=is_vouched,
    )


def _unknown(process: _Process) -> tuple[LayerName, str]:
    # Nothing is known of it, but a job that computes may wait for it: it must neither starve nor be confined.
    if process.uses or process.is_child_of_user:
        return "pipeline", "no sign of a pool; its job computes on an accelerator"
    return "rest", "no sign of a pool"


def _evidence(thread: Thread, process: _Process) -> Iterator[tuple[Pool, float, str]]:
    if thread.name.startswith(NAME_PREFIX):
        pool = _LABELS.get(thread.name.removeprefix(NAME_PREFIX))
        if pool is not None:
            yield pool, 1.0, f"it labelled itself {thread.name.removeprefix(NAME_PREFIX)!r}"
            return
    named = of_thread(thread.name)
    if named is not None:
        yield *named, f"its name is {thread.name!r}"
    elif not thread.is_leader and (of := of_thread(thread.process)) is not None and not process.uses:
        yield of[0], 0.8 * of[1], f"its process is {thread.process!r}"
    if (by_cgroup := of_cgroup(thread.cgroup)) is not None:
        yield *by_cgroup, f"its cgroup is {thread.cgroup!r}"
    yield from _by_devices(thread, process, is_named=named is not None)
    yield from _by_behaviour(thread, process, is_named=named is not None)


def _by_devices(thread: Thread, process: _Process, *, is_named: bool) -> Iterator[tuple[Pool, float, str]]:
    if process.uses and thread.is_leader:
        yield "kernel-launch", 0.8, f"{process.why}, and it is the first thread"
    elif process.asks and not process.uses and not process.is_child_of_user:
        yield "accelerator-monitor", 0.6, "its process holds accelerator files and computes on none"
    elif process.is_child_of_user and thread.is_leader and not is_named:
        yield "loading", 0.6, "its process is a child of one that computes on an accelerator"


def _by_behaviour(thread: Thread, process: _Process, *, is_named: bool) -> Iterator[tuple[Pool, float, str]]:
    if is_named or thread.is_leader:
        return
    size = process.sizes[stem(thread.name)]
    if process.is_child_of_user:
        yield "transforms", 0.45, "it is a further thread of a process that loads data"
    # OpenMP's threads have no names, and idle ones belong to the pool as well: they are judged together.
    crew = process.unnamed
    if process.uses and thread.name == thread.process and crew.is_computing:
        does = f"keep {crew.busy:.1f} CPUs busy, {1e6 * crew.run_length_s:.0f} us at a time"
        yield "openmp", 0.55, f"one of {crew.count} unnamed threads that {does}"
    elif size >= POOL_SIZE and thread.run_s is not None and thread.busy < 0.05:
        yield "rpc", 0.4, f"one of {size} threads that mostly sleep"


TOLD: Final = 0.5
"""How sure the first thread of a job is critical when nothing but the user says that it is a job."""


def only(threads: Sequence[Classified], snapshot: Snapshot, pid: int) -> tuple[Classified, ...]:
    """Return all threads, where those outside of the job of process `pid` are the rest.

    Those of other jobs on accelerators keep their layer and are marked, so that nobody puts them back. Of the job
    itself no thread is the rest; without a critical thread, as on a machine without an accelerator, its first
    thread is taken for one.
    """
    members = snapshot.tree(pid)
    has_critical = any(thread.layer == "critical" for thread in threads if thread.thread.pid in members)
    return tuple(
        _inside(thread, leads=not has_critical and thread.thread.tid == pid)
        if thread.thread.pid in members
        else _outside(thread, pid)
        for thread in threads
    )


def _inside(thread: Classified, *, leads: bool) -> Classified:
    if leads:
        why = "it is the first thread of the job, which has no other sign of a critical one"
        thread = replace(thread, pool="kernel-launch", layer="critical", confidence=TOLD, evidence=(why,))
    if thread.layer == "rest":
        thread = replace(thread, layer="pipeline", evidence=(*thread.evidence, "it belongs to the job"))
    return replace(thread, is_vouched=True)


def _outside(thread: Classified, pid: int) -> Classified:
    if thread.job is not None:
        return replace(thread, is_other_job=True)
    why = f"it does not descend from process {pid}"
    return replace(thread, pool=None, layer="rest", confidence=0.0, evidence=(why,))
