"""What is simulated: the jobs, and what befalls the fleet meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strata.fleet.dynamics.process import Process
from strata.simulate.analytic import StepModel
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True)
class Job:
    """A job under its plan. `model` is of the fleet that all jobs of a simulation share.

    priority: its messages go before those of jobs with a lower one. stragglers: how many times longer a stage,
    named (pipeline, stage), computes than it should.
    """

    name: str
    model: StepModel
    plan: TrainingPlan
    priority: int = 0
    stragglers: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceFailure:
    """A device of a domain fails: jobs there stop, and start again from their last checkpoint."""

    domain: str
    at_s: float


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """A cable is cut for a while: nothing passes in either direction, and what is on its way waits."""

    source: str
    dest: str
    at_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class LinkVariation:
    """How all links change: factors over their base values, drawn anew every `interval_s`, constant in between."""

    interval_s: float
    bandwidth: Process[Any] | None = None
    latency: Process[Any] | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What makes a simulation differ from the analytic answer; by default nothing but contention does.

    jitter: standard deviation of each forward's and backward's time over its mean, log-normal.
    checkpoint_steps: a checkpoint is kept after every so many steps, at no cost. restart_s: from a failure until
    the job runs again from its last checkpoint [s].
    """

    jitter: float = 0.0
    link_variation: LinkVariation | None = None
    failures: tuple[DeviceFailure | LinkFailure, ...] = ()
    checkpoint_steps: int = 1
    restart_s: float = 0.0


AS_PLANNED: Final = Conditions()
