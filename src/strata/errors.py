"""The tree of errors that a user may see.

    StrataError                exit 1    the root; catch this one
    ├── UsageError             exit 2    a bad argument, unit, file or name
    │   └── BadFile            exit 2    all faults of one file, each with file:line:col
    ├── Infeasible             exit 3    nothing satisfies the request (a Decision says why)
    ├── GoalMissed             exit 4    a plan exists but misses a stated goal
    ├── MissingPart            exit 5    something the command needs is not here
    ├── OutOfTime              exit 6    the time limit passed before there was any plan
    ├── CommandNotRunnable     exit 126  the command that was to be run cannot be
    └── CommandNotFound        exit 127  there is no such command

Packages add errors of their own below these; docs/exit-codes.md, which is generated, lists them all. An error
knows its exit code and its one `try:` line, so the command line needs no ladder of excepts. Exceptions that do
not derive from StrataError are caught where they belong and never reach a user.
"""

from __future__ import annotations

import errno
import importlib
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import ClassVar, Final

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C: 128 and SIGINT's number, as shells have it."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_NAME: Final = 200
"""Letters shown of a file's name in an error."""


class StrataError(Exception):
    """Root of all errors a user may see. `hint` is one thing to try, without the word "try"."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def lines(self) -> list[str]:
        """Return the lines shown to the user."""
        shown = [str(self)]
        if self.hint:
            shown.append(f"try: {self.hint}")
        return shown

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form, which `-o json` prints to stderr under `error`."""
        return {
            "type": type(self).__name__, "message": str(self), "hint": self.hint, "exit_code": self.exit_code,
        }  # fmt: skip


class UsageError(StrataError):
    """The request itself is wrong: an argument, a unit, a name."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file. `line` and `column` count from 1; 0 means the place is not known."""

    path: str
    message: str
    line: int = 0
    column: int = 0
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        return f"{place}: {self.where}: {self.message}" if self.where else f"{place}: {self.message}"


class BadFile(UsageError):
    """A file cannot be used. Carries all its faults, not only the first."""

    def __init__(self, faults: list[Fault] | tuple[Fault, ...], *, hint: str | None = None) -> None:
        super().__init__("", hint=hint)
        self.faults = tuple(faults)
        self.args = (self.faults,)  # what pickle rebuilds it from, on its way out of a worker

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)

    def lines(self) -> list[str]:
        """Return one line a fault, and the hint."""
        return [str(fault) for fault in self.faults] + super().lines()[1:]

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form, with every fault and its place."""
        return {**super().to_dict(), "faults": [asdict(fault) for fault in self.faults]}


class Infeasible(StrataError):
    """Nothing satisfies the request."""

    exit_code = 3


class GoalMissed(StrataError):
    """There is a plan, but it misses a goal the user stated."""

    exit_code = 4


class MissingPart(StrataError):
    """A library, a right or a kernel feature the command needs is not here."""

    exit_code = 5


class OutOfTime(StrataError):
    """The time limit passed before any plan was found."""

    exit_code = 6


class CommandNotRunnable(StrataError):
    """The command that was to be run is there, but cannot be run."""

    exit_code = 126


class CommandNotFound(StrataError):
    """There is no such command."""

    exit_code = 127


def of_system(error: OSError | MemoryError) -> StrataError:
    """Return what the operating system refused as an error for a user."""
    if isinstance(error, MemoryError):
        return MissingPart("this needs more memory than there is", hint="a smaller input, or a larger machine")
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in _NO_ROOM:
        place = f" {_shortened(error.filename)}" if error.filename else ""
        return MissingPart(f"cannot write{place}: {reason}", hint=help_with(error))
    if error.filename is None:
        return MissingPart(f"the system refused: {reason}", hint="`strata check` shows what works on this machine")
    return UsageError(f"{_shortened(error.filename)}: {reason}", hint=help_with(error))


def help_with(error: OSError) -> str:
    """Return what to try where the operating system refused a file."""
    if error.errno in _NO_ROOM:
        return "free some space, or write to another disk"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "check the permissions of the file and of the folders above it"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "another path: a part of this one is a file, not a folder"
    if error.errno == errno.ENAMETOOLONG:
        return "use a shorter name"
    return "check the path"


def _shortened(name: object) -> str:
    text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}... ({len(text)} characters)"


def install(extra: str) -> str:
    """Return the command that installs an extra: from a clone, since no package index has strata yet."""
    return f"pip install -e '.[{extra}]', in a clone of strata"


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional library, or say how to install it.

    Raises MissingPart (exit 5) naming the extra that brings `module`, also where it is installed but broken.
    """
    library = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == library
        trouble = "which is not installed" if is_absent else f"which does not load: {error}"
        raise MissingPart(f"this command needs {library}, {trouble}", hint=install(extra)) from error
