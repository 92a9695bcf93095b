"""One leader at a time, by a Lease that is only ever replaced at the version it was read at.

client-go's algorithm (tools/leaderelection); lightkube has no leader election.

Nobody reads the times in the Lease, which are other machines': a candidate takes the Lease over once it has seen
the same version for the Lease's whole duration by its own clock, and a leader stops believing RENEW_S after it
began its last successful renewal. As long as no clock runs half as fast again as another (15 s / 10 s), two never
believe at once, whatever the network does. Who deletes a held Lease by hand breaks that for RENEW_S, as with
client-go.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from strata.cluster.api.client import Api
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import LEASE, Object, meta, moment, version_of

log = logging.getLogger(__name__)

DURATION_S: Final = 15
RENEW_S: Final = 10.0
RETRY_S: Final = 2.0
"""client-go's: a Lease's duration, how long a leader may fail to renew it, the wait between two tries."""

NEVER_S: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """Who wants to lead, and under which Lease. `identity`: of this process alone, not of its machine."""

    name: str
    namespace: str
    identity: str


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What a candidate knows, in seconds of its own clock, which must not be set back."""

    version: str = ""
    """The resource version it saw last; it had it first at `seen_s`."""
    seen_s: float = 0.0
    leads_until_s: float = NEVER_S

    def leads(self, now_s: float) -> bool:
        """Whether it may act as the leader now."""
        return now_s < self.leads_until_s


def step(
    lease: Object | None, me: LeaseCandidate, state: LeaseState, *, now_s: float, wall: str
) -> tuple[LeaseState, Object | None]:
    """Return what is known after reading `lease`, and the Lease to write; None where there is only to wait.

    now_s: read AFTER the answer came, so that the Lease was not written later. wall: for people, RFC 3339.
    A Lease without a resource version is to be created, any other replaced at its version.
    """
    if lease is None:
        return LeaseState(), _held(None, me, wall)
    version = version_of(lease)
    spec = lease.get("spec") or {}
    if version != state.version:
        state = replace(state, version=version, seen_s=now_s)
    holder = spec.get("holderIdentity") or ""
    if holder == me.identity:
        return state, _held(lease, me, wall)
    state = replace(state, leads_until_s=NEVER_S)  # held by another, whatever was believed before
    if holder and now_s < state.seen_s + float(spec.get("leaseDurationSeconds") or DURATION_S):
        return state, None
    return state, _held(lease, me, wall)


def won(written: Object, *, asked_s: float, now_s: float) -> LeaseState:
    """Return the state after a Lease of ours was written. asked_s: read BEFORE the Lease was asked for."""
    return LeaseState(version_of(written), now_s, asked_s + RENEW_S)


def released(lease: Object, me: LeaseCandidate, *, wall: str) -> Object | None:
    """Return the Lease to write so that the next one need not wait, None where it is not ours."""
    spec = lease.get("spec") or {}
    if spec.get("holderIdentity") != me.identity:
        return None
    return {**lease, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": wall}}


def _held(lease: Object | None, me: LeaseCandidate, wall: str) -> Object:
    metadata = meta(lease) if lease else {"name": me.name, "namespace": me.namespace}
    before: Mapping[str, Any] = (lease or {}).get("spec") or {}
    spec = {**before, "holderIdentity": me.identity, "leaseDurationSeconds": DURATION_S, "renewTime": wall}
    if before.get("holderIdentity") != me.identity:
        spec["acquireTime"] = wall
        spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1 if lease else 0
    return {"metadata": metadata, "spec": spec}


class Elector:
    """Runs for a Lease in a thread of its own, until it is stopped.

    `is_leader` is the truth, by the clock alone; `changed` is only told of it, in the thread, and late where a
    request hangs. So who acts asks `is_leader` right before. Give it an `api` of its own with a time limit of 2 or
    3 s: a renewal is two requests, and must end well before RENEW_S to be tried again. When it is stopped,
    `changed(False)` returns before the Lease is given back.
    """

    def __init__(
        self, api: Api, me: LeaseCandidate, changed: Callable[[bool], None], *, rng: random.Random
    ) -> None:
        self._api, self._me, self._changed, self._rng = api, me, changed, rng
        self._state, self._was_leader, self._stop = LeaseState(), False, threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{me.name}", daemon=True)
        self.failure: Exception | None = None
        """A bug that ended the thread, ours or that of `changed`: it leads no longer."""

    @property
    def is_leader(self) -> bool:
        """Whether we may act now."""
        return self._state.leads(_now())

    def start(self) -> Elector:
        """Start the thread."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop leading, give the Lease back, and end the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._try()
                self._tell()
                # Candidates that were started together must not keep asking together.
                self._stop.wait(RETRY_S if self._was_leader else RETRY_S * self._rng.uniform(1.0, 2.2))
            was_leader = self.is_leader
            self._state = LeaseState()
            self._tell()
            if was_leader:
                self._release()
        except Exception as error:
            self.failure, self._state = error, LeaseState()
            log.exception("lease %s is no longer asked for", self._me.name)

    def _try(self) -> None:
        asked_s = _now()
        try:
            lease = self._api.get(LEASE, self._me.name, self._me.namespace)
            self._state, wanted = step(lease, self._me, self._state, now_s=_now(), wall=_wall())
            if wanted is not None:
                written = (self._api.replace if lease else self._api.create)(LEASE, wanted)
                self._state = won(written, asked_s=asked_s, now_s=_now())
        except ApiFailed as failed:
            # A conflict is another candidate that was faster: nothing to tell.
            level = logging.DEBUG if failed.is_conflict else logging.WARNING
            log.log(level, "lease %s: %s", self._me.name, failed)

    def _tell(self) -> None:
        is_leader = self.is_leader
        if is_leader != self._was_leader:
            self._was_leader = is_leader
            log.info("%s %s lease %s", self._me.identity, "holds" if is_leader else "lost", self._me.name)
            self._changed(is_leader)

    def _release(self) -> None:
        try:
            lease = self._api.get(LEASE, self._me.name, self._me.namespace)
            given_back = released(lease, self._me, wall=_wall()) if lease else None
            if given_back is not None:
                self._api.replace(LEASE, given_back)
        except ApiFailed as failed:
            log.warning("lease %s was not given back, the next one waits for its end: %s", self._me.name, failed)


def _now() -> float:
    """Return the own clock [s]. It goes on while the machine sleeps, which CLOCK_MONOTONIC does not on Linux."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _wall() -> str:
    return moment(time.time(), "microseconds")
