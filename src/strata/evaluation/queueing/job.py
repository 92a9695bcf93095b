"""A job of a trace: what it asks for, how long it really takes, and what its user said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One training job.

    home: the domain of the team that sends it.
    work_node_s: node-seconds at nominal speed; only the simulation knows them.
    declared_node_s: what the user said it would be; what schedulers may use.
    deadline_s: when it should have ended, inf for most.
    gradient_bytes: what a step sums between domains. step_s: a step inside one domain.
    """

    number: int
    arrival_s: float
    home: int
    nodes: int
    work_node_s: float
    declared_node_s: float
    deadline_s: float
    gradient_bytes: float
    step_s: float
