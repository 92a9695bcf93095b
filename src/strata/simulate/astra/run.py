"""One run of an ASTRA-sim binary: a private folder, a time limit, its process group killed, its answer read.

ASTRA-sim's failures are silent: a deadlock or an unmatched receive ends with exit code 0 and a line missing. A
run counts only where every rank said that it finished.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import MissingPart, StrataError, UsageError
from strata.files import write_text
from strata.simulate.astra.chakra import Node
from strata.simulate.astra.files import encode_traces, write_traces

TAIL_LINES: Final = 8

# 2.0 printed no exposed part.
_FINISHED: Final = re.compile(
    r"sys\[(\d+)\] finished, (\d+) cycles(?:, exposed communication (\d+) cycles)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a binary answered: when each rank finished and how long it only communicated [ns], None if not said."""

    finish_ns: tuple[int, ...]
    exposed_ns: tuple[int | None, ...]
    wall_s: float
    log: str


def run(
    binary: Path,
    *,
    arguments: Sequence[str],
    files: Mapping[str, str],
    traces: Sequence[Sequence[Node]],
    time_limit_s: float,
    keep: Path | None = None,
) -> Run:
    """Run `binary` in a folder of its own that holds `files` and `traces`, and return what it said.

    The folder is removed whatever happens; `keep` names one that stays, with the binary's output in stdout.log.
    Raises StrataError where the binary hangs, stops with an error or leaves a rank unfinished, MissingPart where
    it does not start, UsageError where the folder cannot be written.
    """
    with _folder(keep) as folder:
        for name, text in files.items():
            write_text(folder / name, text)
        write_traces(folder, encode_traces(traces))
        started = time.monotonic()
        code, log = _execute([str(binary.absolute()), *arguments], folder, time_limit_s)
        wall_s = time.monotonic() - started
    if code is None:
        raise StrataError(
            f"{binary.name} did not end within {time_limit_s:g} s and was stopped{_tail(log)}",
            hint="a longer time limit, or fewer microbatches: a trace is as long as the step",
        )
    if code != 0:
        raise StrataError(f"{binary.name} failed: {_exit(code)}{_tail(log)}")
    finish, exposed = parse(log, len(traces), name=binary.name)
    return Run(finish, exposed, wall_s, log)


def parse(log: str, num_ranks: int, *, name: str = "ASTRA-sim") -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Return finish and exposed communication of each rank [ns], from either form of output.

    Raises StrataError where a rank is missing: it waits forever, which ASTRA-sim does not say.
    """
    finish_of = {
        int(rank): (int(finish), int(exposed) if exposed else None)
        for rank, finish, exposed in _FINISHED.findall(log)
    }
    missing = [rank for rank in range(num_ranks) if rank not in finish_of]
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise StrataError(
            f"{name} ended without an error, but {len(missing)} of {num_ranks} ranks never finished ({some})"
            f"{_tail(log)}",
            hint="strata check, for a build that is known to answer right",
        )
    ordered = [finish_of[rank] for rank in range(num_ranks)]
    return tuple(finish for finish, _ in ordered), tuple(exposed for _, exposed in ordered)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Yield the folder of a run: `keep`, or a private one that is gone afterwards."""
    if keep is not None:
        yield keep.absolute()
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="strata-astra-"))
    except OSError as error:
        place = tempfile.gettempdir() if error.filename is None else os.path.dirname(str(error.filename))
        raise UsageError(f"{place}: cannot be written: {error.strerror}", hint="another TMPDIR") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _execute(command: list[str], folder: Path, time_limit_s: float) -> tuple[int | None, str]:
    """Return the exit code, None past the time limit, and what was printed; no process is left."""
    output = folder / "stdout.log"
    with output.open("wb") as stream:
        try:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise MissingPart(
                f"{command[0]}: does not start: {error.strerror}", hint="build it for this machine"
            ) from None
        try:
            code = process.wait(timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # The whole group: a wrapper script dies alone and leaves the simulator running.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, output.read_text(encoding="utf-8", errors="replace")


def _exit(code: int) -> str:
    number = -code if code < 0 else code - 128
    with suppress(ValueError):
        return f"{signal.Signals(number).name} (exit {code})"
    return f"exit {code}"


def _tail(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()][-TAIL_LINES:]
    return "; it printed nothing" if not lines else "; its last lines:\n  " + "\n  ".join(lines)
