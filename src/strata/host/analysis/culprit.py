"""Who had the CPU: a name, and the process where one is known, so that two programs called `python` are two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from strata.host.threads.pools import stem


class Culprit(str):
    """A name to show, `python (4711)`; `comm` is the thread's own name, `pid` its process (None: not known)."""

    __slots__ = ("comm", "pid")
    comm: str
    pid: int | None

    def __new__(cls, comm: str, pid: int | None = None) -> Self:
        """Return the culprit of a thread's name and its process."""
        self = super().__new__(cls, comm if pid is None else f"{comm} ({pid})")
        self.comm, self.pid = comm, pid
        return self

    @property
    def pool(self) -> Culprit:
        """Return what the threads of like names in its process share."""
        return Culprit(stem(self.comm), self.pid)


def as_culprit(label: str) -> Culprit:
    """Return a label as a culprit: a plain name is one of no known process."""
    return label if isinstance(label, Culprit) else Culprit(label)


def by_name(culprits: Mapping[str, float]) -> dict[str, list[tuple[int | None, float]]]:
    """Return the processes of each name, with what each of them had."""
    names: dict[str, list[tuple[int | None, float]]] = {}
    for label, held in culprits.items():
        culprit = as_culprit(label)
        names.setdefault(culprit.comm, []).append((culprit.pid, held))
    return names
