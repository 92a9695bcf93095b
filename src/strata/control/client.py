"""A client of the scheduler's API, of the standard library alone; `strata submit`, `jobs` and the rest use it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import quote

from strata.net.json_client import TIMEOUT_S, JsonClient, segment

DEFAULT_URL: Final = "http://127.0.0.1:8470"


@dataclass(frozen=True)
class Client(JsonClient):
    """A scheduler at an address. Calls raise UsageError for what it refuses, MissingPart where none answers."""

    url: str = DEFAULT_URL
    what: ClassVar = "scheduler"
    hint: ClassVar = "strata up FLEET"
    address: ClassVar = "--server URL, the address that strata up prints"

    def submit(self, piece: Mapping[str, Any], *, is_strict: bool = False) -> str:
        """Submit what `read_job` made of a file; return the job's name once it is on the scheduler's disk.

        is_strict: have one refused that could not run if every device were free.
        """
        path = f"/v1/jobs{'?strict=1' if is_strict else ''}"
        return str(self.item(path, "name", method="POST", body=piece)["name"])

    def prospects(self, name: str) -> list[dict[str, Any]]:
        """Return why a job could never run on the scheduler's fleet, and what would help."""
        return self.items(f"{_job(name)}/prospects", "text")

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        return self.items("/v1/jobs", "name", "phase")

    def job(self, name: str) -> dict[str, Any]:
        """Return one job, its attempts and the decisions about it."""
        return self.item(_job(name), "name", "phase")

    def piece(self, name: str) -> dict[str, Any]:
        """Return a job as it was submitted, which `job_of` reads."""
        return self.item(f"{_job(name)}/piece", "document")

    def domains(self) -> list[dict[str, Any]]:
        """Return the domains as their drivers saw them last."""
        return self.items("/v1/domains", "name", "is_drained")

    def decisions(self, *, limit: int = 200) -> list[dict[str, Any]]:
        """Return the newest decisions about any job, newest first."""
        return self.items(f"/v1/decisions?limit={limit}", "job", "reasons")

    def links(self) -> list[dict[str, Any]]:
        """Return what is believed of every link."""
        return self.items("/v1/links", "source", "dest")

    def cancel(self, name: str) -> None:
        """End a job."""
        self.item(_job(name), method="DELETE")

    def drain(self, domain: str, *, is_drained: bool = True) -> None:
        """Start nothing new in a domain and move away what runs there; or undo it."""
        method = "POST" if is_drained else "DELETE"
        self.item(f"/v1/domains/{quote(domain, safe='')}/drain", method=method)

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield what the ranks of the newest attempt wrote; with `follow` until it is over."""
        path, timeout_s = f"{_job(name)}/logs{'?follow=1' if follow else ''}", None if follow else TIMEOUT_S
        with self.open("GET", path, None, timeout_s=timeout_s, media_type="text/plain") as response:
            for line in response:
                yield line.decode(errors="replace").rstrip("\n")

    def events(self) -> Iterator[list[dict[str, Any]]]:
        """Yield all jobs now, and again whenever one has changed."""
        with self.open("GET", "/v1/events", None, timeout_s=None, media_type="text/event-stream") as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :])


def _job(name: str) -> str:
    return f"/v1/jobs/{segment(name, what='job', hint='strata jobs')}"
