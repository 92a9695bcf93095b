"""What may happen to a serving cluster. Times are not in events: they come beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.decision import Reason
from strata.serving.node import Node
from strata.serving.planning.allocation import Pipeline
from strata.serving.request import RequestSignal
from strata.serving.wire import StepSample


@dataclass(frozen=True, slots=True)
class Join:
    """A node is there. `incarnation` grows with every start of it; heartbeats of an older one are ignored.

    samples: what layers took there before it joined.
    """

    node: Node
    incarnation: int
    samples: tuple[StepSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """A node leaves gracefully."""

    node_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life. `running`: requests it works on; hop_s: newly measured one-way latencies [s].

    is_stuck: it lives and does no work. num_others: requests there that did not come from us. usage: shares of its
    machine in use.
    """

    node_id: str
    incarnation: int
    running: frozenset[str] = frozenset()
    hop_s: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[StepSample, ...] = ()
    is_stuck: bool = False
    num_others: int = 0
    usage: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A node is ready to serve the range of a plan."""

    node_id: str
    incarnation: int
    version: int


@dataclass(frozen=True, slots=True)
class Arrive:
    """A request came."""

    request: RequestSignal


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of an attempt is there."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A request is done; `generated` counts the tokens of all attempts."""

    request_id: str
    attempt: int
    generated: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt broke off. `node_id`: who is suspected; None where nobody is."""

    request_id: str
    attempt: int
    generated: int
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Whoever asked has gone."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer to a `Replan`: pipelines, or none and why."""

    version: int
    pipelines: tuple[Pipeline, ...]
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Join | Leave | Heartbeat | Loaded | Arrive | FirstToken | Finished | Failed | Cancelled | Planned | Tick
