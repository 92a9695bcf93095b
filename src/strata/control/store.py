"""The scheduler's memory: one SQLite file. Acknowledged is on disk: no kill loses it.

Requests of users go into `request` when they are acknowledged, and out of it in the transaction that keeps what
the loop made of them. An attempt is here before anything is started for it, so its id is never given twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from strata.control.jobfile import dump, job_of
from strata.control.state import (
    Attempt,
    Cancelled,
    DomainView,
    Drained,
    Job,
    JobPhase,
    JobSpec,
    LinkEstimate,
    Observation,
    Part,
    PartPhase,
    Snapshot,
    Submitted,
)
from strata.database import Database
from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.workload.plan import TrainingPlan

MIGRATIONS: Final = (
    "CREATE TABLE job (name TEXT PRIMARY KEY, piece TEXT NOT NULL, submitted_s REAL NOT NULL, state TEXT)",
    "CREATE TABLE attempt (id TEXT PRIMARY KEY, job TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX attempt_by_job ON attempt (job)",
    "CREATE TABLE request (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL)",
    "CREATE TABLE domain (name TEXT PRIMARY KEY, is_drained INTEGER NOT NULL)",
    "CREATE TABLE link (source TEXT, dest TEXT, body TEXT NOT NULL, PRIMARY KEY (source, dest))",
    "CREATE TABLE decision "
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, at_s REAL NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX decision_by_job ON decision (job, id)",
    "UPDATE link SET body = json_remove(body, '$.levels')",
)
MOST_DECISIONS: Final = 20_000

_DRAIN: Final = {"drain": True, "undrain": False}


@dataclass(frozen=True, slots=True)
class Kept:
    """A decision as it was kept. at_s: Unix seconds."""

    at_s: float
    job: str | None
    decision: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeptJob:
    """A job as it was kept. run: the section of its file. state: `Job` without its spec, {} before a turn."""

    name: str
    submitted_s: float
    run: dict[str, Any]
    state: dict[str, Any]


class Store(Database):
    """The store of one running scheduler, open inside a `with`; a second one is refused. Any thread may use it."""

    migrations = MIGRATIONS
    synchronous = "FULL"
    what = "store"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._lock = threading.RLock()
        self._owner: int | None = None

    def __enter__(self) -> Self:
        with self.explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._owner = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._owner)
            raise UsageError(
                f"{self.path}: another scheduler runs on this store", hint="strata jobs, or another --store"
            ) from None
        try:
            return super().__enter__()
        except BaseException:
            os.close(self._owner)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            super().__exit__(kind, error, trace)
            assert self._owner is not None
            os.close(self._owner)

    def submit(self, spec: JobSpec, piece: Mapping[str, Any]) -> None:
        """Keep a job. Raises UsageError where there is one of its name."""
        with self._locked():
            if self.rows.execute("SELECT 1 FROM job WHERE name = ?", (spec.name,)).fetchone():
                raise UsageError(f"there is a job {spec.name!r} already", hint="another name")
            self.rows.execute(
                "INSERT INTO job (name, piece, submitted_s) VALUES (?, ?, ?)",
                (spec.name, dump(piece), spec.submitted_s),
            )
            self._request("submit", spec.name)

    def request(self, kind: str, name: str) -> None:
        """Keep a request: `cancel` of a job, `drain` or `undrain` of a domain."""
        assert kind in (*_DRAIN, "cancel")
        with self._locked():
            self._request(kind, name)

    def inbox(self) -> tuple[int, tuple[Observation, ...]]:
        """Return the requests that the loop has not dealt with, and the id of the newest."""
        with self._locked():
            rows = self.rows.execute("SELECT id, kind, name FROM request ORDER BY id").fetchall()
            return (rows[-1][0] if rows else 0), tuple(self._observation(kind, name) for _, kind, name in rows)

    def load(self, fleet: Fleet, *, runs_on: Collection[str], now_s: float) -> Snapshot:
        """Return what was kept of jobs that are not over, their attempts, drained domains, links of this fleet.

        runs_on: the domains that have a driver.
        """
        with self._locked():
            jobs = {
                item.name: _job(self._spec(item.name), item.state)
                for item in self._jobs(None)
                if item.state and not JobPhase(item.state["phase"]).is_final
            }
            attempts = {
                attempt.id: attempt
                for name, job in jobs.items()
                for attempt in self._attempts(name)
                if not attempt.is_over or attempt.number == job.attempts
            }
            drained = dict(self.rows.execute("SELECT name, is_drained FROM domain").fetchall())
            links = {
                (source, dest): _link(json.loads(body))
                for source, dest, body in self.rows.execute("SELECT source, dest, body FROM link").fetchall()
            }
            domains = {
                d.name: DomainView(d.name, d.num_devices, now_s, is_drained=bool(drained.get(d.name)))
                for d in fleet.domains
                if d.name in runs_on
            }
            return Snapshot(
                fleet, jobs, attempts, domains, {pair: e for pair, e in links.items() if pair in fleet.links}
            )

    def save(self, before: Snapshot, after: Snapshot, *, dealt_with: int, decisions: Sequence[Kept] = ()) -> None:
        """Keep what a step changed, and forget the requests up to `dealt_with`: all of it or nothing."""
        with self._locked():
            for name, job in after.jobs.items():
                if before.jobs.get(name) != job:
                    self.rows.execute("UPDATE job SET state = ? WHERE name = ?", (_text(_plain(job)), name))
            for attempt in after.attempts.values():
                if before.attempts.get(attempt.id) != attempt:
                    self.rows.execute(
                        "INSERT INTO attempt VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
                        (attempt.id, attempt.job, _text(_plain(attempt))),
                    )
            for name, view in after.domains.items():
                old = before.domains.get(name)
                if old is None or old.is_drained != view.is_drained:
                    self.rows.execute("INSERT OR REPLACE INTO domain VALUES (?, ?)", (name, view.is_drained))
            for pair, estimate in after.links.items():
                if before.links.get(pair) != estimate:
                    self.rows.execute(
                        "INSERT OR REPLACE INTO link VALUES (?, ?, ?)", (*pair, _text(asdict(estimate)))
                    )
            for kept in decisions:
                self.rows.execute(
                    "INSERT INTO decision (job, at_s, body) VALUES (?, ?, ?)",
                    (kept.job, kept.at_s, _text(kept.decision)),
                )
            if decisions:
                self.rows.execute(
                    "DELETE FROM decision WHERE id <= (SELECT max(id) FROM decision) - ?", (MOST_DECISIONS,)
                )
            self.rows.execute("DELETE FROM request WHERE id <= ?", (dealt_with,))

    def names(self) -> list[str]:
        """Return the names of all jobs, as they were submitted."""
        with self._locked():
            return [name for (name,) in self.rows.execute("SELECT name FROM job ORDER BY rowid").fetchall()]

    def jobs(self, name: str | None = None) -> list[KeptJob]:
        """Return every job, as they were submitted, those that are over too; of a name only that."""
        with self._locked():
            return self._jobs(name)

    def piece(self, job: str) -> dict[str, Any]:
        """Return a job as it was submitted. Raises UsageError where there is none of that name."""
        with self._locked():
            row = self.rows.execute("SELECT piece FROM job WHERE name = ?", (job,)).fetchone()
        if row is None:
            raise UsageError(f"there is no job {job!r}", hint="strata jobs")
        piece: dict[str, Any] = json.loads(row[0])
        return piece

    def decisions(self, job: str, *, limit: int = 100) -> list[Kept]:
        """Return the newest decisions about a job, oldest first."""
        with self._locked():
            rows = self.rows.execute(
                "SELECT at_s, job, body FROM decision WHERE job = ? ORDER BY id DESC LIMIT ?", (job, limit)
            ).fetchall()
            return [Kept(at_s, name, json.loads(body)) for at_s, name, body in reversed(rows)]

    def newest_decisions(self, limit: int) -> list[Kept]:
        """Return the newest decisions about any job, newest first."""
        with self._locked():
            rows = self.rows.execute(
                "SELECT at_s, job, body FROM decision ORDER BY id DESC LIMIT ?", (limit,)
            ).fetchall()
            return [Kept(at_s, name, json.loads(body)) for at_s, name, body in rows]

    def attempts(self, job: str) -> list[Attempt]:
        """Return every attempt at a job, oldest first."""
        with self._locked():
            return self._attempts(job)

    def _jobs(self, name: str | None) -> list[KeptJob]:
        rows = self.rows.execute(
            "SELECT name, submitted_s, json_extract(piece, '$.document.run'), state FROM job "
            "WHERE ?1 IS NULL OR name = ?1 ORDER BY rowid",
            (name,),
        ).fetchall()
        return [
            KeptJob(name, submitted_s, json.loads(run or "{}"), json.loads(state or "{}"))
            for name, submitted_s, run, state in rows
        ]

    def attempt_ids(self) -> list[str]:
        """Return the ids of all attempts that were ever decided on."""
        with self._locked():
            return [attempt for (attempt,) in self.rows.execute("SELECT id FROM attempt").fetchall()]

    def _attempts(self, job: str) -> list[Attempt]:
        rows = self.rows.execute("SELECT body FROM attempt WHERE job = ? ORDER BY rowid", (job,)).fetchall()
        return [_attempt(json.loads(body)) for (body,) in rows]

    def _request(self, kind: str, name: str) -> None:
        self.rows.execute("INSERT INTO request (kind, name) VALUES (?, ?)", (kind, name))

    def _observation(self, kind: str, name: str) -> Observation:
        if kind == "submit":
            return Submitted(self._spec(name))
        return Cancelled(name) if kind == "cancel" else Drained(name, is_drained=_DRAIN[kind])

    def _spec(self, name: str) -> JobSpec:
        row = self.rows.execute("SELECT piece, submitted_s FROM job WHERE name = ?", (name,)).fetchone()
        return job_of(json.loads(row[0]), row[1])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock, self.transaction():
            yield


def _text(data: Any) -> str:
    """Return JSON; numbers of NumPy are plain ones in it."""
    return json.dumps(data, default=lambda number: number.item(), allow_nan=False)


def _plain(value: Job | Attempt) -> dict[str, Any]:
    """Return the JSON form of either; a job's spec is kept as it was submitted, not here."""
    data = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "spec"}
    for key, item in data.items():
        if isinstance(item, TrainingPlan):
            data[key] = item.to_dict()
    if isinstance(value, Attempt):
        data["parts"] = {name: asdict(part) for name, part in value.parts.items()}
    return data


def _job(spec: JobSpec, data: dict[str, Any]) -> Job:
    plan, lie = data.get("next_plan"), data.get("weights_plan")
    changed = {
        "phase": JobPhase(data["phase"]),
        "next_plan": None if plan is None else TrainingPlan.from_dict(plan),
        "weights_plan": None if lie is None else TrainingPlan.from_dict(lie),
        "next_devices": _devices(data.get("next_devices", {})),
    }
    known = {field.name for field in fields(Job)}
    return Job(spec, **{key: item for key, item in {**data, **changed}.items() if key in known})


def _attempt(data: dict[str, Any]) -> Attempt:
    parts = {name: Part(**{**part, "phase": PartPhase(part["phase"])}) for name, part in data["parts"].items()}
    plan, devices = TrainingPlan.from_dict(data["plan"]), _devices(data.get("devices", {}))
    return Attempt(**{**data, "plan": plan, "parts": parts, "devices": devices})


def _devices(data: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {domain: tuple(numbers) for domain, numbers in data.items()}


def _link(data: dict[str, Any]) -> LinkEstimate:
    recent = tuple(tuple(item) for item in data["recent"])
    return LinkEstimate(**{**data, "recent": recent})
