"""What the control loop knows and what it may ask for: frozen data, nothing here acts.

Times are seconds of one clock that the caller gives. Persisted by the store: jobs, attempts, drained domains and
link estimates. Everything else is seen again by asking the drivers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from strata.fleet.fleet import Fleet, Pair
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan


class JobPhase(StrEnum):
    """Where a job is. A job that waits after an attempt is queued again; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the job will not run again."""
        return self in (JobPhase.DONE, JobPhase.FAILED, JobPhase.CANCELLED)


class PartPhase(StrEnum):
    """What one domain does for an attempt. WAITING: not seen yet, so `Start` goes out again at any time."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more, as far as anybody can know."""
        return self in (PartPhase.ENDED, PartPhase.FAILED, PartPhase.LOST)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was submitted; never changed after. The store acknowledges a submit only once this is on disk.

    steps: optimizer steps in all. command: what each rank runs; empty only in virtual time.
    priority: a larger one goes first. weight: of its owner's fair share.
    min_devices, max_devices: an elastic job runs on any number between, and gives up devices down to the least for
        a larger claim; None leaves it to the planner.
    can_resume: the program keeps checkpoints and resumes under another plan; without it the plan is fixed and an
        attempt starts from step 0. grace_s: from the request to stop until it is killed.
    """

    name: str
    training: TrainingJob
    steps: int
    command: tuple[str, ...] = ()
    submitted_s: float = 0.0
    priority: int = 0
    owner: str = ""
    weight: float = 1.0
    min_devices: int | None = None
    max_devices: int | None = None
    is_preemptible: bool = False
    can_resume: bool = True
    grace_s: float = 60.0
    save_every: int = 0
    most_failures: int = 3

    @property
    def is_elastic(self) -> bool:
        """Whether the job may grow and shrink while it goes on."""
        most = float("inf") if self.max_devices is None else self.max_devices
        return self.can_resume and self.min_devices is not None and self.min_devices < most


@dataclass(frozen=True, slots=True)
class Job:
    """A job and how far it is. steps_done: in its newest complete checkpoint, or at its end; never falls.

    repeated_steps: optimizer steps that were done after a checkpoint and lost with it. attempts: made so far.
    next_plan: what its next attempt runs, where that was decided while the last one was still to end;
    next_devices: the devices of it in domains that were bound anew (see `Attempt.devices`).
    retry_s: until when it is not tried again, as it failed; None where nothing is waited for.
    weights_plan: the plan that its weights lay by when its newest attempt began; None where there was none before.
    decided_s: when its plan was last decided on. launch_s, stop_s: what its last start took, and the last stop it
    was asked for; None where nobody saw one.
    """

    spec: JobSpec
    phase: JobPhase = JobPhase.QUEUED
    steps_done: int = 0
    repeated_steps: int = 0
    attempts: int = 0
    failures: int = 0
    is_cancelled: bool = False
    next_plan: TrainingPlan | None = None
    next_devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    retry_s: float | None = None
    weights_plan: TrainingPlan | None = None
    decided_s: float | None = None
    launch_s: float | None = None
    stop_s: float | None = None

    @property
    def restart_s(self) -> float | None:
        """What a restart takes by the job's own measure; until it was stopped once, a stop as long as a start."""
        if self.launch_s is None:
            return None
        return self.launch_s + (self.launch_s if self.stop_s is None else self.stop_s)


