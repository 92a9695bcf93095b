"""A roll-out: what is tried on whom, and all that was recorded of it so far, as a fold over a log of events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from strata.errors import UsageError
from strata.host.rollout.assign import Rules
from strata.host.rollout.attempt import Arm, Attempt


class Unit(StrEnum):
    """What attempts are compared by: whatever a job has in common with itself."""

    QPS = "qps"
    STEP_TIME = "step-time"
    SM_ACTIVE = "sm-active"
    TENSOR_ACTIVE = "tensor-active"

    @property
    def is_lower_better(self) -> bool:
        """Whether less is better."""
        return self is Unit.STEP_TIME


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What was settled before the first attempt. The name is also the salt of all hashes.

    `pattern` finds the value in a line of a log (its first group); `metric` names a Prometheus metric. `alpha` is
    the chance to see a difference where none is. `aa_pairs` of equal policies come first; at most `ab_pairs` of
    unequal ones follow. A job whose two pairs in a row lose more than `guard` goes back.
    """

    name: str
    unit: Unit = Unit.QPS
    pattern: str = ""
    metric: str = ""
    alpha: float = 0.05
    aa_pairs: int = 20
    ab_pairs: int = 200
    guard: float = 0.1

    def check(self) -> None:
        """Raise UsageError for a plan under which nothing could be recorded or found again."""
        if not self.name.strip() or not self.name.isprintable():
            raise UsageError(f"{self.name!r} is no name of a roll-out")
        if self.pattern and self.metric:
            raise UsageError("a pattern finds the value in a log, a metric in a page of Prometheus: take one")
        try:
            groups = re.compile(self.pattern or "()").groups
        except re.error as error:
            raise UsageError(f"pattern {self.pattern!r}: {error}") from None
        if not groups:
            raise UsageError(f"pattern {self.pattern!r} has no group: the first one is the number")

    def to_dict(self) -> dict[str, Any]:
        """Return the form that is stored."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RolloutPlan:
        """Return a plan from its stored form."""
        return cls(**{**data, "unit": Unit(data["unit"])})


@dataclass(frozen=True, slots=True)
class Rollout:
    """All that is known. `attempts` are in the order of recording; `assigned` is what `next` said."""

    plan: RolloutPlan
    rules: Rules = field(default_factory=Rules)
    attempts: tuple[Attempt, ...] = ()
    assigned: Mapping[tuple[str, int], Arm] = field(default_factory=dict)
    is_stopped: bool = False

    @property
    def strayed(self) -> int:
        """How many attempts ran under another policy than they were told: they are not compared."""
        return len(self.attempts) - len(self.kept)

    @property
    def kept(self) -> tuple[Attempt, ...]:
        """The attempts that count."""
        return tuple(
            attempt
            for attempt in self.attempts
            if self.assigned.get(attempt.key, attempt.policy) is attempt.policy
        )

    def find(self, job: str, number: int) -> Attempt | None:
        """Return a recorded attempt."""
        return next((attempt for attempt in self.attempts if attempt.key == (job, number)), None)


def rollout_of(events: Iterable[Mapping[str, Any]]) -> Rollout | None:
    """Return what a log says, oldest event first; None for an empty one.

    An attempt, or an assignment, that is there already changes nothing: two hosts may write the same at once.
    """
    rollout: Rollout | None = None
    attempts: dict[tuple[str, int], Attempt] = {}
    assigned: dict[tuple[str, int], Arm] = {}
    for event in events:
        match event["event"]:
            case "init" if rollout is None:
                rollout = Rollout(RolloutPlan.of(event["plan"]), rules_of(event["rules"]))
            case "change" if rollout is not None:
                is_stopped = rollout.is_stopped or event["is_stopped"]
                rollout = replace(rollout, rules=rules_of(event["rules"]), is_stopped=is_stopped)
            case "attempt":
                attempt = Attempt.of(event["attempt"])
                attempts.setdefault(attempt.key, attempt)
            case "assigned":
                assigned.setdefault((event["job"], event["number"]), Arm(event["policy"]))
    if rollout is None:
        return None
    return replace(rollout, attempts=tuple(attempts.values()), assigned=assigned)


def rules_of(data: Mapping[str, Any]) -> Rules:
    """Return rules from their stored form."""
    opt_in, opt_out = (tuple((label, pattern) for label, pattern in data[key]) for key in ("opt_in", "opt_out"))
    return Rules(opt_in, opt_out, data["share"])
