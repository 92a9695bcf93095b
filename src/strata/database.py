"""SQLite files of ours: opened in WAL mode, migrated forwards only, every fault explained.

A file of a newer strata, or of another program, is left alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from strata.errors import StrataError, UsageError

_BUSY_S: Final = 30.0


class Database:
    """One SQLite file, open inside a `with`.

    Every method raises UsageError for a file that cannot be used or is of a newer strata (nothing is deleted), and
    StrataError for one that stays locked, or whose disk is full.
    """

    migrations: ClassVar[Sequence[str]]
    """Statement i takes a file from version i to i + 1 (PRAGMA user_version). Only ever append."""
    synchronous: ClassVar[str] = "NORMAL"
    """FULL: what is acknowledged survives a power cut, too (sqlite.org/pragma.html#pragma_synchronous)."""
    what: ClassVar[str] = "file"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __enter__(self) -> Self:
        with self.explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # isolation_level=None: transactions are begun and ended below, not guessed by the module.
            self.rows = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                self._migrate()
            except BaseException:
                self.rows.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rows.close()

    def _migrate(self) -> None:
        if self._version() > len(self.migrations):
            version, known = self._version(), len(self.migrations)
            raise UsageError(
                f"{self.path}: written by a newer strata (version {version}, known: {known})",
                hint="the strata that wrote it, or another file",
            )
        # The one statement that does not wait for a lock. Where it fails another process is switching the same
        # file, whose mode is for all; until then the older journal is as safe, only slower.
        with suppress(sqlite3.OperationalError):
            self.rows.execute("PRAGMA journal_mode=WAL")
        self.rows.execute(f"PRAGMA synchronous={self.synchronous}")
        if self._version() < len(self.migrations):
            with self.transaction():
                # Read again: another process may have migrated while this one waited for the lock.
                version = self._version()
                if version == 0 and self.rows.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise UsageError(f"{self.path}: an SQLite file of another program", hint="name another file")
                for statement in self.migrations[version:]:
                    self.rows.execute(statement)
                self.rows.execute(f"PRAGMA user_version={len(self.migrations)}")

    def _version(self) -> int:
        return int(self.rows.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Take the write lock at once: a read that becomes a write may fail where two do so together."""
        with self.explained():
            self.rows.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self.rows.in_transaction:  # SQLite rolls back by itself where the disk is full
                    self.rows.execute("ROLLBACK")
                raise
            self.rows.execute("COMMIT")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise what a user can do something about for what SQLite says."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}") from None
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorname.startswith("SQLITE_BUSY"):
                raise StrataError(
                    f"{self.path}: another process has kept it locked for {_BUSY_S:.0f} s",
                    hint="end that process, or name another file",
                ) from None
            if error.sqlite_errorname == "SQLITE_FULL":
                raise StrataError(
                    f"{self.path}: the disk is full, nothing was written", hint="make room; what was kept is whole"
                ) from None
            raise UsageError(
                f"{self.path}: not a {self.what} strata can use: {error}",
                hint="move the file away (strata deletes nothing), or name another file",
            ) from None