@dataclass(frozen=True, slots=True)
class Part:
    """One domain's part of an attempt; `seen_s`: when its driver last spoke of it."""

    phase: PartPhase = PartPhase.WAITING
    seen_s: float = 0.0
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job under one plan. It is on disk before any `Start` for it goes out, so ids never come twice.

    step: optimizer steps done in the job, as reported. checkpoint_step: of them in a complete checkpoint.
    is_stopping: it was asked to end (checkpoint first), for `reason`; what follows is another attempt or the end.
    devices: by domain, the numbers of its devices in order of copy, stage and rank, where the intra-domain agent
        chose them; elsewhere the domain's driver does.
    moved_s: when the weights will lie by its plan, by links as they were when they left; None where they have no
        path yet.
    """

    id: str
    job: str
    number: int
    plan: TrainingPlan
    started_s: float
    from_step: int
    parts: Mapping[str, Part]
    step: int = 0
    checkpoint_step: int = 0
    step_time_s: float | None = None
    is_stopping: bool = False
    reason: str = ""
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    moved_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether no part of it runs any more."""
        return all(part.phase.is_over for part in self.parts.values())

    def left_s(self, now_s: float) -> float:
        """Return for how long weights are under way to its plan: not past its first step, inf without a path."""
        if self.step > self.from_step:
            return 0.0
        return math.inf if self.moved_s is None else max(0.0, self.moved_s - now_s)


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain as its driver last saw it.

    num_devices: that our jobs may use, those in use by them included. speed: of a device against nominal.
    silent_since_s: the driver does not answer (`silence`: why); what ran here is lost after lost_after_s.
    is_drained: nothing new starts here, what runs is moved away.
    devices: the speed of each, 0 for one that is lost or taken; empty where the driver cannot tell.
    recent: when the speed changed, and to what, oldest first; empty as long as it was nominal.
    """

    name: str
    num_devices: int
    seen_s: float
    speed: float = 1.0
    queue: int = 0
    silent_since_s: float | None = None
    is_drained: bool = False
    devices: tuple[float, ...] = ()
    recent: tuple[tuple[float, float], ...] = ()
    lost_after_s: float = 60.0
    silence: str = ""

    @property
    def capacity(self) -> tuple[float, ...]:
        """Speeds of the devices as far as they are reported; others are as fast as the domain."""
        return self.devices or (self.speed,) * self.num_devices


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """What is believed of one directed link, relative to the fleet file's bandwidth.

    factor: level of the present regime, a share of nominal. spread: standard deviation of the logarithm of single
    measurements around it. seen_s: the newest measurement. latency_s: one-way, None where it was not measured.
    recent: measurements that the filter still weighs, oldest first, as (at_s, factor).
    since_s: when the present level began.
    """

    factor: float = 1.0
    spread: float = 0.0
    seen_s: float | None = None
    latency_s: float | None = None
    recent: tuple[tuple[float, float], ...] = ()
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was submitted. Acknowledged to the user once the store has it."""

    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A user cancelled a job. Acknowledged once the store has it."""

    job: str


@dataclass(frozen=True, slots=True)
class Drained:
    """A user drained a domain (or undid it). Acknowledged once the store has it."""

    domain: str
    is_drained: bool = True


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """A driver answered: what its domain has for us, and every attempt it knows of.

    An attempt that runs and is not among `parts` is over: it was lost with its processes. transfers: what ranks
    reported lately, the same ones again and again. devices: as in `DomainView`; then they say how many there are
    and how fast the domain is, which is as its median device.
    """

    domain: str
    at_s: float
    num_devices: int
    parts: tuple[PartSeen, ...] = ()
    speed: float = 1.0
    queue: int = 0
    transfers: tuple[Transfer, ...] = ()
    devices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PartSeen:
    """What a driver knows of an attempt in its domain. step, checkpoint_step: None where nothing is reported.

    first_step: the first step that this attempt reported. launch_s: from its start until that step began. stop_s:
    from the request to stop until it was over. Both by the clock of the domain alone.
    """

    attempt: str
    phase: PartPhase
    step: int | None = None
    checkpoint_step: int | None = None
    step_time_s: float | None = None
    exit_code: int | None = None
    message: str = ""
    first_step: int | None = None
    launch_s: float | None = None
    stop_s: float | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that a job moved between domains, by the clock of the domain that says so."""

    source: str
    dest: str
    at_s: float
    num_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DomainSilent:
    """A driver did not answer before its deadline, or failed. lost_after_s: None for the scheduler's own."""

    domain: str
    at_s: float
    message: str = ""
    lost_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkSeen:
    """A probe, or a transfer that a job reported. bandwidth_bytes_per_s 0: nothing came through."""

    source: str
    dest: str
    at_s: float
    bandwidth_bytes_per_s: float
    latency_s: float | None = None


Observation: TypeAlias = Submitted | Cancelled | Drained | DomainSeen | DomainSilent | LinkSeen


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision is made on. `inbox`: observations since the last step, in order of arrival.

    fleet: nominal domains and links. jobs, attempts: those not over, and those that ended in the last step.
    """

    fleet: Fleet
    jobs: Mapping[str, Job] = field(default_factory=dict)
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    domains: Mapping[str, DomainView] = field(default_factory=dict)
    links: Mapping[Pair, LinkEstimate] = field(default_factory=dict)
    inbox: tuple[Observation, ...] = ()

    @property
    def live(self) -> tuple[Attempt, ...]:
        """Attempts of which something may still run."""
        return tuple(attempt for attempt in self.attempts.values() if not attempt.is_over)


@dataclass(frozen=True, slots=True)
class Start:
    """Run a domain's part of an attempt. Repeated until the part is seen; the second time changes nothing."""

    domain: str
    attempt: Attempt
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """Checkpoint and end a domain's part within the grace, then kill it. Repeated until the part is over."""

    domain: str
    attempt: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure a directed link; its bandwidth comes back as `LinkSeen`."""

    source: str
    dest: str


Action: TypeAlias = Start | Stop | Probe
