"""Where the pages' figures come from: the history of plans, the scheduler that runs, this machine's slices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata.control.client import Client
from strata.errors import StrataError, UsageError
from strata.files import bundled_names
from strata.fleet.schema import BUNDLED_FLEETS
from strata.history import Entry, History
from strata.host.rollout.report import RolloutReport, report_of
from strata.host.rollout.rollout import Rollout
from strata.host.rollout.store import opened
from strata.serving.gateway.client import GatewayClient
from strata.slicing.ledger_directory import visible_uses
from strata.web.cluster import Look, Seen, seen
from strata.web.kept import as_known, listed


@dataclass(frozen=True, slots=True)
class Live:
    """The scheduler as it answered, or why it did not."""

    jobs: list[dict[str, Any]]
    domains: list[dict[str, Any]]
    links: list[dict[str, Any]]
    decisions: list[dict[str, Any]] = field(default_factory=list)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway as it answered, or why it did not. models: what serves each; requests: the newest, of all."""

    url: str
    models: dict[str, Any]
    requests: list[dict[str, Any]]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the pages read. fleet: a file or a bundled one's name; scheduler: where `strata up` runs.

    clusters: what lists the objects of each, by its name, "" where there is only one.
    """

    history: Path
    scheduler: Client
    fleet: str = ""
    gateway: GatewayClient | None = None
    clusters: Mapping[str, Look] = field(default_factory=dict)

    def fleets(self) -> list[str]:
        """Return the fleets that pages may show: its own first, then the bundled ones."""
        own = [self.fleet] if self.fleet else []
        return [*own, *(name for name in bundled_names(BUNDLED_FLEETS) if name not in own)]

    def known_fleet(self, name: str) -> str:
        """Return the name of one of `fleets`, or "". Raises UsageError for others."""
        return known(name, self.fleets())

    def entries(self, *, limit: int = 500) -> list[Entry]:
        """Return this machine's newest plans and reports, newest first. Raises UsageError for a broken file."""
        if not self.history.exists():
            return []
        with History(self.history) as history:
            return [as_known(entry) for entry in history.newest(limit)]

    def of_kind(self, kind: str, *, limit: int) -> list[Entry]:
        """Return the newest ones of a kind, as far as they are of this version. Raises as `entries` does."""
        if not self.history.exists():
            return []
        with History(self.history) as history:
            return listed(history.latest(kind, limit))

    def entry(self, entry_id: int) -> Entry:
        """Return one of them. Raises UsageError where it is not kept."""
        if not self.history.exists():
            raise UsageError(f"{self.history}: there is no plan yet", hint="strata plan train FLEET JOB")
        with History(self.history) as history:
            return history.get(entry_id)

    def rollouts(self) -> dict[str, float]:
        """Return this machine's roll-outs and when each was last written, newest first. Raises as `entries`."""
        if not self._rollouts.exists():
            return {}
        with opened(self._rollouts) as store:
            return store.names()

    def tried(self) -> list[Rollout]:
        """Return the records of all roll-outs. Raises as `entries`."""
        if not self._rollouts.exists():
            return []
        with opened(self._rollouts) as store:
            return [store.get(name) for name in store.names()]

    def rollout(self, name: str) -> RolloutReport:
        """Return one roll-out, judged. Raises UsageError where there is none of that name."""
        with opened(self._rollouts) as store:
            return report_of(store.get(name))

    @property
    def _rollouts(self) -> Path:
        return self.history.with_name("rollouts.db")

    def live(self) -> Live:
        """Ask the scheduler what it knows; that none answers is an answer."""
        try:
            scheduler = self.scheduler
            return Live(scheduler.jobs(), scheduler.domains(), scheduler.links(), scheduler.decisions())
        except StrataError as error:
            return Live([], [], [], fault="; ".join(error.lines()))

    def served(self) -> Served | None:
        """Ask the gateway, where there is one, what it serves; that it does not answer is an answer."""
        if self.gateway is None:
            return None
        try:
            return Served(self.gateway.url, self.gateway.status(), self.gateway.requests())
        except StrataError as error:
            return Served(self.gateway.url, {}, [], fault="; ".join(error.lines()))

    def request(self, request_id: str) -> dict[str, Any]:
        """Return what became of a request. Raises UsageError where the gateway knows none, or there is none."""
        if self.gateway is None:
            raise UsageError("there is no gateway to ask", hint="--gateway URL, of strata ui or strata up")
        return self.gateway.request(request_id)

    def cluster_seen(self) -> Seen | None:
        """Ask the clusters, where there are any, what they have; that one does not answer is an answer."""
        return seen(self.clusters)

    def slices(self, environment: Mapping[str, str]) -> tuple[list[Any], list[str]]:
        """Return the slices of this machine that this user may see, and what could not be read."""
        return visible_uses(environment, user=os.geteuid())


def known(name: str, names: list[str]) -> str:
    """Return a name that the server knows, or "": a page must not have it read other files. Raises UsageError."""
    if name and name not in names:
        raise UsageError(f"{name!r} is not one of {', '.join(names)}", hint="strata ui FLEET for a file of yours")
    return name
