"""What a domain must be able to do for the control loop. One instance a domain; one file a driver.

A call may block or raise: whoever calls runs it apart, with a deadline, and reports one that is late, or a look
that fails, as `DomainSilent`; a start that fails is tried again for as long, then its part has failed. A driver
keeps nothing in memory that its domain does not know: after a restart of the scheduler `observe` sees the same
attempts again, which is how they are adopted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from strata.control.state import DomainSeen, Start


class Driver(Protocol):
    """Watches, starts and stops attempts in one domain."""

    @property
    def every_s(self) -> float:
        """From one `observe` to the next: as often as the domain can bear [s]."""

    @property
    def lost_after_s(self) -> float:
        """How long the domain may be silent before what runs in it is given up: several looks [s]."""

    def observe(self, now_s: float) -> DomainSeen:
        """Return devices and every attempt the domain knows of, those that ended since too.

        What ended is kept, with its exit code and last reported step, for as long as the job may ask for it.
        """

    def start(self, start: Start) -> None:
        """Start a part. Does nothing where the domain knows its attempt's id already, ended or not."""

    def stop(self, attempt: str, *, grace_s: float) -> None:
        """Ask a part to checkpoint and end, and kill it after the grace; returns at once.

        Does nothing where it is over; a second call does not begin the grace anew. Where the id is not known it is
        kept as ended, so that a `start` that comes late does not run it.
        """

    def logs(self, attempt: str, *, follow: bool = False) -> Iterator[str | None]:
        """Yield the lines its ranks wrote, oldest first; with `follow` until the part is over. It never waits:
        where nothing is new it yields None.
        """
