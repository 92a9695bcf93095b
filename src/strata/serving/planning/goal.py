"""What a plan is good for: tokens/s and decode latency, weighed against each other.

A plan's value is log(tokens/s) - w log(decode latency): one per cent of latency is worth w per cent of tokens/s.
With R the sum of its pipelines' rates and W that of rate times latency, that is (1 + w) log R - w log W, so
both what one more pipeline is worth and what a changed one brings are known from two sums. A pipeline whose
latency is above (1 + w) / w times the plan's mean makes the plan worse. A plan of fewer tokens/s than a floor is
worth less than any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

BELOW = 1e3
"""What missing the floor costs: more than any two plans differ by."""
STEEP = 5.0
"""What one per cent below the floor costs a plan under search, in per cent."""
SAME = 1e-9
"""Relative differences of rates below this are rounding."""


class Goal(StrEnum):
    """What to plan for; `both` lets one and the same plan be good in tokens/s and in decode latency.

    latency: the fewest milliseconds a token; tokens/s decide between plans within a few per cent of them.
    goodput: tokens/s within the goals of requests, their prompts counted, up to what is wanted; then as `both`.
    """

    BOTH = "both"
    GOODPUT = "goodput"
    THROUGHPUT = "throughput"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Weighing:
    """How many per cent of tokens/s one per cent of decode latency is worth, and the tokens/s to give at least."""

    latency_weight: float
    least_rate: float = 0.0

    @classmethod
    def of(cls, goal: Goal, *, has_floor: bool = False) -> Weighing:
        """Return the weight of each goal; throughput and goodput look at latency only between equals.

        has_floor: the tokens/s that a plan for both gives have a floor, so latency may weigh more above it.
        """
        both = 0.45 if has_floor else 0.25
        return cls({Goal.BOTH: both, Goal.THROUGHPUT: 0.002, Goal.LATENCY: 50.0, Goal.GOODPUT: 0.002}[goal])

    def value(self, rate: float, weight: float) -> float:
        """Return what a plan of these sums is worth; minus infinity for none."""
        return self.passing(rate, weight) - (BELOW if self.misses(rate) else 0.0)

    def misses(self, rate: float) -> bool:
        """Return whether a plan gives fewer tokens/s than it must."""
        return rate < self.least_rate * (1 - SAME)

    def passing(self, rate: float, weight: float) -> float:
        """Return the same for a plan on the way to others: below the floor it is worth less the lower it is."""
        if rate <= 0 or weight <= 0:
            return -math.inf
        w = self.latency_weight
        value = (1 + w) * math.log(rate) - w * math.log(weight)
        return value - STEEP * math.log(self.least_rate / rate) if self.misses(rate) else value

    def prices(self, rate: float, weight: float) -> tuple[float, float]:
        """Return what one more of each sum changes of the value: the first is gained, the second paid."""
        w = self.latency_weight
        return (1 + w) / rate, w / weight
