"""Looks where threads sleep while something else is recorded: how often each was found in which call.

A trace has how long a thread slept and who woke it; the call it slept in would cost two events each time. Its file
`syscall` says it to whoever looks: fifty looks a second tell shares, whatever the thread does. Who runs is not
disturbed by it. It needs the right to trace the process (root, or the same user).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from strata.host.threads.interpreter import interpreters_of
from strata.host.threads.sleep_calls import SLEEP_CALLS, SleepCall, sleep_call_of

MOST_AT_ONCE: Final = 16
"""Threads a look: each took 22 us (measured), so all of them 2 % of a CPU. Of more, each look has the next 16."""
MOST_FOLLOWED: Final = 1024


class SleepSampler:
    """`follow` some threads, then `sample` again and again."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._proc = str(root / "proc")
        self._machine = os.uname().machine
        self._threads: list[tuple[int, int]] = []
        self._next = 0
        self._interpreters: dict[int, tuple[tuple[int, int], ...]] = {}
        self.counts: dict[int, Counter[SleepCall]] = {}

    def follow(self, threads: Iterable[tuple[int, int]]) -> None:
        """Look at these threads from now on: (process, thread). What was counted stays."""
        self._threads = list(dict.fromkeys(threads))[:MOST_FOLLOWED]
        self._next = 0
        # Anew: a launcher becomes a program, and a program loads an interpreter.
        self._interpreters = {}

    def sample(self) -> None:
        """Look once."""
        for _ in range(min(MOST_AT_ONCE, len(self._threads))):
            pid, tid = self._threads[self._next % len(self._threads)]
            self._next += 1
            call = self._look(pid, tid)
            if call is not None:
                self.counts.setdefault(tid, Counter())[call] += 1

    def to_list(self) -> list[dict[str, Any]]:
        """Return what was counted, as JSON."""
        return [{"tid": tid, "counts": dict(counts)} for tid, counts in self.counts.items()]

    def _look(self, pid: int, tid: int) -> SleepCall | None:
        folder = f"{self._proc}/{pid}/task/{tid}"
        text = _read(f"{folder}/syscall")
        if not text or text.startswith("running"):
            return None
        # Stopped or traced threads are outside of a call as well.
        if text.startswith("-1") and _state(_read(f"{folder}/stat")) not in ("S", "D"):
            return None
        return sleep_call_of(
            text,
            machine=self._machine,
            interpreters=lambda: self._interpreters_of(pid),
            target=lambda descriptor: _target(f"{self._proc}/{pid}/fd/{descriptor}"),
        )

    def _interpreters_of(self, pid: int) -> tuple[tuple[int, int], ...]:
        if pid not in self._interpreters:
            self._interpreters[pid] = interpreters_of(pid, self._root)
        return self._interpreters[pid]


def sleeping_of(data: Iterable[Mapping[str, Any]]) -> dict[int, dict[SleepCall, int]]:
    """Read what a sampler counted, by thread. Raises KeyError, TypeError, ValueError."""
    return {
        int(thread["tid"]): {call: int(count) for call, count in thread["counts"].items() if call in SLEEP_CALLS}
        for thread in data
    }


def _state(stat: str) -> str:
    return stat[stat.rfind(")") + 2 :][:1]


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(512).decode("ascii", "replace")
    except OSError:  # it ended, or is not ours to look at
        return ""


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
