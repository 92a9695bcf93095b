"""The jobs of all environments, the chance of one step, and what a step brings: plain arrays of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from array_api_compat import array_namespace

from strata.learning.worlds.links import LinkChance
from strata.training.replan.arrays import Array, Bools, Floats, Ints, fill


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
    def none(cls, like: Floats, slots: int) -> Jobs:
        """Return empty places of as many environments as `like` [N] has rows, and where it is."""
        xp, shape = array_namespace(like), (len(like), slots + 1)
        kind, plan = (xp.zeros(shape, dtype=xp.int64, device=like.device) for _ in range(2))
        left, due, pause, moved = (xp.zeros(shape, dtype=xp.float64, device=like.device) for _ in range(4))
        return cls(kind, plan, left, due + inf, pause, moved)

    def parts(self) -> Iterator[tuple[Array, float]]:
        """Yield each array and what it holds at an empty place."""
        for array in (self.kind, self.plan, self.left_s, self.pause_s, self.moved):
            yield array, 0
        yield self.due_s, inf

    def clear(self, where: Bools) -> None:
        """Empty some of the slots, [N, J]."""
        for array, empty in self.parts():
            fill(array[:, : where.shape[1]], where, empty)


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
    phase: Floats | None = None
    preference: Floats | None = None


@dataclass(frozen=True, slots=True)
class WorldOutcome:
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
