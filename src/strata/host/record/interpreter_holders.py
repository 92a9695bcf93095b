"""Who had Python's interpreter meanwhile, and in which function: by py-spy, where it is installed.

`sleep_sampler` tells that a thread sleeps for the interpreter's lock; for whom, only the interpreter knows.

References
----------
py-spy 0.4 (MIT): `record --gil --nonblocking --format raw`: a stack and how often it was found, a line.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from strata.host.threads.interpreter import interpreters_of

MOST_PROCESSES: Final = 8
"""Each has a py-spy of its own."""
RATE: Final = 50
"""Looks a second, as the sampler of sleeps has."""
PATIENCE_S: Final = 20
LONGEST: Final = 120
"""Characters of a place: a program names its functions and files as it likes."""
_STACK: Final = re.compile(r"^thread \((\d+)\)(?:: |;)(?:.*;)?([^;]+) (\d+)$")


def find() -> str | None:
    """Return where py-spy is, also beside our own Python, which sudo leaves out; None for nowhere."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


class InterpreterHolders:
    """`follow` some processes; `stop` at the end, then `counts` has how often each thread held it where."""

    def __init__(self, program: str | None, folder: Path, root: Path) -> None:
        self._program, self._folder, self._root = program, folder, root
        self._spies: dict[int, subprocess.Popen[bytes]] = {}
        self.counts: dict[int, Counter[str]] = {}
        self.failures: list[str] = []

    def follow(self, pids: Iterable[int]) -> None:
        """Look at these processes from now on, too, as far as they have an interpreter."""
        for pid in pids:
            if self._program is None or len(self._spies) == MOST_PROCESSES or pid in self._spies:
                continue
            if interpreters_of(pid, self._root):
                self._spies[pid] = self._spy(self._program, pid)

    def stop(self) -> None:
        """End all looks, and read what they found."""
        for spy in self._spies.values():
            spy.send_signal(signal.SIGINT)
        for pid, spy in self._spies.items():
            try:
                _, errors = spy.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                spy.kill()
                _, errors = spy.communicate()
            out = self._folder / str(pid)
            if spy.returncode == 0 and out.exists():
                self.counts |= holders_in(out.read_text(encoding="utf-8", errors="replace"))
            elif spy.returncode != -signal.SIGINT:  # had it just started, there was nothing to see yet
                why = errors.decode(errors="replace").strip().partition("\n")[0]
                self.failures.append(f"py-spy did not see who holds the interpreter of process {pid}: {why}")
        self._spies.clear()

    def to_list(self) -> list[dict[str, Any]]:
        """Return what was counted, as JSON."""
        return [{"tid": tid, "places": dict(places)} for tid, places in self.counts.items()]

    def _spy(self, program: str, pid: int) -> subprocess.Popen[bytes]:
        shown = ("--format", "raw", "--threads", "--function", "--rate", str(RATE))
        out = str(self._folder / str(pid))
        return subprocess.Popen(
            [program, "record", "--gil", "--nonblocking", *shown, "-o", out, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


def holders_in(text: str) -> dict[int, Counter[str]]:
    """Read what py-spy wrote: how often each thread held the interpreter, by function."""
    counts: dict[int, Counter[str]] = {}
    for line in text.splitlines():
        if match := _STACK.match(line):
            place = "".join(letter if letter.isprintable() else "?" for letter in match[2])[:LONGEST]
            counts.setdefault(int(match[1]), Counter())[place] += int(match[3])
    return counts


def holding_of(data: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Read who held the interpreter, by thread. Raises KeyError, TypeError, ValueError."""
    places = {int(thread["tid"]): thread["places"] for thread in data}
    return {tid: {str(place): int(count) for place, count in each.items()} for tid, each in places.items()}


@contextmanager
def interpreter_holders(root: Path = Path("/")) -> Iterator[InterpreterHolders]:
    """Yield what asks py-spy, or nobody where it is not installed; no py-spy is left behind."""
    with tempfile.TemporaryDirectory(prefix="strata-") as folder:
        holders = InterpreterHolders(find(), Path(folder), root)
        try:
            yield holders
        finally:
            holders.stop()
