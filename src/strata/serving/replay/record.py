"""What became of each request, one row each, in columns: there may be millions; and where counters stood."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from strata.serving.planning.allocation import Pipeline
from strata.workload.requests import Request

Outcome = Literal["served", "rejected", "cancelled", "unfinished"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("served", "rejected", "cancelled", "unfinished")


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request that is not over. `generated`: tokens of attempts that are; times are NaN until they come."""

    request: Request
    request_id: str
    generated: int = 0
    interruptions: int = 0
    sent_s: float = math.nan
    first_token_s: float = math.nan
    stages: int = 0


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Record:
    """Columns, one row a request in the order they ended; times in seconds, NaN where it never came so far.

    at_s: when it came; wait_s: until it was first sent to a pipeline; ttft_s, latency_s: from its coming to its
    first and its last token; tpot_s: per token after the first.
    """

    at_s: array[float] = field(default_factory=_floats)
    wait_s: array[float] = field(default_factory=_floats)
    ttft_s: array[float] = field(default_factory=_floats)
    tpot_s: array[float] = field(default_factory=_floats)
    latency_s: array[float] = field(default_factory=_floats)
    prompt_tokens: array[float] = field(default_factory=_floats)
    output_tokens: array[float] = field(default_factory=_floats)
    interruptions: array[float] = field(default_factory=_floats)
    outcome: array[int] = field(default_factory=lambda: array("b"))

    def __len__(self) -> int:
        return len(self.at_s)

    def add(self, life: SimulatedRequest, outcome: Outcome, now_s: float) -> None:
        """Note how a request ended."""
        at_s, tokens = life.request.at_s, life.request.output_tokens
        self.at_s.append(at_s)
        self.wait_s.append(life.sent_s - at_s)
        self.ttft_s.append(life.first_token_s - at_s)
        self.tpot_s.append((now_s - life.first_token_s) / (tokens - 1) if tokens > 1 else 0.0)
        self.latency_s.append(now_s - at_s)
        self.prompt_tokens.append(life.request.prompt_tokens)
        self.output_tokens.append(tokens)
        self.interruptions.append(life.interruptions)
        self.outcome.append(OUTCOMES.index(outcome))


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """Where counters stood at a time: busy seconds of nodes, and of paths tokens passed on and time in steps."""

    at_s: float
    busy_s: dict[str, float]
    paths: dict[Pipeline, tuple[float, float, float]]


class QueueSample(NamedTuple):
    """How many requests wait, and how many run on each pipeline, at a time."""

    at_s: float
    waiting: int
    running: dict[Pipeline, int]
