"""Decisions of every source as rows, and which of them somebody looks for: by object, reason, time and words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote

from strata.errors import UsageError
from strata.history import Entry

OF_HOSTS: Final = ("host", "enforcement")
"""Kinds of kept answers whose `job` is what they are about; their names are a trace's and a process's."""

_LONGEST: Final = 200
_FORMS: Final = ("%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class Row:
    """One decision. of: what it is about. address: its page. can_follow: other levels may know of it."""

    at_s: float
    level: str
    of: str
    reasons: list[dict[str, Any]]
    address: str
    can_follow: bool = True


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for; empty and None are anything. words: each stands somewhere in name, token or sentence."""

    words: str = ""
    of: str = ""
    reason: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Return the search of an address's query."""
        keys = {"words": "q", "of": "of", "reason": "reason", "since": "since", "until": "until"}
        return cls(**{field: query.get(key, "")[:_LONGEST].strip() for field, key in keys.items()})

    def matches(self, rows: list[Row]) -> list[Row]:
        """Return the rows that match, newest first. Raises UsageError for a time that is none."""
        since_s, until_s = _unix(self.since, "since"), _unix(self.until, "until")
        words = self.words.casefold().split()
        shown = [
            row
            for row in rows
            if (since_s is None or row.at_s >= since_s)
            and (until_s is None or row.at_s < until_s)
            and self.of.casefold() in row.of.casefold()
            and (not self.reason or any(reason["token"] == self.reason for reason in row.reasons))
            and all(word in _words(row) for word in words)
        ]
        return sorted(shown, key=lambda row: -row.at_s)


def _unix(text: str, key: str) -> float | None:
    """Return a moment of this machine's local time as a browser's field writes it."""
    if not text:
        return None
    for form in _FORMS:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"{key}={text!r} is not a time", hint=f"{key}=2026-11-26T08:30")


def _words(row: Row) -> str:
    reasons = " ".join(f"{reason['token']} {reason['text']}" for reason in row.reasons)
    return f"{row.of} {reasons}".casefold()


def rows_of(entries: list[Entry], live: list[dict[str, Any]], claims: list[dict[str, Any]]) -> list[Row]:
    """Return all decisions: plans and reports kept here, the scheduler's, and a cluster's."""
    rows = [_of_entry(entry) for entry in entries]
    for each in live:
        name = each["job"] or "all jobs"
        address = f"/jobs/{quote(name, safe='')}" if each["job"] else "/"
        rows.append(Row(each["at_s"], "scheduler", name, each["reasons"], address, bool(each["job"])))
    for claim in claims:
        address = f"/decisions/of?name={quote(claim['object'], safe='')}"
        rows.append(Row(claim["at_s"], "cluster", claim["object"], claim["reasons"], address))
    return rows


def _of_entry(entry: Entry) -> Row:
    """Return a stored plan or report as a row; a report's reasons are its findings, else its verdict."""
    decision, job = entry.decision, entry.decision.get("job", "")
    findings = [{"token": item["token"], "text": item["what"]} for item in decision.get("findings", ())]
    if "effect" in decision:
        findings = [{"token": decision["end"], "text": decision["verdict"]}]
    reasons = decision.get("reasons") or findings
    return Row(
        entry.at_s,
        entry.kind,
        str(job if entry.kind in OF_HOSTS and job else decision.get("name", entry.kind)),
        reasons,
        f"/plans/{entry.id}",
        bool(entry.kind not in OF_HOSTS or job),
    )
