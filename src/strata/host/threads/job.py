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
        return replace(thread, pool="kernel-launch", layer="critical", confidence=TOLD, evidence=(why,))
    if thread.layer == "rest":
        return replace(thread, layer="pipeline", evidence=(*thread.evidence, "it belongs to the job"))
    return thread


def _outside(thread: Classified, pid: int) -> Classified:
    why = f"it does not descend from process {pid}"
    return replace(thread, pool=None, layer="rest", confidence=0.0, evidence=(why,))
