"""Which ASTRA-sim binaries the user has, and whether they answer a case whose answer is known.

strata never builds or ships one. A binary is trusted once it has given the known answer; that is remembered
until the file changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from strata.errors import MissingPart, StrataError, UsageError
from strata.files import read_document, write_json
from strata.simulate.astra import ns3
from strata.simulate.astra.chakra import Collective, Node, NodeType
from strata.simulate.astra.files import Dimension, Scenario, options, scenario_files
from strata.simulate.astra.run import Run, run


class Backend(StrEnum):
    """The network models of ASTRA-sim."""

    AWARE = "aware"
    UNAWARE = "unaware"
    NS3 = "ns3"


NAMES: Final = {
    Backend.UNAWARE: "AstraSim_Analytical_Congestion_Unaware",
    Backend.AWARE: "AstraSim_Analytical_Congestion_Aware",
}
VARIABLES: Final = {
    Backend.UNAWARE: "STRATA_ASTRA_SIM",
    Backend.AWARE: "STRATA_ASTRA_SIM",
    Backend.NS3: "STRATA_ASTRA_SIM_NS3",
}

CHECK_TIME_LIMIT_S: Final = 20.0
CHECK_NS: Final = 9_197_541
"""Ring all-reduce of 256 MiB between 8 ranks on a Ring of 50 "GB/s" and 500 ns: both analytical backends."""
NS3_CHECK_NS: Final = 61_740_000
"""1 MiB between two ranks over a switch, both links 5 Gbps and 15 ms, with the acknowledgement's way back."""
NS3_TOLERANCE: Final = 0.02  # headers and congestion control differ between builds


@dataclass(frozen=True, slots=True)
class Binaries:
    """The binaries found; None where there is none."""

    aware: Path | None = None
    unaware: Path | None = None
    ns3: Path | None = None

    def of(self, backend: Backend) -> Path:
        """Return the binary of a backend. Raises MissingPart where there is none."""
        found: Path | None = getattr(self, backend.value)
        if found is None:
            raise MissingPart(
                f"no ASTRA-sim binary of the {backend} backend was found",
                hint=f"build it, and put it on PATH or its path in {VARIABLES[backend]}"
                if backend is not Backend.NS3
                else f"its path in {VARIABLES[backend]}",
            )
        return found


def find(environment: Mapping[str, str]) -> Binaries:
    """Return the binaries named by STRATA_ASTRA_SIM (a binary, or a folder of them), STRATA_ASTRA_SIM_NS3 or PATH.

    Only looks. Raises MissingPart where a variable names something that cannot be run.
    """
    found: dict[str, Path] = {}
    if named := environment.get("STRATA_ASTRA_SIM"):
        place = Path(named).expanduser()
        if place.is_dir():
            for backend, name in NAMES.items():
                if binary := shutil.which(name, path=str(place)):
                    found[backend.value] = Path(binary)
            if not found:
                names = " or ".join(NAMES.values())
                raise MissingPart(f"STRATA_ASTRA_SIM={named}: this folder holds no {names} that can be run")
        else:
            found[_kind(place).value] = _executable("STRATA_ASTRA_SIM", place)
    for backend, name in NAMES.items():
        # An empty entry of PATH would be the folder one happens to stand in.
        path = os.pathsep.join(filter(None, environment.get("PATH", "").split(os.pathsep)))
        if backend.value not in found and path and (binary := shutil.which(name, path=path)):
            found[backend.value] = Path(binary)
    if named := environment.get("STRATA_ASTRA_SIM_NS3"):
        found["ns3"] = _executable("STRATA_ASTRA_SIM_NS3", Path(named).expanduser())
    return Binaries(**found)


def _kind(binary: Path) -> Backend:
    name = binary.name.lower()
    if "aware" not in name:
        raise UsageError(
            f"STRATA_ASTRA_SIM={binary}: its name does not say whether it is the aware or the unaware backend",
            hint="a folder that holds AstraSim_Analytical_Congestion_Unaware and ..._Aware",
        )
    return Backend.UNAWARE if "unaware" in name else Backend.AWARE


def _executable(variable: str, path: Path) -> Path:
    if not path.is_file():
        raise MissingPart(f"{variable}={path}: no such file")
    if not os.access(path, os.X_OK):
        raise MissingPart(f"{variable}={path}: is not a program that may be run", hint=f"chmod +x {path}")
    return path


def is_checked(binary: Path, environment: Mapping[str, str]) -> bool:
    """Whether this very file has answered the known case right before."""
    return _remembered(_cache(environment)).get(str(binary)) == _stamp(binary)


def self_check(binary: Path, backend: Backend, environment: Mapping[str, str]) -> None:
    """Run the known case once a binary; what passed is remembered under XDG_CACHE_HOME.

    Raises StrataError where the binary hangs, fails or answers wrong: then none of its answers would count.
    """
    if is_checked(binary, environment):
        return
    try:
        answer, expected, tolerance = _known_case(binary, backend)
    except StrataError as error:
        raise StrataError(f"{binary} does not pass the self-check: {error}", hint=_REBUILD) from None
    found = max(answer.finish_ns)
    if abs(found - expected) > tolerance * expected:
        raise StrataError(
            f"{binary} does not pass the self-check: a known case takes {expected} ns, and it says {found} ns",
            hint=_REBUILD,
        )
    cache = _cache(environment)
    with suppress(UsageError):  # a home that cannot be written only costs the next check
        write_json(cache, {**_remembered(cache), str(binary): _stamp(binary)})


_REBUILD: Final = "an unmodified build of ASTRA-sim 2.x"


def _known_case(binary: Path, backend: Backend) -> tuple[Run, int, float]:
    if backend is Backend.NS3:
        scenario, expected, tolerance = ns3.known_case(), NS3_CHECK_NS, NS3_TOLERANCE
        return ns3.run_network(binary, scenario, time_limit_s=CHECK_TIME_LIMIT_S), expected, tolerance
    node = Node(
        0, NodeType.COMM_COLL, "all-reduce",
        attrs={"comm_type": int(Collective.ALL_REDUCE), "comm_size": 2**28, "involved_dim": (True,)},
    )  # fmt: skip
    ring = Scenario((Dimension(8, 50 * 2.0**30, 500e-9, "Ring"),), ((node,),) * 8)
    answer = run(
        binary, arguments=options(has_groups=False), files=scenario_files(ring), traces=ring.traces,
        time_limit_s=CHECK_TIME_LIMIT_S,
    )  # fmt: skip
    return answer, CHECK_NS, 0.0


def _cache(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
    return Path(home) / "strata" / "astra-sim.json"


def _remembered(cache: Path) -> dict[str, Any]:
    with suppress(UsageError):
        data = read_document(cache).data
        return data if isinstance(data, dict) else {}
    return {}


def _stamp(binary: Path) -> list[int]:
    try:
        status = binary.stat()
    except OSError as error:
        raise MissingPart(f"{binary}: {error.strerror}") from None
    return [status.st_mtime_ns, status.st_size]
