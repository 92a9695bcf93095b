"""A client of the scheduler's API, of the standard library alone; `strata submit`, `jobs` and the rest use it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from strata.errors import MissingPart, StrataError, UsageError

DEFAULT_URL: Final = "http://127.0.0.1:8470"
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Client:
    """A scheduler at an address. Calls raise UsageError for what it refuses, MissingPart where none answers."""

    url: str = DEFAULT_URL
    token: str = ""

    def submit(self, piece: Mapping[str, Any], *, is_strict: bool = False) -> str:
        """Submit what `read_job` made of a file; return the job's name once it is on the scheduler's disk.

        is_strict: have one refused that could not run if every device were free.
        """
        return str(self._json("POST", f"/v1/jobs{'?strict=1' if is_strict else ''}", piece)["name"])

    def prospects(self, name: str) -> list[dict[str, Any]]:
        """Return why a job could never run on the scheduler's fleet, and what would help."""
        reasons: list[dict[str, Any]] = self._json("GET", f"/v1/jobs/{quote(name, safe='')}/prospects")
        return reasons

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        jobs: list[dict[str, Any]] = self._json("GET", "/v1/jobs")
        return jobs

    def job(self, name: str) -> dict[str, Any]:
        """Return one job, its attempts and the decisions about it."""
        job: dict[str, Any] = self._json("GET", f"/v1/jobs/{quote(name, safe='')}")
        return job

    def domains(self) -> list[dict[str, Any]]:
        """Return the domains as their drivers saw them last."""
        domains: list[dict[str, Any]] = self._json("GET", "/v1/domains")
        return domains

    def decisions(self, *, limit: int = 200) -> list[dict[str, Any]]:
        """Return the newest decisions about any job, newest first."""
        decisions: list[dict[str, Any]] = self._json("GET", f"/v1/decisions?limit={limit}")
        return decisions

    def links(self) -> list[dict[str, Any]]:
        """Return what is believed of every link."""
        links: list[dict[str, Any]] = self._json("GET", "/v1/links")
        return links

    def cancel(self, name: str) -> None:
        """End a job."""
        self._json("DELETE", f"/v1/jobs/{quote(name, safe='')}")

    def drain(self, domain: str, *, is_drained: bool = True) -> None:
        """Start nothing new in a domain and move away what runs there; or undo it."""
        self._json("POST" if is_drained else "DELETE", f"/v1/domains/{quote(domain, safe='')}/drain")

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield what the ranks of the newest attempt wrote; with `follow` until it is over."""
        path = f"/v1/jobs/{quote(name, safe='')}/logs{'?follow=1' if follow else ''}"
        with self._open("GET", path, None, timeout_s=None if follow else _TIMEOUT_S) as response:
            for line in response:
                yield line.decode(errors="replace").rstrip("\n")

    def events(self) -> Iterator[list[dict[str, Any]]]:
        """Yield all jobs now, and again whenever one has changed."""
        with self._open("GET", "/v1/events", None, timeout_s=None) as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :])

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._open(method, path, body, timeout_s=_TIMEOUT_S) as response:
            return json.loads(response.read())

    @contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float | None
    ) -> Iterator[Any]:
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                yield response
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise MissingPart(f"no scheduler answers at {self.url}: {reason}", hint="strata up FLEET") from None


def _refusal(error: urllib.error.HTTPError) -> StrataError:
    try:
        message = str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP status {error.code}"
    lines = message.splitlines()
    hint = next((line.removeprefix("try:").strip() for line in lines if line.startswith("try:")), None)
    text = "; ".join(line for line in lines if not line.startswith("try:"))
    if error.code == 401:
        hint = "STRATA_TOKEN, or --token-file"
    return StrataError(text, hint=hint) if error.code >= 500 else UsageError(text, hint=hint)
