"""`strata host threads`: which thread belongs to which pool and layer, and why."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import console as stdout
from strata.cli.output import emit, json_text, output_option
from strata.cli.parameters import POSITIVE
from strata.errors import UsageError
from strata.tables import Line, Shown, printable, rows

if TYPE_CHECKING:
    from strata.host.threads.classify import Classified
    from strata.host.threads.snapshot import Snapshot

WATCH_S: Final = 2.0
"""Thread pools are up within seconds of a job's start; reading 100 threads takes milliseconds of CPU."""


@click.command()
@click.option("--pid", type=POSITIVE, help="Only this process and its descendants.")
@click.option("--watch", is_flag=True, help="Keep running; report threads that are new, changed or gone.")
@output_option
def threads(pid: int | None, watch: bool, output: str) -> None:
    """Classify live threads into the pools and layers of a training job, with the evidence for each.

    Uses open accelerator files, processes that NVML lists, names, cgroups, leadership and behaviour. A thread can
    label itself with `strata.host.label("train")`. With --watch, JSON output is one object per line.

    \b
    strata host threads
    strata host threads --pid 4035 --watch
    """
    snapshot, current = _look(pid)
    if pid is not None and not current:
        raise UsageError(f"there is no process {pid}", hint="strata host threads")
    if not watch:
        emit(_data(snapshot, current), output, _show(snapshot, current))
        return
    _watch(current, pid, output)


def _look(pid: int | None) -> tuple[Snapshot, tuple[Classified, ...]]:
    from strata.host.threads.classify import classify, only
    from strata.host.threads.observe import observe

    snapshot = observe()
    current = classify(snapshot)
    if pid is None:
        return snapshot, current
    members = snapshot.tree(pid)
    return snapshot, tuple(
        classified for classified in only(current, snapshot, pid) if classified.thread.pid in members
    )


def _watch(current: tuple[Classified, ...], pid: int | None, output: str) -> None:
    from strata.host.threads.classify import changes

    for classified in current:
        _tell("born", None, classified, output)
    while True:
        time.sleep(WATCH_S)
        _, now = _look(pid)
        for what, before, after in changes(current, now):
            _tell(what, before, after, output)
        current = now


def _tell(what: str, before: Classified | None, after: Classified | None, output: str) -> None:
    classified = after or before
    assert classified is not None
    if output == "table":
        was = f" (was {before.pool or before.layer})" if before is not None and after is not None else ""
        why = f": {classified.evidence[0]}" if after is not None else ""
        thread, pool = classified.thread, classified.pool or "no pool"
        line = f"{what} {thread.tid} {thread.name}: {pool}, {classified.layer}{was}{why}"
        stdout().print(printable(line), soft_wrap=True)
        return
    data = {"change": what, "was": before.pool if before is not None else None, "thread": _thread(classified)}
    if output == "json":
        click.echo(json_text(data))
    else:
        import yaml

        click.echo("---\n" + yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def _data(snapshot: Snapshot, current: tuple[Classified, ...]) -> dict[str, Any]:
    from strata.host.threads.pools import LAYERS, POOLS

    pools, layers = (
        Counter(classified.pool for classified in current),
        Counter(classified.layer for classified in current),
    )
    return {
        "threads": [_thread(classified) for classified in current],
        "pools": {pool: pools[pool] for pool in POOLS},
        "layers": {layer: layers[layer] for layer in LAYERS},
        "gpus": [
            {
                "index": gpu.index,
                "address": gpu.address,
                "numa_node": gpu.node,
                "cpus": list(gpu.cpus),
                "pids": sorted(gpu.pids),
            }
            for gpu in snapshot.gpus
        ],
        "processes_hidden": snapshot.num_hidden,
    }


def _thread(classified: Classified) -> dict[str, Any]:
    thread = classified.thread
    length_s = thread.run_length_s
    return {
        **{key: getattr(thread, key) for key in ("tid", "pid", "name", "process", "cgroup")},
        **{key: getattr(classified, key) for key in ("pool", "layer", "confidence")},
        "evidence": list(classified.evidence),
        "gpus": list(classified.gpus),
        "numa_node": classified.node,
        "nice": thread.nice,
        "wakeups_per_s": round(thread.wakeups_per_s, 3),
        "run_length_us": round(1e6 * length_s, 3) if length_s is not None else None,
        "busy": round(thread.busy, 4),
        "wait_ms": round(1e3 * thread.wait_s, 3) if thread.wait_s is not None else None,
    }


def _why(classified: Classified) -> str:
    evidence = classified.evidence[0]
    # The name stands beside it.
    return f"{classified.confidence:.0%}: {'its name' if evidence.startswith('its name is ') else evidence}"


def _show(snapshot: Snapshot, current: tuple[Classified, ...]) -> Shown:
    from strata.host.threads.pools import LAYERS, stem

    alike: dict[tuple[str, int, str, str, str], list[Classified]] = {}
    for classified in current:
        key = (
            classified.layer,
            classified.thread.pid,
            classified.thread.process,
            stem(classified.thread.name),
            classified.pool or "-",
        )
        alike.setdefault(key, []).append(classified)
    order: list[str] = list(LAYERS)
    # The rest is most of a machine, and says nothing of the job.
    shown = sorted(
        ((key, some) for key, some in alike.items() if key[0] != "rest" or key[4] != "-"),
        key=lambda item: (order.index(item[0][0]), item[0][1:]),
    )
    if shown:
        yield rows(
            ("layer", "pool", "pid", "thread", "count", "sure: why"),
            (
                (layer, pool, str(pid), name, str(len(some)), _why(some[0]))
                for (layer, pid, _, name, pool), some in shown
            ),
            right=(2, 4),
        )
    left = sum(len(some) for key, some in alike.items() if key[0] == "rest" and key[4] == "-")
    yield f"{left} of {len(current)} threads belong to no pool and no job on an accelerator."
    for gpu in snapshot.gpus:
        where = f"NUMA node {gpu.node}" if gpu.node is not None else "NUMA node not known"
        count = f"processes {', '.join(map(str, sorted(gpu.pids)))}" if gpu.pids else "no processes"
        yield Line(f"GPU {gpu.index} {gpu.address}: {where}, {count}", is_whole=True)
    if snapshot.num_hidden:
        who = "from root, too: that takes CAP_SYS_PTRACE" if os.geteuid() == 0 else "root sees them"
        count = "1 process" if snapshot.num_hidden == 1 else f"{snapshot.num_hidden} processes"
        yield f"The files of {count} of other users are hidden; {who}."
