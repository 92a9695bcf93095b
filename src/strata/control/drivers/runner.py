"""Runs the ranks of one part, apart from the scheduler: `python -m strata.control.drivers.runner FOLDER`.

It outlives whoever started it; its ranks do not outlive it. It ends when all ranks have, soon after one failed,
or after the grace once `stop.json` is there. A second runner of the same folder does nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from strata.control.drivers.part import PartFolder
from strata.errors import UsageError

_POLL_S: Final = 0.05
_AFTER_FAILURE_S: Final = 10.0
"""What the other ranks have to notice that one is gone: enough to write why, too."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main(path: str) -> None:
    """Become a process of our own, then run the part; the caller is let go once it has begun."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.setsid()
    part = PartFolder(Path(path))
    lock = part.begin()
    os.close(writer)
    if lock is None:
        return
    with open(part.path / "log", "ab", buffering=0) as log:
        for stream in (0, 1, 2):
            os.dup2(log.fileno() if stream else os.open(os.devnull, os.O_RDONLY), stream)
        try:
            ranks = [_start(part, rank, log) for rank in part.request()["environments"]]
            codes, message = _watch(part, ranks), ""
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            codes, message = [127], f"cannot be run: {error}"
    while part.path.is_dir():  # on a full disk until there is room: who has ended well must not count as lost
        with suppress(UsageError):
            part.finish(codes, message=message)
            break
        time.sleep(_AFTER_FAILURE_S / 10)


def _start(part: PartFolder, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        part.request()["command"], env={**os.environ, **environment}, cwd=part.path, stdin=subprocess.DEVNULL,
        stdout=log, stderr=log, start_new_session=True, preexec_fn=_end_with_parent,
    )  # fmt: skip


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(part: PartFolder, ranks: list[subprocess.Popen[bytes]]) -> list[int]:
    """Return the exit codes once nothing runs any more."""
    kill_at: float | None = None
    is_stopping = False
    while any(rank.poll() is None for rank in ranks):
        now = time.monotonic()
        if not is_stopping and part.is_stopping:
            is_stopping = True
            kill_at = now + part.grace_s()
            _signal(ranks, signal.SIGTERM)
        if kill_at is None and any(rank.returncode for rank in ranks):
            kill_at = now + _AFTER_FAILURE_S
        if kill_at is not None and now >= kill_at:
            _signal(ranks, signal.SIGKILL)
        time.sleep(_POLL_S)
    codes = [rank.wait() for rank in ranks]
    _signal(ranks, signal.SIGKILL)  # what a rank left behind
    return codes


def _signal(ranks: list[subprocess.Popen[Any]], number: int) -> None:
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
