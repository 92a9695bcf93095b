"""What is simulated: the jobs, and what befalls the fleet meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strata import units
from strata.errors import UsageError
from strata.fleet.dynamics.process import Process
from strata.fleet.fleet import Fleet
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

_HINT: Final = "device:DOMAIN@90s, or link:A-B@10s+5s (from 10 s on, for 5 s)"


def parse_failure(text: str, fleet: Fleet) -> DeviceFailure | LinkFailure:
    """Read one failure. Raises UsageError where it is not one, or names what the fleet does not have."""
    kind, _, rest = text.partition(":")
    what, _, when = rest.rpartition("@")
    if kind == "device" and what and when:
        if what not in {domain.name for domain in fleet.domains}:
            raise UsageError(f"{text}: {fleet.name} has no domain {what!r}", hint=_known(fleet))
        return DeviceFailure(what, _seconds(text, when))
    at, _, duration = when.partition("+")
    if kind == "link" and what and at and duration:
        # A domain's name may hold a hyphen itself.
        pairs = [(what[:i], what[i + 1 :]) for i, letter in enumerate(what) if letter == "-"]
        matches = [pair for pair in pairs if pair in fleet.links or pair[::-1] in fleet.links]
        if not matches:
            raise UsageError(f"{text}: {fleet.name} has no link {what!r}", hint=_known(fleet))
        return LinkFailure(*matches[0], _seconds(text, at), _seconds(text, duration))
    raise UsageError(f"cannot read the failure {text!r}", hint=_HINT)


def _seconds(text: str, time: str) -> float:
    value = units.parse(time, "time")
    if value < 0:
        raise UsageError(f"{text}: {time} is negative", hint=_HINT)
    return value


def _known(fleet: Fleet) -> str:
    return "one of " + ", ".join(domain.name for domain in fleet.domains)
