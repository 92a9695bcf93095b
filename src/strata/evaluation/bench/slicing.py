"""What the quota library costs: a driver that does nothing, with it and without, in turns.

The calls go the way CUDA's run time goes: dlopen, dlsym, cuGetProcAddress. A real driver's allocation takes
microseconds to milliseconds, which this leaves out: what is added to it is the same.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from strata.errors import StrataError
from strata.evaluation.bench.slicing_shares import play_shares
from strata.fleet.slices import PRELOAD, QuotaLimits, slice_environment
from strata.progress import Progress, silent
from strata.slicing.build import compiler, library
from strata.tables import Shown, rows

SOURCES: Final = Path(__file__).parent / "slicing_native"
LIMIT_BYTES: Final = 64 * 2**30
TURNS: Final = 10
PROCESSES: Final = 200
BEFORE: Final = 1000
"""Processes that have used a ledger in which calls are measured, too."""
_FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra")
# Its own functions are its own to itself, as a real driver's are.
_DRIVER: Final = ("-fPIC", "-shared", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")


@dataclass(frozen=True, slots=True)
class LibraryCost:
    """A figure without the library and with it."""

    without: float
    with_library: float


@dataclass(frozen=True, slots=True)
class SlicingCost:
    """ns an allocation and its free; ns a call the library leaves alone; ms until all processes have allocated,
    and of processor time that they took.

    alloc_free_later_ns: with the library, when many processes have used the ledger before.
    """

    alloc_free_ns: LibraryCost
    alloc_free_later_ns: float
    untouched_call_ns: LibraryCost
    startup_ms: LibraryCost
    startup_cpu_ms: LibraryCost


def measure(*, rounds: int, progress: Progress = silent) -> dict[str, Any]:
    """Time a driver's calls with the library and without, `rounds` loops a turn."""
    with progress("slicing", total=2 * TURNS) as advance:
        cost = measure_cost(turns=TURNS, rounds=rounds, processes=PROCESSES, before=BEFORE, advance=advance)
        shares = play_shares(compiler(), advance=lambda done, total: advance(TURNS * (1 + done / total)))
    alloc, untouched = cost.alloc_free_ns, cost.untouched_call_ns
    return {
        "alloc_free_ns": {
            "without": alloc.without,
            "with": alloc.with_library,
            "added": alloc.with_library - alloc.without,
            "added_later": cost.alloc_free_later_ns - alloc.without,
        },
        "untouched_call_ns": {"without": untouched.without, "with": untouched.with_library},
        "startup_ms_200": cost.startup_ms.with_library,
        "startup_ms_200_without": cost.startup_ms.without,
        "startup_cpu_ms_200": cost.startup_cpu_ms.with_library,
        "startup_cpu_ms_200_without": cost.startup_cpu_ms.without,
        "shares": [asdict(share) for share in shares],
        "trust": "measured",
    }


def measure_cost(
    *,
    turns: int,
    rounds: int,
    processes: int,
    before: int,
    environment: Mapping[str, str] = os.environ,
    advance: Callable[[float], None] = lambda done: None,
) -> SlicingCost:
    """Run the bench program `turns` times each way, in turns. A figure is the least: what else runs only adds.

    rounds: timed loops a turn. processes: started together, once a turn. before: processes that have used another
    ledger, in which calls are measured, too. advance: told the turns done.
    Raises MissingPart without a compiler, StrataError where a program fails.
    """
    # The ledger lies where that of `strata run` does.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir=shared) as ledgers:
        folder, command = Path(name), compiler(environment)
        _run([*command, *_FLAGS, *_DRIVER, "-o", f"{folder}/libcuda.so.1", f"{SOURCES}/driver.c"], environment)
        _run([*command, *_FLAGS, "-o", f"{folder}/bench", f"{SOURCES}/bench.c", "-ldl"], environment)
        own = {key: value for key, value in environment.items() if not key.startswith((PRELOAD, "STRATA_"))}
        plain = {**own, "LD_LIBRARY_PATH": name}
        where = str(library(environment))
        limits = QuotaLimits(LIMIT_BYTES, device=0)
        new, used = (
            slice_environment(limits, ledger=f"{ledgers}/{name}", library=where) for name in ("new", "used")
        )
        # In groups, as each stays until its group is there: the ledger has room for so many at once.
        for _ in range(0, before, processes):
            _run([f"{folder}/bench", "start", str(processes)], plain | used)
        calls: dict[str, list[list[float]]] = {"without": [], "with": [], "later": []}
        starts: dict[str, list[list[float]]] = {"without": [], "with": []}
        for turn in range(turns):
            for way, env in (("without", plain), ("with", plain | new), ("later", plain | used)):
                lines = _run([f"{folder}/bench", "calls", str(rounds)], env).splitlines()
                calls[way] += [[float(figure) for figure in line.split()] for line in lines]
                if way in starts:
                    starting = _run([f"{folder}/bench", "start", str(processes)], env)
                    starts[way].append([float(figure) for figure in starting.split()])
            advance(turn + 1)
    alloc_free, untouched, startup, startup_cpu = (
        LibraryCost(*(min(row[at] for row in of[way]) for way in ("without", "with")))
        for of in (calls, starts)
        for at in (0, 1)
    )
    return SlicingCost(alloc_free, min(row[0] for row in calls["later"]), untouched, startup, startup_cpu)


def _run(arguments: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        arguments, capture_output=True, text=True, errors="replace", env=dict(environment), timeout=300
    )
    if done.returncode:
        raise StrataError(f"{Path(arguments[0]).name} ended with {done.returncode}: {done.stderr.strip()[:500]}")
    return done.stdout


STARTUP_GOAL: Final = 0.2
"""Of what the processes take without the library."""
GOALS_NS: Final = {"alloc_free_ns": 60.0, "untouched_call_ns": 5.0}


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    alloc, untouched = data["alloc_free_ns"], data["untouched_call_ns"]
    costs = (
        ("allocation and free [ns]", alloc["without"], alloc["with"], f"{GOALS_NS['alloc_free_ns']:.0f}"),
        ("untouched call [ns]", untouched["without"], untouched["with"], f"{GOALS_NS['untouched_call_ns']:.0f}"),
        (f"{PROCESSES} processes started [ms]", data["startup_ms_200_without"], data["startup_ms_200"], "-"),
        (
            "  of processor time [ms]",
            data["startup_cpu_ms_200_without"],
            data["startup_cpu_ms_200"],
            f"{STARTUP_GOAL * data['startup_cpu_ms_200_without']:.0f}",
        ),
    )
    body = [
        [name, f"{without:.1f}", f"{with_:.1f}", f"{with_ - without:.1f}", f"{with_ / without:.2f}", goal]
        for name, without, with_, goal in costs
    ]
    yield rows(["", "without", "with", "added", "ratio", "added at most"], body, right=range(1, 6))
    yield f"\nadded after {BEFORE} processes have used the ledger [ns]: {alloc['added_later']:.1f}"
    yield "\nshare of a device's time, in virtual time:"
    body = [
        [
            share["case"],
            f"{100 * share['requested']:.0f}%" if share["requested"] else "-",
            *(f"{100 * share[key]:.1f}%" for key in ("got_10_s", "least_10_s", "most_10_s", "got_40_s")),
            f"{1000 * share['longest_wait_s']:.0f}",
        ]
        for share in data["shares"]
    ]
    yield rows(["", "requested", "10 s", "least", "most", "40 s", "wait [ms]"], body, right=range(1, 7))
    yield "10 s: the first; least, most: of any 10 s; wait: the longest of a launch"
