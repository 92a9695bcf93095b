"""The directory of a user's ledgers: one file per slice, in a folder that only this user can read.

Whoever runs under a slice holds a shared lock on its file: `strata run` takes it, and what it turns into inherits
it. So a file that nobody has locked, and of whose processes none lives, is of a slice that is over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from strata import units
from strata.errors import UsageError
from strata.fleet.ledger import DeviceUse, count_processes, new_ledger, read_ledger, read_limits
from strata.fleet.slices import LEDGER, QuotaLimits

SUFFIX: Final = ".ledger"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOCK: Final = ".lock"


def user_directory(environment: Mapping[str, str], *, user: int, shared: Path = Path("/dev/shm")) -> Path:
    """Return a user's folder: in `XDG_RUNTIME_DIR`, else in the machine's shared memory."""
    own = Path(environment.get("XDG_RUNTIME_DIR", ""))
    # The XDG specification has relative paths ignored.
    return own / "strata" / "slices" if own.is_absolute() else shared / f"strata-{user}"


def prepare_directory(folder: Path) -> None:
    """Make a folder that only this user can read, or check that it is one.

    Raises UsageError where it cannot be written, or is somebody else's: in shared memory anybody can have made it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        status = folder.lstat()
    except OSError as error:
        message = f"cannot store slices in {folder}: {error.strerror}"
        raise UsageError(message, hint="XDG_RUNTIME_DIR=FOLDER, one that you can write") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        message = f"{folder} is not a private directory of yours"
        raise UsageError(message, hint="XDG_RUNTIME_DIR=FOLDER, one that you own")


def ledger_of(folder: Path, name: str) -> Path:
    """Return the file of a slice. Raises UsageError for a name that is not valid."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!a} is not a valid slice name: a letter or digit, then such and ._-, 63 at most",
            hint="notebooks",
        )
    return folder / f"{name}{SUFFIX}"


def ledgers(folder: Path) -> list[Path]:
    """Return the files of all slices in a folder, by name; none where the folder is not there.

    Others' folders may hold anything: what has no slice's name is none, and no terminal has to bear it.
    """
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if _NAME.fullmatch(path.stem) and path.is_file())


def visible_ledgers(environment: Mapping[str, str], *, user: int, root: Path = Path("/")) -> list[Path]:
    """Return the files of the slices a user may see: its own, the one it runs in, and for root everybody's.

    Slices that are over are left out.
    """
    folders = [user_directory(environment, user=user, shared=root / "dev/shm")]
    if user == 0:
        shared = [path for path in root.glob("dev/shm/strata-*") if path.name.removeprefix("strata-").isdecimal()]
        folders += sorted([*shared, *root.glob("run/user/*/strata/slices")])
    own = [Path(environment[LEDGER])] if environment.get(LEDGER) else []
    paths = [*own, *(path for folder in folders for path in ledgers(folder) if not _is_over(path))]
    return list(dict.fromkeys(path for path in paths if path.exists()))


def visible_uses(environment: Mapping[str, str], *, user: int) -> tuple[list[DeviceUse], list[str]]:
    """Return what the slices that a user may see hold, and what could not be read, with what to try."""
    uses, faults = list[DeviceUse](), list[str]()
    for path in visible_ledgers(environment, user=user):
        try:
            uses += read_ledger(path, name=path.stem)
        except UsageError as error:
            if path.exists():  # not one that was just cleared away
                faults.append("; ".join(error.lines()))
    return uses, faults


def take(folder: Path, name: str, limits: QuotaLimits) -> int:
    """Begin a slice, or join the one of that name, and return its file, locked: keep it open to stay in the slice.

    Files of slices that are over go. Raises UsageError where the slice has other limits.
    """
    path = ledger_of(folder, name)
    with _alone(folder):
        _clear(folder)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _fill(file, path, new_ledger(limits))
        else:
            known = read_limits(path)
            if known is not None and known != limits:
                os.close(file)
                raise UsageError(
                    f"slice {name} has {_shown(known)}, not {_shown(limits)}",
                    hint="another --slice, or the same limits",
                )
        fcntl.flock(file, fcntl.LOCK_SH)
    return file


def free_name(folder: Path, stem: str) -> str:
    """Return a name that no slice has, from a stem."""
    with _alone(folder):
        _clear(folder)
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(name for name in names if not ledger_of(folder, name).exists())


def _fill(file: int, path: Path, content: bytes) -> None:
    """Write all of a new file: one that a full disk cut short would end programs when they write beyond it."""
    try:
        if os.write(file, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        path.unlink()
        os.close(file)
        raise


def _clear(folder: Path) -> None:
    """Remove the files of slices that are over. Other files are left alone."""
    for path in ledgers(folder):
        if _is_over(path):
            path.unlink(missing_ok=True)


def _is_over(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # just gone, or no file of ours
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return count_processes(path) == 0
    except (BlockingIOError, UsageError):
        return False
    finally:
        os.close(file)


def _shown(limits: QuotaLimits) -> str:
    size = limits.memory_bytes
    memory = "" if size is None else f"{units.show_bytes(size)} ({size:,} bytes)"
    cores = "" if limits.cores_share is None else f"{100 * limits.cores_share:.0f} % of the cores"
    where = "every device" if limits.device is None else f"device {limits.device}"
    return f"{' and '.join(filter(None, (memory, cores)))} of {where}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other `strata run` of this user waiting, while slices are begun, joined and cleared away."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
