"""One job among all threads of a machine: a process and what descends from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from strata.host.threads.classify import Classified
from strata.host.threads.snapshot import Snapshot

TOLD: Final = 0.5
"""How sure the first thread of a job is critical when nothing but the user says that it is a job."""


def only(threads: Sequence[Classified], snapshot: Snapshot, pid: int) -> tuple[Classified, ...]:
    """Return all threads, where those of other jobs than that of process `pid` are the rest.

    Of the job itself no thread is the rest; without a critical thread, as on a machine without an accelerator,
    its first thread is taken for one.
    """
    mine = snapshot.tree(pid)
    has_critical = any(one.layer == "critical" for one in threads if one.thread.pid in mine)
    return tuple(
        _inside(one, leads=not has_critical and one.thread.tid == pid)
        if one.thread.pid in mine
        else _outside(one, pid)
        for one in threads
    )


def _inside(one: Classified, *, leads: bool) -> Classified:
    if leads:
        why = "it is the first thread of the job, which has no other sign of a critical one"
        return replace(one, pool="kernel-launch", layer="critical", confidence=TOLD, evidence=(why,))
    if one.layer == "rest":
        return replace(one, layer="pipeline", evidence=(*one.evidence, "it belongs to the job"))
    return one


def _outside(one: Classified, pid: int) -> Classified:
    why = f"it does not descend from process {pid}"
    return replace(one, pool=None, layer="rest", confidence=0.0, evidence=(why,))
