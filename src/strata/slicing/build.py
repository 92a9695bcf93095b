"""The quota library as a file: the one the wheel brought, else compiled here once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from strata.errors import MissingPart, StrataError
from strata.fleet.slices import LIBRARY, PRELOAD_FILE

NAME: Final = "libstrata_quota.so"
SOURCES: Final = Path(__file__).parent / "native"
FLAGS: Final = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-pthread"),
    *("-Wall", "-Wextra", "-fvisibility=hidden", "-Wl,-Bsymbolic-functions"),
    # Half as many mappings at each start of a program, and none that is split again to be protected.
    *("-Wl,-z,noseparate-code", "-Wl,-z,norelro"),
)
_COMPILERS: Final = ("cc", "gcc", "clang")


def library(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the library's path. The first call after an install without one compiles it, which takes seconds.

    Raises MissingPart where it is not here and cannot be compiled, StrataError where compiling it fails.
    """
    if wheel := brought():
        return wheel
    command = compiler(environment)
    kept = _cache(environment) / "strata" / "quota" / _digest(command) / NAME
    if not kept.is_file():
        try:
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            compile_library(kept, command)
        except OSError as error:
            message = f"the quota library cannot be kept: {error}"
            raise MissingPart(message, hint="XDG_CACHE_HOME=FOLDER, one that can be written") from error
    return kept


def brought() -> Path | None:
    """Return the library the wheel brought, if it did."""
    path = Path(__file__).parent / NAME
    return path if path.is_file() else None


def install(folder: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Put the library into a folder, which is made if need be, and return its path there.

    Beside it lies what pods have in place of /etc/ld.so.preload: the library's path in their containers.
    Raises UsageError where the folder cannot be written, and what `library` raises.
    """
    from strata.files import write_bytes  # not at the top: the wheel's hook has no pydantic

    there = folder / NAME
    write_bytes(there, library(environment).read_bytes())
    preload = folder / Path(PRELOAD_FILE).name
    write_bytes(preload, f"{LIBRARY}\n".encode())
    for path in (there, preload):
        path.chmod(0o644)  # whoever a pod runs as has to load it
    return there


def compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command of a C compiler: `CC`, else the first there is. Raises MissingPart without one."""
    if platform.system() != "Linux":
        raise MissingPart("the quota library needs Linux: it is loaded by LD_PRELOAD")
    wanted = [shlex.split(environment["CC"])] if environment.get("CC", "").strip() else [[c] for c in _COMPILERS]
    for command in wanted:
        if shutil.which(command[0], path=environment.get("PATH")):
            return command
    names = " or ".join(command[0] for command in wanted)
    message = f"the quota library is not compiled yet, and there is no C compiler ({names})"
    raise MissingPart(message, hint="apt-get install gcc libc6-dev")


def sources() -> list[Path]:
    """Return every file the library is made of: C, headers and the list of what it exports."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h", ".map"))


def compile_library(out: Path, command: Sequence[str], *, more: Sequence[str] = ()) -> None:
    """Compile to `out`, which is either replaced whole or left alone. more: flags behind ours.

    Raises StrataError with what the compiler said.
    """
    files = sources()
    exports = [f"-Wl,--version-script={path}" for path in files if path.suffix == ".map"]
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        built = Path(folder, NAME)
        units = [str(path) for path in files if path.suffix == ".c"]
        done = subprocess.run(
            [*command, *FLAGS, *more, *exports, f"-Wl,-soname,{NAME}", "-o", str(built), *units],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            messages = "\n".join(done.stderr.splitlines()[:20])
            raise StrataError(f"{shlex.join(command)} could not compile the quota library:\n{messages}")
        os.replace(built, out)


def _digest(command: Sequence[str]) -> str:
    """Return what a compiled library is kept under: another source, flag, compiler or machine is another one."""
    whole = hashlib.sha256(repr((command, FLAGS, platform.machine())).encode())
    for path in sources():
        whole.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def _cache(environment: Mapping[str, str]) -> Path:
    # The XDG specification has relative paths ignored.
    home = Path(environment.get("XDG_CACHE_HOME", ""))
    return home if home.is_absolute() else Path(environment.get("HOME") or Path.home(), ".cache")
