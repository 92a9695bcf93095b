"""Which attempt runs under which policy: by rules, then by hashes, so that every host finds the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from strata.decision import Reason
from strata.host.rollout.attempt import Arm

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
