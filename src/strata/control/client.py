"""A client of the scheduler's API, of the standard library alone; `strata submit`, `jobs` and the rest use it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import quote

from strata.net.json_client import TIMEOUT_S, JsonClient

DEFAULT_URL: Final = "http://127.0.0.1:8470"


@dataclass(frozen=True)
class Client(JsonClient):
    """A scheduler at an address. Calls raise UsageError for what it refuses, MissingPart where none answers."""

    url: str = DEFAULT_URL
    what: ClassVar = "scheduler"
    hint: ClassVar = "strata up FLEET"

    def submit(self, piece: Mapping[str, Any], *, is_strict: bool = False) -> str:
        """Submit what `read_job` made of a file; return the job's name once it is on the scheduler's disk.

        is_strict: have one refused that could not run if every device were free.
        """
        return str(self.json("POST", f"/v1/jobs{'?strict=1' if is_strict else ''}", piece)["name"])

    def prospects(self, name: str) -> list[dict[str, Any]]:
        """Return why a job could never run on the scheduler's fleet, and what would help."""
        reasons: list[dict[str, Any]] = self.json("GET", f"/v1/jobs/{quote(name, safe='')}/prospects")
        return reasons

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        jobs: list[dict[str, Any]] = self.json("GET", "/v1/jobs")
        return jobs

    def job(self, name: str) -> dict[str, Any]:
        """Return one job, its attempts and the decisions about it."""
        job: dict[str, Any] = self.json("GET", f"/v1/jobs/{quote(name, safe='')}")
        return job

    def piece(self, name: str) -> dict[str, Any]:
        """Return a job as it was submitted, which `job_of` reads."""
        piece: dict[str, Any] = self.json("GET", f"/v1/jobs/{quote(name, safe='')}/piece")
        return piece

    def domains(self) -> list[dict[str, Any]]:
        """Return the domains as their drivers saw them last."""
        domains: list[dict[str, Any]] = self.json("GET", "/v1/domains")
        return domains

    def decisions(self, *, limit: int = 200) -> list[dict[str, Any]]:
        """Return the newest decisions about any job, newest first."""
        decisions: list[dict[str, Any]] = self.json("GET", f"/v1/decisions?limit={limit}")
        return decisions

    def links(self) -> list[dict[str, Any]]:
        """Return what is believed of every link."""
        links: list[dict[str, Any]] = self.json("GET", "/v1/links")
        return links

    def cancel(self, name: str) -> None:
        """End a job."""
        self.json("DELETE", f"/v1/jobs/{quote(name, safe='')}")

    def drain(self, domain: str, *, is_drained: bool = True) -> None:
        """Start nothing new in a domain and move away what runs there; or undo it."""
        self.json("POST" if is_drained else "DELETE", f"/v1/domains/{quote(domain, safe='')}/drain")

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield what the ranks of the newest attempt wrote; with `follow` until it is over."""
        path = f"/v1/jobs/{quote(name, safe='')}/logs{'?follow=1' if follow else ''}"
        with self.open("GET", path, None, timeout_s=None if follow else TIMEOUT_S) as response:
            for line in response:
                yield line.decode(errors="replace").rstrip("\n")

    def events(self) -> Iterator[list[dict[str, Any]]]:
        """Yield all jobs now, and again whenever one has changed."""
        with self.open("GET", "/v1/events", None, timeout_s=None) as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :])
