"""The jobs of all environments, the chance of one step, and what a step brings: plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.training.replan.links import LinkChance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Jobs:
    """All jobs [N, J + 1]: J slots, then the head of the queue. An empty place has `left_s` 0.

    kind: row of the pool less instance x C. plan: 0 while waiting. left_s: work, in seconds of the best single
    domain at nominal links. due_s: time of the deadline, inf for none or once it is missed. pause_s: what is left
    of a switch. moved: egress of a switch yet to be paid.
    """

    kind: Ints
    plan: Ints
    left_s: Floats
    due_s: Floats
    pause_s: Floats
    moved: Floats

    @classmethod
    def none(cls, envs: int, slots: int) -> Jobs:
        """Return empty places."""
        shape = (envs, slots + 1)
        kind, plan = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        return cls(kind, plan, np.zeros(shape), np.full(shape, np.inf), np.zeros(shape), np.zeros(shape))

    def clear(self, where: Any) -> None:
        """Empty some places."""
        for array, empty in (
            (self.kind, 0), (self.plan, 0), (self.left_s, 0.0), (self.due_s, np.inf), (self.pause_s, 0.0),
            (self.moved, 0.0),
        ):  # fmt: skip
            array[where] = empty


@dataclass(frozen=True, slots=True)
class Chance:
    """What one step needs of chance, [N, ...]; uniform in [0, 1) unless said otherwise.

    load, outage [N, K]. arrivals [N] and local [N, K]: numbers of jobs that arrive; local_size [N, K]. job [N, 4]:
    kind, run time, deadline or not, slack of the next head of a queue. begin [N], chain [N, Q, 2], phase [N, Q]
    [rad] and preference [N, 3] (exponential): used by environments whose episode starts; None where none does.
    """

    links: LinkChance
    load: Floats
    outage: Floats
    arrivals: Ints
    local: Ints
    local_size: Floats
    job: Floats
    begin: Floats | None = None
    chain: Floats | None = None
    phase: NDArray[np.float32] | None = None
    preference: Floats | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought, per environment.

    reward   [N, 3]  efficiency (progress relative to the best single domain at nominal links), utilisation
        (useful share of the time of the devices held), minus communication cost (egress a training step relative
        to the job's dearest option); means over the J slots. A slot that a waiting job could use counts as
        (0, 0, -1): to train nothing is not the cheapest way to train.
    scalar   [N]     reward · preference
    ended    [N]     this was the last step of the episode
    started  [N]     the episode began at this step: the action was not used and the reward is 0
    switched [N]     the job in turn changed its plan
    refused  [N]     it was to, but the devices are not free: it waits, or keeps its plan
    finished, missed [N]  jobs that finished, and that did so (or ended the episode) past their deadline
    """

    reward: Floats
    scalar: Floats
    ended: Bools
    started: Bools
    switched: Bools
    refused: Bools
    finished: Ints
    missed: Ints
