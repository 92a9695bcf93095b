"""What shares of a device's time programs get: the quota library's own decisions, played in virtual time.

cores.c, meter.c and share.c are compiled as they are, a copy for each tenant, against a device that gives contexts
turns of 2 ms (slicing_native/shares.c). So the figures are the same on every machine, and say nothing of how
well a real device measures.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import StrataError
from strata.slicing.build import SOURCES

PROGRAM: Final = Path(__file__).parent / "slicing_native" / "shares.c"
SPAN_S: Final = 40.0
_PARTS: Final = ("cores.c", "launches.c", "meter.c", "share.c")
_FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", f"-I{SOURCES}")


@dataclass(frozen=True, slots=True)
class PlayedShare:
    """Of one tenant of a case: the share it requested (0: no limit), and those it got in 10 s and in 40 s.

    got_10_s: in the first; least_10_s, most_10_s: of all stretches of 10 s that lie in the 40.
    longest_wait_s: of a launch call, in the library.
    """

    case: str
    requested: float
    got_10_s: float
    least_10_s: float
    most_10_s: float
    got_40_s: float
    longest_wait_s: float


def play_shares(
    command: Sequence[str], *, advance: Callable[[float, float], None] = lambda done, total: None
) -> tuple[PlayedShare, ...]:
    """Compile with `command` and play every case. advance: told the cases done, and how many there are.

    Raises StrataError where the compiler or the program fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [str(SOURCES / part) for part in _PARTS]
        _run([*command, *_FLAGS, "-fPIC", "-shared", "-o", f"{folder}/tenant-0.so", *parts])
        shutil.copy(folder / "tenant-0.so", folder / "tenant-1.so")
        program = f"{folder}/shares"
        _run([*command, *_FLAGS, "-rdynamic", "-o", program, str(PROGRAM), "-ldl"])
        total = int(_run([program, name, "0", "-1"]))
        played: list[PlayedShare] = []
        for number in range(total):
            for line in _run([program, name, str(SPAN_S), str(number)]).splitlines():
                case, *figures = line.split("\t")
                played.append(PlayedShare(case, *map(float, figures)))
            advance(number + 1, total)
    return tuple(played)


def _run(arguments: list[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", timeout=300)
    if done.returncode:
        raise StrataError(f"{Path(arguments[0]).name} ended with {done.returncode}: {done.stderr.strip()[:500]}")
    return done.stdout
