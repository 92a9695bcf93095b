"""Steps that would starve someone, found before any is taken: a pure function of steps and of who runs here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strata.decision import Reason
from strata.fleet.local import cpu_list
from strata.host.apply.machine import CGROUPS
from strata.host.machine.kernel import read_attribute
from strata.host.policy.cgroups import SYSTEM
from strata.host.policy.step import Step

LEAST_BANDWIDTH_PERCENT: Final = 10
"""What hardware can still tell from nothing (resctrl's usual min_bandwidth)."""


_NOTHING: Final = "an empty list"


@dataclass(frozen=True, slots=True)
class Residents:
    """Who could be starved. groups: the cgroups in which each user has processes."""

    cpus: frozenset[int]
    memory_nodes: frozenset[int]
    groups: Mapping[int, frozenset[str]] = field(default_factory=dict)


def refusals(steps: Sequence[Step], residents: Residents) -> tuple[Reason, ...]:
    """Return why a step would starve someone, with its path as subject; empty for steps that may be taken."""
    refused = [refusal for step in steps for refusal in _of_step(step, residents)]
    return (*refused, *_of_users(steps, residents))


def residents(root: Path = Path("/")) -> Residents:
    """Read who runs below a root with proc and sys. Users without a process in a cgroup of v2 are left out."""
    groups: dict[int, set[str]] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            user = folder.stat().st_uid
            text = (folder / "cgroup").read_text()
            has_memory = (folder / "statm").read_text().split()[:1] != ["0"]
        except OSError:  # it has ended
            continue
        if has_memory and (match := re.search(r"^0::(.*)$", text, re.MULTILINE)):
            groups.setdefault(user, set()).add(match[1])
    return Residents(
        frozenset(cpu_list(read_attribute(root / "sys/devices/system/cpu/online")) or os.sched_getaffinity(0)),
        frozenset(cpu_list(read_attribute(root / "sys/devices/system/node/has_memory")) or (0,)),
        {user: frozenset(paths) for user, paths in groups.items()},
    )


def _of_step(step: Step, residents: Residents) -> Iterator[Reason]:
    name = step.path.rpartition("/")[2]
    is_list = step.act == "affinity" or name in ("cpuset.cpus", "smp_affinity_list")
    if is_list and not residents.cpus & set(cpu_list(step.value)):
        yield Reason("no-cpu", step.path, {"asked": step.value or _NOTHING})
    if name == "cpuset.mems" and not residents.memory_nodes & set(cpu_list(step.value)):
        yield Reason("no-memory", step.path, {"asked": step.value or _NOTHING})
    if step.act == "migrate" and int(step.value) not in residents.memory_nodes:
        yield Reason("no-memory", step.path, {"asked": step.value})
    if name == "cpu.weight" and int(step.value) < 1:
        yield Reason("no-weight", step.path)
    if name == "schemata":
        least = min(int(percent) for percent in re.findall(r"=(\d+)", step.value))
        if least < LEAST_BANDWIDTH_PERCENT:
            yield Reason("no-bandwidth", step.path, {"percent": least})
    if _idles(step) and (group := _group(step)) in ("/", *SYSTEM):
        yield Reason("system-idle", step.path, {"group": group})


def _of_users(steps: Sequence[Step], residents: Residents) -> Iterator[Reason]:
    idle = {_group(step): step for step in steps if _idles(step)}
    for user, groups in sorted(residents.groups.items()):
        held = [next((path for path in idle if _is_in(group, path)), None) for group in groups]
        if held and all(path is not None for path in held):
            step = idle[next(path for path in held if path is not None)]
            yield Reason("user-idle", step.path, {"user": user})


def _idles(step: Step) -> bool:
    return step.path.endswith("/cpu.idle") and step.value == "1"


def _group(step: Step) -> str:
    return step.path.removeprefix(CGROUPS).rpartition("/")[0] or "/"


def _is_in(group: str, other: str) -> bool:
    return group == other or group.startswith(f"{other.rstrip('/')}/")
