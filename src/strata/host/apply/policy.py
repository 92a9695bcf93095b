"""Steps from the file that `strata host layers --plain -o json` writes: only what such steps may touch.

The file is a list of things that root will write, so nothing is taken on trust: an act touches only files that a
policy has business with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from strata.errors import BadFile, Fault, UsageError
from strata.files import Document, read_document
from strata.host.policy.step import Act, Step
from strata.host.threads.pools import LAYERS

_LIST: Final = r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*"
"""CPUs or NUMA nodes as the kernel writes them, none of them beyond all sense."""
_IN_CGROUP: Final = r"/sys/fs/cgroup(/[^/\0]+)*/"
PLACES: Final[Mapping[Act, re.Pattern[str]]] = {
    "nice": re.compile(r"/proc/\d{1,10}/task/\d{1,10}"),
    "affinity": re.compile(r"/proc/\d{1,10}/task/\d{1,10}"),
    "scheduler": re.compile(r"/proc/\d{1,10}/task/\d{1,10}"),
    "migrate": re.compile(r"/proc/\d{1,10}"),
    "mkdir": re.compile(rf"({_IN_CGROUP}|/sys/fs/resctrl/)strata-[a-z]+"),
    "attach": re.compile(rf"{_IN_CGROUP}strata-[a-z]+/cgroup\.threads|/sys/fs/resctrl/strata-[a-z]+/tasks"),
    "write": re.compile(
        rf"{_IN_CGROUP}(cpu\.weight|cpu\.idle|cpuset\.cpus|cpuset\.mems|cgroup\.subtree_control)"
        rf"|{_IN_CGROUP}strata-[a-z]+/cgroup\.type"
        r"|/sys/fs/resctrl/strata-[a-z]+/schemata"
        r"|/proc/irq/\d{1,10}/smp_affinity_list"
        r"|/sys/devices/system/cpu/cpu\d{1,5}/cpufreq/scaling_min_freq"
    ),
}
"""What each act may touch."""
VALUES: Final[Mapping[str, re.Pattern[str]]] = {
    "nice": re.compile(r"-?(1?\d|20)"),
    "affinity": re.compile(_LIST),
    # No real-time priority from a file: a thread that never sleeps would keep its CPU.
    "scheduler": re.compile(r"(OTHER|BATCH|IDLE) 0"),
    "migrate": re.compile(r"\d{1,4}"),
    "mkdir": re.compile(""),
    "attach": re.compile(r"[1-9]\d{0,9}"),
    "cpu.weight": re.compile(r"\d{1,5}"),
    "cpu.idle": re.compile("[01]"),
    "cpuset.cpus": re.compile(rf"({_LIST})?"),
    "cpuset.mems": re.compile(rf"({_LIST})?"),
    "cgroup.subtree_control": re.compile(r"\+(cpu|cpuset)( \+(cpu|cpuset))?"),
    "cgroup.type": re.compile("threaded"),
    "schemata": re.compile(r"MB:\d{1,4}=\d{1,3}(;\d{1,4}=\d{1,3})*"),
    "smp_affinity_list": re.compile(_LIST),
    "scaling_min_freq": re.compile(r"\d{1,10}"),
}
"""What may be written, by act or by the name of the file."""


def load(path: str) -> tuple[Step, ...]:
    """Read the steps of a file. Raises BadFile with every fault; UsageError for a policy of scx_layered."""
    document = read_document(path)
    data = document.data
    if isinstance(data, list) and any(isinstance(entry, dict) and "matches" in entry for entry in data):
        raise UsageError(f"{path}: a policy of scx_layered", hint=f"strata host run-layered {path}")
    listed = data.get("steps") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise BadFile(
            [document.fault((), "should hold a list `steps`")],
            hint="strata host layers --plain -o json > policy.json",
        )
    faults = [fault for index, entry in enumerate(listed) for fault in _faults(document, index, entry)]
    if faults:
        raise BadFile(faults)
    return tuple(
        Step(
            entry["act"], entry["path"], entry["value"], entry["why"], entry["layer"], entry.get("start_ticks", 0)
        )
        for entry in listed
    )


def _faults(document: Document, index: int, entry: Any) -> list[Fault]:
    where = ("steps", index)
    if not isinstance(entry, dict):
        return [document.fault(where, "should be a mapping with act, path, value, why and layer")]
    wanted = ("act", "path", "value", "why", "layer")
    faults = [
        document.fault((*where, key), f"{key} should be text")
        for key in wanted
        if not isinstance(entry.get(key), str)
    ]
    ticks = entry.get("start_ticks", 0)
    if not isinstance(ticks, int) or isinstance(ticks, bool) or ticks < 0:
        faults.append(document.fault((*where, "start_ticks"), "start_ticks should be a number of clock ticks"))
    faults += [
        document.fault((*where, str(key)), "unknown key") for key in entry if key not in (*wanted, "start_ticks")
    ]
    if faults:
        return faults
    act, path, value = entry["act"], entry["path"], entry["value"]
    if act not in get_args(Act):
        return [document.fault((*where, "act"), f"{act!r} should be one of {', '.join(get_args(Act))}")]
    if entry["layer"] not in LAYERS:
        faults.append(document.fault((*where, "layer"), f"should be one of {', '.join(LAYERS)}"))
    if not PLACES[act].fullmatch(path) or "/../" in path or "/./" in path:
        return [*faults, document.fault((*where, "path"), f"{path!r} is nothing that {act} may touch")]
    name = path.rpartition("/")[2] if act == "write" else act
    if not VALUES[name].fullmatch(value):
        faults.append(document.fault((*where, "value"), f"{value!r} is nothing to write there"))
    return faults
