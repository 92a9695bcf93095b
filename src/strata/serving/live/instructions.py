"""What the scheduler wants done; the driver does it, and reports what came of it as events."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.decision import Reason
from strata.serving.layout import Route
from strata.serving.node import Node
from strata.serving.planning.allocation import Pipeline

if TYPE_CHECKING:
    from strata.simulate.inference.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Replan:
    """Lay the model out on these nodes (`live/replan.py: answer`), away from the event loop, and report
    `Planned`.

    current: what serves or loads now; reserved_tokens: KV tokens in use on each. broken: pipelines that have lost
    a node since the last plan.
    wanted_tokens_per_s: what is foreseen to be asked for over `horizon_s`; infinite where nothing is known.
    calibration: what measurements say of the nodes, as `observe.pool_of` takes it. causes: what asks for a plan
    besides load, demand and nodes that come and go.
    """

    version: int
    nodes: tuple[Node, ...]
    current: tuple[Pipeline, ...] = ()
    reserved_tokens: tuple[int, ...] = ()
    broken: tuple[Pipeline, ...] = ()
    wanted_tokens_per_s: float = math.inf
    horizon_s: float = 600.0
    calibration: Calibration | None = None
    causes: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Load layers [first, end) beside what the node serves now; report `Loaded`."""

    node_id: str
    version: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Release:
    """Forget the layers of an older plan: nothing runs on them any more."""

    node_id: str
    version: int


@dataclass(frozen=True, slots=True)
class KeptAttempt:
    """An attempt that was interrupted where its nodes still live: they keep for a while what it has cached."""

    attempt: int
    stages: Pipeline


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run a request along a route; `versions` name the plan whose layers it uses on each of the nodes.

    kept: what it may go on from instead of computing it anew.
    """

    request_id: str
    attempt: int
    route: Route
    versions: tuple[int, ...]
    kept: KeptAttempt | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop an attempt where it still runs. is_kept: what it has cached may be wanted; else nothing of it is."""

    request_id: str
    attempt: int
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """Give a request up; `retry_after_s` where trying again may help."""

    request_id: str
    reason: Reason
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RejectJoin:
    """A node must not join as it is, or must join anew."""

    node_id: str
    incarnation: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class EvictNode:
    """A node is out."""

    node_id: str
    reason: Reason


Instruction = Replan | Load | Release | Dispatch | Abort | Reject | RejectJoin | EvictNode
