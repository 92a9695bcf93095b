"""Which ASTRA-sim binaries the user has, and which of them have answered the known case right.

strata never builds or ships one. Loads nothing heavy: `strata check` asks it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from strata.errors import MissingPart, UsageError


class AstraBackend(StrEnum):
    """The network models of ASTRA-sim."""

    AWARE = "aware"
    UNAWARE = "unaware"
    NS3 = "ns3"


NAMES: Final = {
    AstraBackend.UNAWARE: "AstraSim_Analytical_Congestion_Unaware",
    AstraBackend.AWARE: "AstraSim_Analytical_Congestion_Aware",
}
VARIABLES: Final = {
    AstraBackend.UNAWARE: "STRATA_ASTRA_SIM",
    AstraBackend.AWARE: "STRATA_ASTRA_SIM",
    AstraBackend.NS3: "STRATA_NS3",
}
NS3_PATTERN: Final = "ns3*-AstraSimNetwork-*"
"""Of a build, which has ns-3's version and its own profile in its name: ns3.42-AstraSimNetwork-default."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The binaries found; None where there is none."""

    aware: Path | None = None
    unaware: Path | None = None
    ns3: Path | None = None

    def of(self, backend: AstraBackend) -> Path:
        """Return the binary of a backend. Raises MissingPart where there is none."""
        binary: Path | None = getattr(self, backend.value)
        if binary is None:
            raise MissingPart(
                f"no ASTRA-sim binary of the {backend} backend was found",
                hint=f"build it, and put its path in {VARIABLES[backend]}",
            )
        return binary


def find(environment: Mapping[str, str]) -> Binaries:
    """Return the binaries named by STRATA_ASTRA_SIM and STRATA_NS3 (a binary, or a folder of them) or on PATH.

    Only looks. Raises MissingPart where a variable names something that cannot be run.
    """
    binaries: dict[str, Path] = {}
    if named := environment.get("STRATA_ASTRA_SIM"):
        place = Path(named).expanduser()
        if place.is_dir():
            for backend, name in NAMES.items():
                if binary := shutil.which(name, path=str(place)):
                    binaries[backend.value] = Path(binary)
            if not binaries:
                names = " or ".join(NAMES.values())
                raise MissingPart(f"STRATA_ASTRA_SIM={named}: no executable {names} in this folder")
        else:
            binaries[_kind(place).value] = _executable("STRATA_ASTRA_SIM", place)
    # An empty entry of PATH would be the folder one happens to stand in.
    folders = [entry for entry in environment.get("PATH", "").split(os.pathsep) if entry]
    for backend, name in NAMES.items():
        known = backend.value in binaries or not folders
        if not known and (binary := shutil.which(name, path=os.pathsep.join(folders))):
            binaries[backend.value] = Path(binary)
    if ns3 := _ns3(environment.get("STRATA_NS3"), folders):
        binaries["ns3"] = ns3
    return Binaries(**{kind: binary.absolute() for kind, binary in binaries.items()})


def _ns3(named: str | None, folders: Sequence[str]) -> Path | None:
    if named and not (place := Path(named).expanduser()).is_dir():
        return _executable("STRATA_NS3", place)
    for folder in [named] if named else folders:
        for binary in sorted(Path(folder).expanduser().glob(NS3_PATTERN)):
            if binary.is_file() and os.access(binary, os.X_OK):
                return binary
    if named:
        raise MissingPart(f"STRATA_NS3={named}: no executable {NS3_PATTERN} in this folder")
    return None


def _kind(binary: Path) -> AstraBackend:
    name = binary.name.lower()
    if "aware" not in name:
        raise UsageError(
            f"STRATA_ASTRA_SIM={binary}: its name does not say whether it is the aware or the unaware backend",
            hint="a folder that holds AstraSim_Analytical_Congestion_Unaware and ..._Aware",
        )
    return AstraBackend.UNAWARE if "unaware" in name else AstraBackend.AWARE


def _executable(variable: str, path: Path) -> Path:
    if not path.is_file():
        raise MissingPart(f"{variable}={path}: no such file")
    if not os.access(path, os.X_OK):
        raise MissingPart(f"{variable}={path}: is not executable", hint=f"chmod +x {path}")
    return path


def is_checked(binary: Path, environment: Mapping[str, str]) -> bool:
    """Whether this very file has answered the known case right before."""
    return remembered(cache_file(environment)).get(str(binary)) == stamp(binary)


def cache_file(environment: Mapping[str, str]) -> Path:
    """Return where passed self-checks are remembered."""
    # The XDG specification has relative paths ignored.
    home = Path(environment.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "strata" / "astra-sim.json"


def remembered(cache: Path) -> dict[str, Any]:
    """Return the stamp of each binary that has passed; empty where the file is absent or strange."""
    with suppress(OSError, ValueError):
        data = json.loads(cache.read_text(encoding="utf-8"))
        return data if isinstance(data, dict) else {}
    return {}


def stamp(binary: Path) -> list[int]:
    """Return what changes when a binary is built again."""
    try:
        status = binary.stat()
    except OSError as error:
        raise MissingPart(f"{binary}: {error.strerror}") from None
    return [status.st_mtime_ns, status.st_size]
