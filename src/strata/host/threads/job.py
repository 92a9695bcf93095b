"""One job among all threads of a machine: a process and what descends from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strata.host.threads.classify import Classified
from strata.host.threads.snapshot import Snapshot


def only(threads: Sequence[Classified], snapshot: Snapshot, pid: int) -> tuple[Classified, ...]:
    """Return all threads, where those of other jobs than that of process `pid` are the rest."""
    mine = snapshot.tree(pid)
    why = (f"it does not descend from process {pid}",)
    return tuple(
        one if one.thread.pid in mine else replace(one, pool=None, layer="rest", confidence=0.0, evidence=why)
        for one in threads
    )
