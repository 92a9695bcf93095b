"""The store of decisions: one SQLite file that several strata processes may write at once.

WAL with `synchronous=NORMAL` keeps every acknowledged row when a process is killed; a power cut may cost the
last rows but never the file (sqlite.org/wal.html, "Performance Considerations"). The file is bounded: the
oldest rows go. It is migrated forwards only, and a file of a newer strata is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strata.database import Database
from strata.errors import UsageError

MIGRATIONS: Final = (
    "CREATE TABLE decision "
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at_s REAL NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX decision_by_kind ON decision (kind, id)",
)

_LARGEST: Final = 2**63 - 1
"""Number that SQLite has; a larger one is no row's."""


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


class History(Database):
    """Stored decisions, open inside a `with`. Keeps the newest `max_rows`; raises as `Database` does."""

    migrations = MIGRATIONS
    what = "history"

    def __init__(self, path: str | Path, *, max_rows: int = 10_000) -> None:
        assert max_rows > 0
        super().__init__(path)
        self.max_rows = max_rows

    def add(self, kind: str, decision: Mapping[str, Any], *, at_s: float) -> int:
        """Store one decision and return its id: 1, 2, 3 ... over the life of the file, never used again."""
        body = json.dumps(decision, allow_nan=False)
        with self.transaction():
            cursor = self.rows.execute(
                "INSERT INTO decision (kind, at_s, body) VALUES (?, ?, ?)", (kind, at_s, body)
            )
            entry_id = cursor.lastrowid
            assert entry_id is not None
            self.rows.execute("DELETE FROM decision WHERE id <= ?", (entry_id - self.max_rows,))
        return entry_id

    def get(self, entry_id: int) -> Entry:
        """Return one decision. Raises UsageError where it never was, or is no longer kept."""
        entries = self._select("WHERE id = ?", entry_id)
        if not entries:
            raise UsageError(f"{self.path}: no decision {entry_id} is kept", hint="strata runs list")
        return entries[0]

    def latest(self, kind: str, limit: int) -> list[Entry]:
        """Return at most `limit` decisions of a kind, newest first."""
        return self._select("WHERE kind = ? ORDER BY id DESC LIMIT ?", kind, limit)

    def newest(self, limit: int) -> list[Entry]:
        """Return at most `limit` decisions of any kind, newest first."""
        return self._select("ORDER BY id DESC LIMIT ?", limit)

    def kinds(self) -> dict[str, float]:
        """Return the kinds there are, and when the newest decision of each was stored, newest first."""
        with self.explained():
            rows = self.rows.execute("SELECT kind, max(at_s) FROM decision GROUP BY kind ORDER BY 2 DESC")
            return dict(rows.fetchall())

    def remove(self, entry_id: int) -> None:
        """Forget one decision. Raises UsageError where it is not kept."""
        self.get(entry_id)
        with self.transaction():
            self.rows.execute("DELETE FROM decision WHERE id = ?", (entry_id,))

    def count(self) -> int:
        """Return how many decisions are kept."""
        with self.explained():
            return int(self.rows.execute("SELECT count(*) FROM decision").fetchone()[0])

    def _select(self, clause: str, *values: str | int) -> list[Entry]:
        values = tuple(min(value, _LARGEST) if isinstance(value, int) else value for value in values)
        with self.explained():
            rows = self.rows.execute(f"SELECT id, kind, at_s, body FROM decision {clause}", values).fetchall()
            return [Entry(entry_id, kind, at_s, json.loads(body)) for entry_id, kind, at_s, body in rows]
