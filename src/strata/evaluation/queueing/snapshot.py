"""What a scheduler sees when it is asked where one job should run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.evaluation.queueing.grid import Grid, Placement
from strata.evaluation.queueing.job import QueuedJob


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs. `told_left_node_s`: node-seconds left by what its user said, when it was last touched."""

    job: QueuedJob
    placement: Placement
    links: tuple[int, ...]
    speed: float
    since_s: float
    told_left_node_s: float

    def told_left_s(self, now_s: float) -> float:
        """Return the run time left by what the user said, at the present speed, never below 0 [s]."""
        if self.speed <= 0:
            return float("inf")
        return max(0.0, self.told_left_node_s / (self.job.nodes * self.speed) - (now_s - self.since_s))


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One question: where should `job` run now?

    free: [K] free nodes; for a running job its own are free.
    regimes: of each link. sharing: jobs that span each link; a running job is not counted itself.
    running: all others.
    behind: jobs that may start next, whatever is answered; none of them where `job` has waited so long that
        nobody may overtake it (`is_strict`), unless it starts.
    current: where a running job runs, None for a waiting one.
    """

    grid: Grid
    now_s: float
    job: QueuedJob
    free: tuple[int, ...]
    regimes: tuple[int, ...]
    sharing: tuple[int, ...]
    running: tuple[RunningJob, ...]
    behind: tuple[QueuedJob, ...] = ()
    is_strict: bool = False
    current: RunningJob | None = None


Place = Callable[[Sequence[QueueSnapshot]], list[Placement | None]]
"""Answers many questions at once, each of another simulation; None: wait, or keep what runs."""


@dataclass(frozen=True, slots=True)
class QueueScheduler:
    """How jobs queue and where they go.

    has_home_queues: one first-come-first-served queue a domain; else one for all.
    has_moves: asked again at every step of the links, about spanning jobs too.
    backfill: whether jobs that fit may overtake the head of their queue, until it has waited `patience_s`.
    """

    name: str
    place: Place
    has_home_queues: bool = False
    has_moves: bool = False
    backfill: bool = True
    patience_s: float = 4 * 3600.0
