"""`strata host threads`: which thread belongs to which pool and layer, and why."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import console as stdout
from strata.cli.output import emit, output_option, rows
from strata.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from strata.host.threads.classify import Classified
    from strata.host.threads.snapshot import Snapshot

WATCH_S: Final = 2.0
"""Thread pools are up within seconds of a job's start; reading 100 threads takes milliseconds of CPU."""


@click.command()
@click.option("--pid", type=click.IntRange(1), help="Only this process and those that descend from it.")
@click.option("--watch", is_flag=True, help="Go on; tell of threads that are new, changed or gone.")
@output_option
def threads(pid: int | None, watch: bool, output: str) -> None:
    """Say which live threads belong to which pool of a training job and to which layer, and why.

    Looks at open accelerator files, the processes NVML names, names, cgroups, leadership and behaviour. A thread
    that calls `strata.host.label("train")` says so itself. With --watch JSON is one object a line.

    \b
    strata host threads
    strata host threads --pid 4035 --watch
    """
    snapshot, found = _look(pid)
    if pid is not None and not found:
        raise UsageError(f"there is no process {pid}", hint="strata host threads")
    if not watch:
        emit(_data(snapshot, found), output, lambda console: _show(console, snapshot, found))
        return
    _watch(found, pid, output)


def _look(pid: int | None) -> tuple[Snapshot, tuple[Classified, ...]]:
    from strata.host.threads.classify import classify
    from strata.host.threads.job import only
    from strata.host.threads.observe import observe

    snapshot = observe()
    found = classify(snapshot)
    if pid is None:
        return snapshot, found
    mine = snapshot.tree(pid)
    return snapshot, tuple(one for one in only(found, snapshot, pid) if one.thread.pid in mine)


def _watch(found: tuple[Classified, ...], pid: int | None, output: str) -> None:
    from strata.host.threads.classify import changes

    for one in found:
        _tell("born", None, one, output)
    while True:
        time.sleep(WATCH_S)
        _, now = _look(pid)
        for what, before, after in changes(found, now):
            _tell(what, before, after, output)
        found = now


def _tell(what: str, before: Classified | None, after: Classified | None, output: str) -> None:
    one = after or before
    assert one is not None
    if output == "table":
        was = f" (was {before.pool or before.layer})" if before is not None and after is not None else ""
        why = f": {one.evidence[0]}" if after is not None else ""
        line = f"{what} {one.thread.tid} {one.thread.name}: {one.pool or 'no pool'}, {one.layer}{was}{why}"
        stdout().print(line, soft_wrap=True)
        return
    data = {"change": what, "was": before.pool if before is not None else None, "thread": _thread(one)}
    if output == "json":
        click.echo(json.dumps(data, ensure_ascii=False))
    else:
        import yaml

        click.echo("---\n" + yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def _data(snapshot: Snapshot, found: tuple[Classified, ...]) -> dict[str, Any]:
    from strata.host.threads.pools import LAYERS, POOLS

    pools, layers = Counter(one.pool for one in found), Counter(one.layer for one in found)
    return {
        "threads": [_thread(one) for one in found],
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


def _thread(one: Classified) -> dict[str, Any]:
    thread = one.thread
    length_s = thread.run_length_s
    return {
        "tid": thread.tid,
        "pid": thread.pid,
        "name": thread.name,
        "process": thread.process,
        "cgroup": thread.cgroup,
        "pool": one.pool,
        "layer": one.layer,
        "confidence": one.confidence,
        "evidence": list(one.evidence),
        "gpus": list(one.gpus),
        "numa_node": one.node,
        "nice": thread.nice,
        "wakeups_per_s": round(thread.wakeups_per_s, 3),
        "run_length_us": round(1e6 * length_s, 3) if length_s is not None else None,
        "busy": round(thread.busy, 4),
        "wait_ms": round(1e3 * thread.wait_s, 3) if thread.wait_s is not None else None,
    }


def _why(one: Classified) -> str:
    evidence = one.evidence[0]
    # The name stands beside it.
    return f"{one.confidence:.0%}: {'its name' if evidence.startswith('its name is ') else evidence}"


def _show(console: Console, snapshot: Snapshot, found: tuple[Classified, ...]) -> None:
    from strata.host.threads.names import stem
    from strata.host.threads.pools import LAYERS

    alike: dict[tuple[str, int, str, str, str], list[Classified]] = {}
    for one in found:
        key = (one.layer, one.thread.pid, one.thread.process, stem(one.thread.name), one.pool or "-")
        alike.setdefault(key, []).append(one)
    order: list[str] = list(LAYERS)
    # The rest is most of a machine, and says nothing of the job.
    shown = sorted(
        ((key, some) for key, some in alike.items() if key[0] != "rest" or key[4] != "-"),
        key=lambda item: (order.index(item[0][0]), item[0][1:]),
    )
    if shown:
        console.print(
            rows(
                ("layer", "pool", "pid", "thread", "count", "sure: why"),
                (
                    (layer, pool, str(pid), name, str(len(some)), _why(some[0]))
                    for (layer, pid, _, name, pool), some in shown
                ),
                right=(2, 4),
            )
        )
    left = sum(len(some) for key, some in alike.items() if key[0] == "rest" and key[4] == "-")
    console.print(f"{left} of {len(found)} threads belong to no pool and no job on an accelerator.")
    for gpu in snapshot.gpus:
        where = f"NUMA node {gpu.node}" if gpu.node is not None else "NUMA node not known"
        count = f"processes {', '.join(map(str, sorted(gpu.pids)))}" if gpu.pids else "no processes"
        console.print(f"GPU {gpu.index} {gpu.address}: {where}, {count}", soft_wrap=True)
    if snapshot.num_hidden:
        text = f"The files of {snapshot.num_hidden} processes of other users are hidden; root sees them."
        console.print(text, soft_wrap=True)
