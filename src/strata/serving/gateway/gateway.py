"""What a gateway holds while it runs: a driver a model, the counters, and who makes ids and tells the time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from strata.clock import Clock
from strata.names import first_of
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.meters import Meters
from strata.serving.live.core import Core


@dataclass(slots=True)
class Gateway:
    """Drivers by the name of their model; `workers` is the one whose nodes join over HTTP, if there is one.

    wall_clock: seconds since 1970, for clients to read. new_id: of a request.
    fingerprint: of the workers' model; none is asked for where it is empty.
    """

    meters: Meters = field(init=False)
    drivers: dict[str, Driver] = field(default_factory=dict)
    workers: Driver | None = None
    fingerprint: str = ""
    wall_clock: Clock = time.time
    new_id: Callable[[], str] = lambda: os.urandom(16).hex()

    def __post_init__(self) -> None:
        self.meters = Meters(self.counts, self._cores)

    def _cores(self) -> dict[str, tuple[Core, float]]:
        """Return each model's scheduler, and the time by its clock."""
        return {name: (driver.core, driver.clock()) for name, driver in self.drivers.items()}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the figures of each model's scheduler."""
        return {name: driver.core.counts() for name, driver in self.drivers.items()}

    def why_not_ready(self) -> str:
        """Return why no model can be served; nothing where one can."""
        counts = self.counts().values()
        if any(model["ready"] for model in counts):
            return ""
        if not any(model["nodes"] for model in counts):
            return "no worker or engine has joined"
        statuses = [driver.core.status() for driver in self.drivers.values()]
        suspects = sorted(name for status in statuses for name in status["suspects"])
        reasons = [reason["text"] for status in statuses for reason in status["reasons"]]
        if suspects:
            reasons.append(f"requests broke off on what gets none until it is well again: {first_of(suspects, 5)}")
        return "; ".join(reasons) or "no pipeline is serving yet"
