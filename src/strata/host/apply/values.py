"""What a kernel file holds, compared as the kernel means it, and what brings an earlier content back.

References
----------
Linux Documentation: admin-guide/cgroup-v2.rst, filesystems/resctrl.rst (schemata).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from strata.fleet.local import cpu_list
from strata.host.policy.step import Step

_LISTS: Final = ("affinity", "cpuset.cpus", "cpuset.mems", "smp_affinity_list")


def subject(step: Step) -> str:
    """Return what a step changes: the name of a file it writes, else its act."""
    return step.path.rpartition("/")[2] if step.act == "write" else step.act


def holds(name: str, wanted: str, current: str) -> bool:
    """Return whether the subject `name`, which says `current`, says what writing `wanted` to it would."""
    if name == "cgroup.subtree_control":
        return _added(wanted) <= set(current.split())
    if name == "schemata":
        caps = _caps(current)
        return all(caps.get(domain) == percent for domain, percent in _caps(wanted).items())
    if name in _LISTS:
        return set(cpu_list(wanted)) == set(cpu_list(current)) and bool(wanted.strip()) == bool(current.strip())
    return current.strip() == wanted.strip()


def is_done(step: Step, current: str) -> bool:
    """Return whether what a step changes, which says `current`, is as the step wants it."""
    if step.act == "mkdir":
        return current == "there"
    if step.act == "attach":
        return current == step.path
    # Where pages are is not asked: moving those that are there already costs nothing.
    return step.act != "migrate" and holds(subject(step), step.value, current)


def undoing(name: str, wanted: str, before: str) -> str | None:
    """Return what to write to have `before` back after `wanted` was written; None where nothing need be."""
    if name == "cgroup.subtree_control":
        return " ".join(f"-{controller}" for controller in sorted(_added(wanted) - set(before.split()))) or None
    if name == "cgroup.type":
        return None  # it goes with its folder
    if name == "schemata":
        caps = {domain: percent for domain, percent in _caps(before).items() if domain in _caps(wanted)}
        return "MB:" + ";".join(f"{domain}={percent}" for domain, percent in caps.items()) if caps else None
    return before.strip() or "\n"  # an empty list is written as an empty line


def beside(path: str) -> tuple[str, ...]:
    """Return other files that writing to `path` changes: the kernel forgets the weight of what becomes idle."""
    folder, _, name = path.rpartition("/")
    return (f"{folder}/cpu.weight",) if name == "cpu.idle" else ()


FORGOTTEN: Final = "100"
"""The weight that the kernel gives a cgroup which is idle no more."""


def _added(words: str) -> set[str]:
    return {word[1:] for word in words.split() if word.startswith("+")}


def _caps(schemata: str) -> Mapping[str, str]:
    """Return the bandwidth cap of each domain: of `MB:0= 50;1=100`."""
    line = next((line for line in schemata.splitlines() if line.strip().startswith("MB:")), "")
    return dict(re.findall(r"(\d+)=\s*(\d+)", line))
