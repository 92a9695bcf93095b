"""What was there before each change, on disk before the change is made: lines of JSON, so that a crash loses none.

A change is announced, made, then confirmed with what the kernel made of it. A line that a crash cut off announces
something that was not done. Announcements wait for the disk. The rest need not: it is lost only with the kernel,
and so is what the kernel was told. `off` beside it is the kill switch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from strata.errors import MissingPart, StrataError, UsageError
from strata.files import write_text
from strata.host.apply.trusted import is_believed
from strata.host.policy.step import Step

FORM: Final = "strata-host-undo/1"


def folder_of(environment: Mapping[str, str], *, user: int) -> Path:
    """Return where the journal is kept: `$XDG_STATE_HOME/strata/host`; for root else `/var/lib/strata/host`."""
    state = Path(environment.get("XDG_STATE_HOME", ""))
    if state.is_absolute():
        return state / "strata" / "host"
    return Path("/var/lib/strata/host") if user == 0 else Path.home() / ".local/state/strata/host"


@dataclass(frozen=True, slots=True)
class Record:
    """One change. before: what was there; beside: other files it changes and what they held.

    after: what was there when it was made; None where that was not confirmed. at_ticks: when, since boot.
    """

    number: int
    step: Step
    before: str
    beside: tuple[tuple[str, str], ...] = ()
    after: str | None = None
    is_undone: bool = False
    at_ticks: int = 0


class Journal:
    """The changes that were made since the last undo, oldest first. Made by `opened`.

    next_number: of the change that is announced next, larger than all before. num_lines: of the file.

    Whatever writes raises StrataError where nothing can be written, as on a full disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot = ""
        self.records: dict[int, Record] = {}
        self.next_number = 0
        self.num_lines = 0
        self._load()

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "undo.jsonl"

    @property
    def off(self) -> Path:
        """The kill switch: while this file is there, nothing is applied."""
        return self.folder / "off"

    def open_records(self, *, since: int = 0) -> list[Record]:
        """Return what was not undone, newest first."""
        return [
            record for record in reversed(self.records.values()) if not record.is_undone and record.number >= since
        ]

    def begin(self, boot: str) -> None:
        """Make ready for changes in this boot. Raises AssertionError for a journal of another one."""
        assert self.boot in ("", boot)
        if not self.boot:
            self.boot = boot
            self._append({"form": FORM, "boot": boot})
            _sync_folder(self.folder)

    def announce(
        self, step: Step, before: str, beside: tuple[tuple[str, str], ...], *, at_ticks: int = 0
    ) -> Record:
        """Put a change on disk that is made next, at a time in ticks since boot."""
        record = Record(self.next_number, step, before, beside, at_ticks=at_ticks)
        self._append(_announced(record))
        self.records[record.number] = record
        self.next_number += 1
        return record

    def confirm(self, record: Record, after: str) -> None:
        """Note what a change made of what was there."""
        self._append({"n": record.number, "after": after}, is_synced=False)
        self.records[record.number] = replace(record, after=after)

    def strike(self, record: Record) -> None:
        """Note that a change is undone, or that there is nothing left of it to undo."""
        self._append({"n": record.number, "undone": True}, is_synced=False)
        self.records[record.number] = replace(record, is_undone=True)

    def close(self) -> None:
        """Put the journal aside; the last one is kept for people to look at."""
        if self.path.exists():
            self.path.replace(self.folder / "undone.jsonl")
            _sync_folder(self.folder)
        self.boot, self.records, self.next_number, self.num_lines = "", {}, 0, 0

    def rewrite(self, *, without: Collection[int]) -> None:
        """Write it anew without what is undone and without some numbers, which nobody has again.

        It is there whole at any moment, the old one or the new. Raises StrataError; the old one stays then.
        """
        kept = {record.number: record for record in self.open_records() if record.number not in without}
        lines: list[dict[str, Any]] = [{"form": FORM, "boot": self.boot, "next": self.next_number}]
        for record in sorted(kept.values(), key=lambda record: record.number):
            lines += [_announced(record)] + [{"n": record.number, "after": record.after}] * (
                record.after is not None
            )
        write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in lines))
        _sync_folder(self.folder)
        self.records, self.num_lines = dict(sorted(kept.items())), len(lines)

    def _append(self, data: dict[str, Any], *, is_synced: bool = True) -> None:
        line = (json.dumps(data) + "\n").encode()
        try:
            with self.path.open("ab", buffering=0) as stream:
                start = stream.tell()
                try:
                    if stream.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    if is_synced:
                        os.fsync(stream.fileno())
                    self.num_lines += 1
                except OSError:
                    os.truncate(self.path, start)  # half a line would spoil the next one
                    raise
        except OSError as error:
            raise StrataError(
                f"{self.path}: {error.strerror}", hint="make room there, then strata host undo"
            ) from None

    def _load(self) -> None:
        if not self.path.exists():
            return
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            os.truncate(self.path, len(whole))  # a line that a crash cut off; the next must not continue it
        lines = whole.splitlines()
        self.num_lines = len(lines)
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise StrataError(
                    f"{self.path}:{number}: not a line of an undo journal: {error!r}",
                    hint=f"read it, put back by hand what it says was there before, then remove {self.path}",
                ) from None

    def _take(self, data: dict[str, Any]) -> None:
        if "form" in data:
            if data["form"] != FORM:
                raise ValueError(f"its form is {data['form']}, of another version of strata")
            self.boot, self.next_number = data["boot"], int(data.get("next", 0))
        elif "step" in data:
            beside = tuple((str(path), str(value)) for path, value in data["beside"])
            step = Step(**data["step"])
            if not is_believed(step, data["before"], beside):
                raise ValueError(f"no policy does this: {step.act} {step.path}")
            at_ticks = int(data.get("at_ticks", 0))
            self.records[data["n"]] = Record(data["n"], step, data["before"], beside, at_ticks=at_ticks)
            self.next_number = max(self.next_number, data["n"] + 1)
        elif "after" in data:
            self.records[data["n"]] = replace(self.records[data["n"]], after=data["after"])
        else:
            self.records[data["n"]] = replace(self.records[data["n"]], is_undone=data["undone"])


def _announced(record: Record) -> dict[str, Any]:
    return {
        "n": record.number,
        "step": record.step.to_dict(),
        "before": record.before,
        "beside": record.beside,
        "at_ticks": record.at_ticks,
    }


@contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    """Yield the journal of a folder, which no one else has meanwhile. Raises MissingPart, UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        # Not through a link that somebody put there.
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MissingPart(
            f"{folder}: no undo journal can be kept there: {error.strerror}", hint="run as root"
        ) from None
    try:
        _check_owner(folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder}: another strata is at work on this host", hint="wait until it ends"
            ) from None
        yield Journal(folder)
    finally:
        os.close(lock)


def _check_owner(folder: Path) -> None:
    """Raise UsageError where somebody else could have written what is undone in our name."""
    for path in (folder, folder / "undo.jsonl", folder / "lock"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(status.st_mode):
            why = "a link"
        elif status.st_uid != os.geteuid():
            why = f"of user {status.st_uid}"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = "writable for others"
        else:
            continue
        raise UsageError(
            f"{path}: {why}, so that what it says is not trusted",
            hint=f"read {folder}/undo.jsonl, then remove it; or another folder: XDG_STATE_HOME",
        )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
