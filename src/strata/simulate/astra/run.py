"""One run of an ASTRA-sim binary: a private folder, a time limit, its process group killed, its answer read.

ASTRA-sim's failures are silent: a deadlock or an unmatched receive ends with exit code 0 and a line missing. A
run counts only where every rank said that it finished. Builds differ, and a wrong one answers as readily as a
right one, so a binary is first asked one case whose answer is known (`self_check`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import MissingPart, StrataError, UsageError
from strata.files import write_json, write_text
from strata.simulate.astra.chakra import ChakraCollective, Node, NodeType
from strata.simulate.astra.discover import AstraBackend, cache_file, is_checked, remembered, stamp
from strata.simulate.astra.files import AstraDimension, Scenario, encode_traces, write_traces
from strata.simulate.astra.ns3 import Ns3Network, known_case

TAIL_LINES: Final = 8

# 2.0 printed no exposed part.
_FINISHED: Final = re.compile(
    r"sys\[(\d+)\] finished, (\d+) cycles(?:, exposed communication (\d+) cycles)?", re.ASCII
)


CHECK_TIME_LIMIT_S: Final = 20.0
CHECK_NS: Final = 9_197_541
"""Ring all-reduce of 256 MiB between 8 ranks on a Ring of 50 "GB/s" and 500 ns: both analytical backends."""
NS3_CHECK_NS: Final = 61_740_000
"""1 MiB between two ranks over a switch, both links 5 Gbps and 15 ms, with the acknowledgement's way back."""
NS3_TOLERANCE: Final = 0.02  # headers and congestion control differ between builds
_REBUILD: Final = "an unmodified build of ASTRA-sim 2.x"


@dataclass(frozen=True, slots=True)
class AstraAnswer:
    """What a binary answered: when each rank finished and how long it only communicated [ns], None if not said."""

    finish_ns: tuple[int, ...]
    exposed_ns: tuple[int | None, ...]
    wall_s: float
    log: str


def run(
    binary: Path, scenario: Scenario | Ns3Network, *, time_limit_s: float, keep: Path | None = None
) -> AstraAnswer:
    """Run `binary` in a folder of its own that holds the files and traces of a scenario; return what it said.

    The folder is removed whatever happens; `keep` names one that stays, with the binary's output in stdout.log.
    Raises StrataError where the binary hangs, stops with an error or leaves a rank unfinished, MissingPart where
    it does not start, UsageError where the folder cannot be written.
    """
    with _folder(keep) as folder:
        for name, text in scenario.files().items():
            write_text(folder / name, text)
        write_traces(folder, encode_traces(scenario.traces))
        started = time.monotonic()
        code, log = _execute([str(binary.absolute()), *scenario.arguments()], folder, time_limit_s)
        wall_s = time.monotonic() - started
    if code is None:
        raise StrataError(
            f"{binary.name} did not end within {time_limit_s:g} s and was stopped{_tail(log)}",
            hint="a longer time limit, or fewer microbatches: a trace is as long as the step",
        )
    if code != 0:
        raise StrataError(f"{binary.name} failed: {_exit(code)}{_tail(log)}")
    finish, exposed = parse(log, scenario.num_ranks, name=binary.name)
    return AstraAnswer(finish, exposed, wall_s, log)


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


def self_check(binary: Path, backend: AstraBackend, environment: Mapping[str, str]) -> None:
    """Run the known case once a binary; what passed is remembered under XDG_CACHE_HOME.

    Raises StrataError where the binary hangs, fails or answers wrong: then none of its answers would count;
    MissingPart where it does not start.
    """
    if is_checked(binary, environment):
        return
    scenario, expected, tolerance = _known_case(backend)
    try:
        answer = run(binary, scenario, time_limit_s=CHECK_TIME_LIMIT_S)
    except (MissingPart, UsageError):
        raise  # it does not start, or there is nowhere to run it
    except StrataError as error:
        raise StrataError(f"{binary} does not pass the self-check: {error}", hint=_REBUILD) from None
    answer_ns = max(answer.finish_ns)
    if abs(answer_ns - expected) > tolerance * expected:
        raise StrataError(
            f"{binary} does not pass the self-check: a known case takes {expected} ns, and it says {answer_ns} ns",
            hint=_REBUILD,
        )
    cache = cache_file(environment)
    with suppress(UsageError):  # a home that cannot be written only costs the next check
        write_json(cache, {**remembered(cache), str(binary): stamp(binary)})


def _known_case(backend: AstraBackend) -> tuple[Scenario | Ns3Network, int, float]:
    """Return a scenario, when it finishes [ns], and by which share an answer may be off."""
    if backend is AstraBackend.NS3:
        return known_case(), NS3_CHECK_NS, NS3_TOLERANCE
    node = Node(
        0, NodeType.COMM_COLL, "all-reduce",
        attrs={"comm_type": int(ChakraCollective.ALL_REDUCE), "comm_size": 2**28, "involved_dim": (True,)},
    )  # fmt: skip
    ring = AstraDimension(8, 50 * 2.0**30, 500e-9, "Ring")
    return Scenario((ring,), ((node,),) * 8), CHECK_NS, 0.0
