"""A command in a slice: everything is decided first, then this process turns into the command.

No process of ours stays behind, so that signals, exit codes and the terminal are the command's own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from strata import units
from strata.errors import CommandNotFound, CommandNotRunnable, UsageError
from strata.fleet.slices import (
    CORES,
    DEVICE_UUID,
    FAIL,
    LEDGER,
    LEDGER_INODE,
    MEMORY,
    PRELOAD,
    SWITCH,
    QuotaLimits,
    slice_environment,
)
from strata.slicing.build import brought
from strata.slicing.ledger_directory import free_name, ledger_of, prepare_directory, take
from strata.slicing.program import incompatibility

MOST_BYTES: Final = 2**52
"""More than a ledger can count."""
_LOW_FILES: Final = 64
"""Scripts number their own files from 3 up; the slice's is kept out of their way."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is started, and with what. program: where the command was found. file: the slice's, to be kept open."""

    program: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    slice: str
    file: int
    warnings: tuple[str, ...]


def prepare(
    command: Sequence[str],
    limits: QuotaLimits,
    *,
    folder: Path,
    name: str | None,
    is_open: bool,
    library: Path,
    environment: Mapping[str, str],
    device_bytes: Sequence[int] = (),
    device_uuids: Sequence[str] = (),
) -> Launch:
    """Find the command, begin or join its slice, and say what it is started with.

    folder: of slices. name: of the slice; None for one of its own. is_open: what cannot be counted is granted.
    Closed, a program that the library cannot be loaded into is refused too. device_bytes: sizes of the devices
    there are, as far as they are known. device_uuids: their names, by their numbers on the machine.
    Raises UsageError for limits that cannot be set, CommandNotFound and
    CommandNotRunnable for the command.
    """
    if environment.get(LEDGER):
        raise UsageError(
            f"already inside a slice ({LEDGER}={environment[LEDGER]}): a nested one would not be counted in it",
            hint="the command without strata run: it is in that slice",
        )
    if limits.memory_bytes is not None and limits.memory_bytes >= MOST_BYTES:
        size = units.show_bytes(limits.memory_bytes)
        raise UsageError(f"a limit of {size} is too large to count", hint="--memory 8Gi")
    if any(mark in str(library) for mark in " :"):  # the loader splits at both, and knows no quotes
        message = f"{PRELOAD} cannot hold a path with a space or a colon: {library}"
        is_installed = library == brought()
        place = "install strata in a folder" if is_installed else "XDG_CACHE_HOME=FOLDER, one"
        raise UsageError(message, hint=f"{place} without them")
    search = environment.get("PATH", os.defpath)
    program = find_command(command[0], search)
    own = {
        key: value
        for key, value in environment.items()
        if not key.startswith((MEMORY, CORES)) and key not in (LEDGER, LEDGER_INODE, DEVICE_UUID, FAIL)
    }
    env = slice_environment(limits, library=str(library))
    warnings = []
    is_off = environment.get(SWITCH, "").lower() == "off"
    free = incompatibility(program, search)
    if is_off:
        warnings.append(f"{SWITCH}=off: nothing is limited")
    elif free and not is_open:
        raise UsageError(f"the quota cannot be enforced: {free.why}", hint="--fail open runs it without a limit")
    elif free:
        warnings.append(f"the quota is not enforced: {free.why}")
    if limits.memory_bytes is not None and device_bytes and limits.memory_bytes > max(device_bytes):
        size = units.show_bytes(max(device_bytes))
        warnings.append(
            f"a limit of {units.show_bytes(limits.memory_bytes)} has no effect: the largest device has {size}"
        )
    num_visible = _num_visible(device_uuids, environment)
    if limits.device is not None and device_uuids and limits.device >= num_visible:
        warnings.append(
            f"nothing is limited: device {limits.device} is beyond the program's {num_visible}, from 0"
        )
    try:
        prepare_directory(folder)
        slice_name = free_name(folder, f"run-{os.getpid()}") if name is None else name
        file = take(folder, slice_name, limits)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}", hint="XDG_RUNTIME_DIR=FOLDER, one that you own") from error
    env[LEDGER] = str(ledger_of(folder, slice_name))
    env[LEDGER_INODE] = str(os.fstat(file).st_ino)
    if limits.device is not None and (uuid := _uuid(limits.device, device_uuids, environment)):
        env[DEVICE_UUID] = uuid
    if free and free.objects:
        del env[PRELOAD]
    elif environment.get(PRELOAD):
        env[PRELOAD] += f":{environment[PRELOAD]}"
    if is_open:
        env[FAIL] = "open"
    return Launch(program, tuple(command), own | env, slice_name, file, tuple(warnings))


def _num_visible(uuids: Sequence[str], environment: Mapping[str, str]) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return len(uuids) if visible is None else len([name for name in visible.split(",") if name.strip()])


def _uuid(device: int, uuids: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the name of a program's device, by which children know it under any number; "" where unknown."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return uuids[device] if device < len(uuids) else ""
    named = dict(enumerate(visible.split(","))).get(device, "").strip()
    if named.isdecimal():
        return uuids[int(named)] if int(named) < len(uuids) else ""
    matches = [uuid for uuid in uuids if named and uuid.startswith(named)]
    return matches[0] if len(matches) == 1 else ""


def find_command(name: str, search: str) -> Path:
    """Return where a command is, as a shell finds it. Raises CommandNotFound, CommandNotRunnable."""
    path = shutil.which(name, path=search)
    if path is not None:
        return Path(path)
    if os.sep in name and Path(name).is_dir():
        raise CommandNotRunnable(f"{name}: a directory", hint="the path of a program")
    if os.sep in name and Path(name).exists():
        raise CommandNotRunnable(f"{name}: not executable", hint=f"chmod +x {name}")
    raise CommandNotFound(f"{name}: command not found", hint="its full path, or a PATH that has it")


def start(
    launch: Launch, *, execute: Callable[[str, list[str], dict[str, str]], NoReturn] = os.execve
) -> NoReturn:
    """Turn into the command. Raises CommandNotRunnable where the kernel refuses it."""
    # Inherited: the lock on it says that the slice is in use.
    file = _above(launch.file)
    # What Python changed for itself and a command would inherit.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    environment = dict(launch.environment)
    try:
        try:
            execute(str(launch.program), list(launch.arguments), environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            execute("/bin/sh", ["/bin/sh", str(launch.program), *launch.arguments[1:]], environment)
    except OSError as error:
        os.close(file)
        is_missing = error.errno == errno.ENOENT and launch.program.exists()
        why = "what its first line names, or its loader, is not here" if is_missing else error.strerror
        hint = f"head -1 {launch.program}" if is_missing else None
        raise CommandNotRunnable(f"{launch.program}: {why}", hint=hint) from error


def own_environment() -> dict[str, str]:
    """Return the environment without the locale that Python sets for itself where there is none (PEP 538)."""
    environment = dict(os.environ)
    if b"LC_CTYPE=" not in Path("/proc/self/environ").read_bytes():
        environment.pop("LC_CTYPE", None)
    return environment


def _above(file: int) -> int:
    """Return the file under a number that is not one of the first, inherited by what is started."""
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD, _LOW_FILES)
    except OSError:  # fewer files are allowed
        os.set_inheritable(file, True)
        return file
