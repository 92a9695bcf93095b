"""What a journal may say: it tells root what to write, so that only changes a policy makes are believed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from strata.host.apply.policy import LIST, PLACES, VALUES
from strata.host.policy.step import Step

_SCHEDULER: Final = re.compile(r"(OTHER|FIFO|RR|BATCH|IDLE|EXT) \d{1,2}")
"""Real-time policies too: a benchmark sets them, a file of steps may not."""
_BEFORE: Final[Mapping[str, re.Pattern[str]]] = {
    "nice": re.compile(r"-?\d{1,2}( reset-on-fork)?"),
    "affinity": re.compile(LIST),
    "scheduler": _SCHEDULER,
    "migrate": re.compile(""),
    "mkdir": re.compile("(there)?"),
    "attach": re.compile(r"/sys/fs/cgroup(/[^/\0]+)*/+cgroup\.threads|/sys/fs/resctrl(/[^/\0]+)?/tasks"),
    "cpu.weight": re.compile(r"\d{1,5}"),
    "cpu.idle": re.compile("[01]"),
    "cpuset.cpus": re.compile(rf"({LIST})?"),
    "cpuset.mems": re.compile(rf"({LIST})?"),
    "cgroup.subtree_control": re.compile(r"[a-z_ ]*"),
    "cgroup.type": re.compile(r"[a-z ]*"),
    "schemata": re.compile(r"[A-Za-z0-9_:;=\s]*"),
    "smp_affinity_list": re.compile(LIST),
    "scaling_min_freq": re.compile(r"\d{1,10}"),
}
"""What may have been there before, by act or by the name of the file."""


def beside(path: str) -> tuple[str, ...]:
    """Return other files that writing to `path` changes: the kernel forgets the weight of what becomes idle."""
    folder, _, name = path.rpartition("/")
    return (f"{folder}/cpu.weight",) if name == "cpu.idle" else ()


def is_believed(step: Step, before: str, others: tuple[tuple[str, str], ...]) -> bool:
    """Return whether a policy makes this change, and the kernel said such a thing before."""
    if step.act not in PLACES:
        return False
    name = step.path.rpartition("/")[2] if step.act == "write" else step.act
    value = _SCHEDULER if step.act == "scheduler" else VALUES.get(name)
    return (
        bool(PLACES[step.act].fullmatch(step.path))
        and value is not None
        and bool(value.fullmatch(step.value))
        and bool(_BEFORE[name].fullmatch(before.strip()))
        and not any({"..", "."} & set(text.split("/")) for text in (step.path, before))
        and all(path in beside(step.path) and value.strip().isdecimal() for path, value in others)
    )
