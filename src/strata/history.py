"""The store of decisions: one SQLite file that several strata processes may write at once.

WAL with `synchronous=NORMAL` keeps every acknowledged row when a process is killed; a power cut may cost the
last rows but never the file (sqlite.org/wal.html, "Performance Considerations"). The file is bounded: the
oldest rows go. It is migrated forwards only, and a file of a newer strata is left alone.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from strata.errors import StrataError, UsageError

MIGRATIONS: Final = (
    "CREATE TABLE decision "
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at_s REAL NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX decision_by_kind ON decision (kind, id)",
)
"""Statement i takes a file from version i to i + 1 (PRAGMA user_version). Only ever append."""

_BUSY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored decision. `at_s` is what the writer's clock said [Unix seconds]."""

    id: int
    kind: str
    at_s: float
    decision: dict[str, Any]


def default_path(environment: Mapping[str, str]) -> Path:
    """Return where decisions are kept: `$XDG_STATE_HOME/strata/history.db`, or under `~/.local/state`."""
    # The XDG specification has relative paths ignored.
    state = Path(environment.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "strata" / "history.db"


class History:
    """Stored decisions, open inside a `with`. Keeps the newest `max_rows`.

    Every method raises UsageError for a file that cannot be used or is of a newer strata (nothing is deleted),
    and StrataError for one that stays locked.
    """

    def __init__(self, path: str | Path, *, max_rows: int = 10_000) -> None:
        assert max_rows > 0
        self.path = Path(path)
        self.max_rows = max_rows

    def __enter__(self) -> Self:
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # isolation_level=None: transactions are begun and ended below, not guessed by the module.
            self._rows = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            try:
                self._migrate()
            except BaseException:
                self._rows.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()

    def add(self, kind: str, decision: Mapping[str, Any], *, at_s: float) -> int:
        """Store one decision and return its id: 1, 2, 3 ... over the life of the file, never used again."""
        body = json.dumps(decision, allow_nan=False)
        with self._transaction():
            cursor = self._rows.execute(
                "INSERT INTO decision (kind, at_s, body) VALUES (?, ?, ?)", (kind, at_s, body)
            )
            entry_id = cursor.lastrowid
            assert entry_id is not None
            self._rows.execute("DELETE FROM decision WHERE id <= ?", (entry_id - self.max_rows,))
        return entry_id

    def get(self, entry_id: int) -> Entry:
        """Return one decision. Raises UsageError where it never was, or is no longer kept."""
        entries = self._select("WHERE id = ?", entry_id)
        if not entries:
            raise UsageError(f"{self.path}: no decision {entry_id}; the newest {self.max_rows} are kept")
        return entries[0]

    def latest(self, kind: str, limit: int) -> list[Entry]:
        """Return at most `limit` decisions of a kind, newest first."""
        return self._select("WHERE kind = ? ORDER BY id DESC LIMIT ?", kind, limit)

    def count(self) -> int:
        """Return how many decisions are kept."""
        with self._explained():
            return int(self._rows.execute("SELECT count(*) FROM decision").fetchone()[0])

    def _select(self, clause: str, *values: str | int) -> list[Entry]:
        with self._explained():
            rows = self._rows.execute(f"SELECT id, kind, at_s, body FROM decision {clause}", values).fetchall()
            return [Entry(entry_id, kind, at_s, json.loads(body)) for entry_id, kind, at_s, body in rows]

    def _migrate(self) -> None:
        if self._version() > len(MIGRATIONS):
            raise UsageError(
                f"{self.path}: written by a newer strata (version {self._version()}, known: {len(MIGRATIONS)})",
                hint="the strata that wrote it, or another file",
            )
        # The one statement that does not wait for a lock. Where it fails another process is switching the same
        # file, whose mode is for all; until then the older journal is as safe, only slower.
        with suppress(sqlite3.OperationalError):
            self._rows.execute("PRAGMA journal_mode=WAL")
        self._rows.execute("PRAGMA synchronous=NORMAL")
        if self._version() < len(MIGRATIONS):
            with self._transaction():
                # Read again: another process may have migrated while this one waited for the lock.
                version = self._version()
                if version == 0 and self._rows.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise UsageError(f"{self.path}: an SQLite file of another program", hint="name another file")
                for statement in MIGRATIONS[version:]:
                    self._rows.execute(statement)
                self._rows.execute(f"PRAGMA user_version={len(MIGRATIONS)}")

    def _version(self) -> int:
        return int(self._rows.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Take the write lock at once: a read that becomes a write may fail where two do so together."""
        with self._explained():
            self._rows.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._rows.execute("ROLLBACK")
                raise
            self._rows.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
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
            raise UsageError(
                f"{self.path}: not a history strata can use: {error}",
                hint="move the file away (strata deletes nothing), or name another file",
            ) from None
