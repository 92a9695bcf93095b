"""The unit of a roll-out: one attempt of a job, run from start to end under one policy (seed 004, page 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Arm(StrEnum):
    """What the CPUs of an attempt's hosts are scheduled by."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as it ran. `number` counts a job's attempts from 0; only attempts of equal `config` compare.

    `value` is the measure over the whole attempt, in its own unit; None where the attempt failed. `devices`:
    accelerators it held.
    """

    job: str
    number: int
    policy: Arm
    value: float | None
    config: str = ""
    devices: int = 1

    @property
    def key(self) -> tuple[str, int]:
        """What is recorded once."""
        return self.job, self.number

    def to_dict(self) -> dict[str, Any]:
        """Return the form that is stored."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Attempt:
        """Return an attempt from its stored form."""
        return cls(**{**data, "policy": Arm(data["policy"])})
