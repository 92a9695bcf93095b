"""A step of a plain-kernel policy, and what is left out of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strata.host.threads.pools import LayerName

Act = Literal["write", "mkdir", "attach", "nice", "affinity", "scheduler", "migrate"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    write: `value` into the file `path`. mkdir: the folder `path`. attach: thread number `value` into the list
    `path`. nice, affinity, scheduler (`BATCH 0`, `FIFO 10`): of the thread `path` (/proc/PID/task/TID). migrate:
    memory of the process `path` (/proc/PID) to NUMA node `value`. start_ticks: when the thread started, since its
    number may be used again; 0 where no thread is meant.
    """

    act: Act
    path: str
    value: str
    why: str
    layer: LayerName
    start_ticks: int = 0

    def to_dict(self) -> dict[str, str | int]:
        """Return the stable JSON form."""
        data: dict[str, str | int] = {
            "act": self.act,
            "path": self.path,
            "value": self.value,
            "layer": self.layer,
            "why": self.why,
        }
        return {**data, "start_ticks": self.start_ticks} if self.start_ticks else data


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of the policy that is not done here, and why."""

    what: str
    why: str
