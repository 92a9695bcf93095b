"""A roll-out: what is tried on whom, and all that was recorded of it so far, as a fold over a log of events."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from strata.decision import Reason
from strata.errors import UsageError


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

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Attempt:
        """Return an attempt from its stored form."""
        return cls(**{**data, "policy": Arm(data["policy"])})


LABELS: Final = ("job", "model", "paradigm", "team")
Rule = tuple[str, str]
"""A label and a pattern of its value, as file names are matched: ("team", "ads-*")."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Who takes part. Opting out wins over opting in; without any `opt_in` everyone is in.

    `share` of the jobs left may run the candidate; a job that is in at one share is in at every larger one.
    """

    opt_in: tuple[Rule, ...] = ()
    opt_out: tuple[Rule, ...] = ()
    share: float = 1.0

    def why_not(self, labels: Mapping[str, str], *, salt: str) -> Reason | None:
        """Return why a job takes no part; None if it does."""
        job = labels["job"]
        for label, pattern in self.opt_out:
            if _matches(labels, label, pattern):
                return Reason("rollout-opted-out", job, {"rule": f"{label}={pattern}"})
        if self.opt_in and not any(_matches(labels, *rule) for rule in self.opt_in):
            return Reason("rollout-not-opted-in", job)
        if coin(salt, "share", job) >= self.share:
            return Reason("rollout-outside-share", job, {"share": self.share})
        return None


def coin(*words: str | int) -> float:
    """Return a number in [0, 1) that only these words decide."""
    text = "\0".join(str(word) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


def turn(salt: str, job: str, config: str, number: int) -> Arm:
    """Return the policy of an attempt in a pair: attempts 2k and 2k + 1 of a job get one each, in random order.

    The random order makes the test exact: what drifts from attempt to attempt falls on both policies alike.
    """
    is_first_candidate = coin(salt, "order", job, config, number // 2) < 0.5
    return Arm.CANDIDATE if (number % 2 == 0) is is_first_candidate else Arm.BASELINE


def _matches(labels: Mapping[str, str], label: str, pattern: str) -> bool:
    return fnmatchcase(labels.get(label, ""), pattern)


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
            raise UsageError(f"{self.name!r} is not a valid name for a roll-out")
        if self.pattern and self.metric:
            raise UsageError("a pattern finds the value in a log, a metric in a page of Prometheus: take one")
        try:
            groups = re.compile(self.pattern or "()").groups
        except re.error as error:
            raise UsageError(f"pattern {self.pattern!r}: {error}") from None
        if not groups:
            raise UsageError(f"pattern {self.pattern!r} has no group: the first one is the number")

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
