"""The re-planning world: N environments of jobs on fleets whose links, loads and jobs change, stepped at once.

A step is one interval. In each environment one job is in turn: the head of the queue, or one of the running
jobs, round robin; the action is one of its options (0: it waits, or once it runs keeps its plan). Then
all running jobs run one interval, a switch burning the first part of it, and links, loads and the queue move on.

Jobs that use the same pair of domains share it equally (the max-min fair share of equal demands; both directions
count as used). A domain's devices are held by plans or by small local jobs, which are a fluid that never gives
way: a plan whose devices are not free cannot be taken.

All chance of a step is one `Chance`, drawn before anything is decided: one seed gives one course of links, loads
and arrivals whatever the policy does. Episodes end by time alone (truncation). An environment whose episode has
ended starts the next at the following step, which ignores its action and pays nothing (Gymnasium's NEXT_STEP).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.training.replan.jobs import Chance, Jobs, Outcome
from strata.training.replan.links import GRADES, LinkChance, LinkWorld
from strata.training.replan.pool import Pool
from strata.training.replan.response import step_s
from strata.training.replan.settings import WorldSettings
from strata.workload.arrivals import TRACES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LONGEST_QUEUE: Final = 1000
"""Jobs that wait at most; later ones go elsewhere."""

_RUNS: Final = 4096
"""Quantiles of background jobs that are tabulated."""

_DRAIN_S: Final = 3600.0
"""Local jobs want as many devices as would finish all their work in this time."""

_LOCAL_MEMORY: Final = 0.5
"""Share of a device's memory that a local job uses: assumed."""


class World:
    """N environments over the instances of a pool; all arrays have the environment first.

    instance [N]; row [N, J + 1]: row of the pool of each job's kind; time_s, step_index [N]; preference [N, 3];
    jobs, links; load, background [N, K]: load factor, devices held by local jobs; backlog_s [N, K]: device-seconds
    of local jobs that wait or run; up [N, K]: False for a domain that is gone; waiting [N]: jobs in the queue,
    head included; turn [N]: place of the job in turn, J for the head of the queue, -1 where there is no job.
    """

    def __init__(self, pool: Pool, num_envs: int, *, settings: WorldSettings) -> None:
        self.pool, self.num_envs, self.settings = pool, num_envs, settings
        self.slots = settings.slots
        self._link_world = LinkWorld(settings)
        self.by_link, self.plan_terms = pool.by_link(), pool.terms()
        #: Devices [K, P, R].
        self.needs = np.ascontiguousarray(pool.needs.T, dtype=np.float32)
        self._envs = np.arange(num_envs)
        self._begins = np.ones(num_envs, dtype=bool)
        trace = TRACES[settings.trace]
        grid = (np.arange(_RUNS) + 0.5) / _RUNS
        #: Device-seconds of small local jobs, by quantile.
        self._local_s = trace.run_time_s(grid)
        self._trace = trace
        self.instance = np.zeros(num_envs, dtype=np.int64)

    @property
    def row(self) -> Ints:
        """Return the row of the pool of each job [N, J + 1]."""
        return np.asarray(self.instance[:, None] * self.pool.num_kinds + self.jobs.kind)

    @property
    def links_ahead(self) -> NDArray[np.float32]:
        """Return 1 / bandwidth relative to nominal as seen now and expected at HORIZONS, [H, Q, N]."""
        return self._link_world.ahead(self.links, self.time_s[:, None])

    @property
    def links_stay(self) -> NDArray[np.float32]:
        """Return the chance [N, Q] that each pair's regime is the same a step later."""
        return self._link_world.stay(self.links)

    @property
    def is_crowded(self) -> bool:
        """Whether devices can be lost, or held by anybody else than the one job there is."""
        return self.slots > 1 or self.settings.background_share > 0 or self.settings.outages_per_day > 0

    def draw(self, rng: np.random.Generator, *, start: bool = False) -> Chance:
        """Draw what a step needs; with `start` also what the start of an episode needs."""
        n, k, settings = self.num_envs, self.pool.num_domains, self.settings
        pairs = (n, self.pool.num_pairs)
        links = LinkChance.draw(rng, pairs, settings)
        load = rng.random((n, k)) if settings.load_half_width else np.zeros((n, k))
        outage = rng.random((n, k)) if settings.outages_per_day else np.ones((n, k))
        arriving = settings.jobs_per_hour * settings.interval_s / 3600
        arrivals = rng.poisson(arriving, n) if arriving else np.zeros(n, dtype=np.int64)
        local, size = np.zeros((n, k), dtype=np.int64), np.zeros((n, k))
        if settings.background_share:
            wanted_s = settings.background_share * self.pool.devices * settings.interval_s
            rate = wanted_s / self._local_s.mean()  # [I, K]
            local, size = rng.poisson(rate[self.instance]), rng.random((n, k))
        job = rng.random((n, 4)) if arriving or start else np.zeros((n, 4))
        if not start:
            return Chance(links, load, outage, arrivals, local, size, job)
        return Chance(
            links, load, outage, arrivals, local, size, job, rng.random(n), rng.random((*pairs, 2)),
            (2 * np.pi * rng.random(pairs)).astype(np.float32), rng.standard_exponential((n, 3)),
        )  # fmt: skip

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode in every environment."""
        self.begin(self.draw(rng, start=True))

    def begin(self, chance: Chance) -> None:
        """Begin an episode in every environment, under given chance: `reset` is this after `draw`."""
        n, k = self.num_envs, self.pool.num_domains
        self.instance = np.zeros(n, dtype=np.int64)
        self.step_index, self.time_s = np.zeros(n, dtype=np.int64), np.zeros(n)
        self.preference, self.jobs = np.zeros((n, 3)), Jobs.none(n, self.slots)
        self.up = np.ones((n, k), dtype=bool)
        self.load, self.background, self.backlog_s = np.ones((n, k)), np.zeros((n, k)), np.zeros((n, k))
        self.waiting, self.turn = np.zeros(n, dtype=np.int64), np.full(n, -1)
        self.links = self._fresh_links(chance)
        self._begin(np.ones(n, dtype=bool), chance)
        self._begins = np.zeros(n, dtype=bool)
        self._next_turn()

    def step(self, picks: Ints, rng: np.random.Generator) -> Outcome:
        """Take option `picks` [N] of the job in turn in each environment, and run one interval."""
        return self.advance(picks, self.draw(rng, start=bool(self._begins.any())))

    def advance(self, picks: Ints, chance: Chance) -> Outcome:
        """Run one interval under given chance: `step` is this after `draw`."""
        started = self._begins
        switched, refused = self._apply(np.asarray(picks), ~started)
        reward, finished, missed = self._run()
        for part in (reward, finished, missed):
            part[started] = 0
        self.step_index = self.step_index + 1
        self.time_s = self.time_s + self.settings.interval_s
        self._link_world.step(self.links, chance.links, self.time_s[:, None])
        self._lose(chance)
        self._move_domains(chance)
        self._arrive(chance)
        if started.any():
            self._begin(started, chance)
        ended = self.step_index >= self.settings.episode_steps
        self._begins = ended
        self._next_turn()
        scalar = (reward * self.preference).sum(axis=1)
        return Outcome(reward, scalar, ended, started, switched, refused, finished, missed)

    def free(self) -> Floats:
        """Return the devices [N, K] that neither local jobs nor plans hold."""
        held = self._of_plans(self.pool.needs).sum(axis=1)
        return np.asarray((self.pool.devices[self.instance] - self.background) * self.up - held)

    def utilisation(self) -> tuple[Floats, Floats, Floats]:
        """Return per domain [N, K] the share of devices and of memory in use, and the local jobs that wait."""
        total = np.maximum(self.pool.devices[self.instance], 1.0)
        held = self._of_plans(self.pool.needs).sum(axis=1)
        memory = self._of_plans(self.pool.memory).sum(axis=1) + _LOCAL_MEMORY * self.background / total
        queue = np.maximum(self.backlog_s / _DRAIN_S - self.background, 0.0) * _DRAIN_S / self._local_s.mean()
        return (held + self.background) / total, memory, queue

    def users(self) -> Ints:
        """Return how many jobs use each pair [N, Q + 1]; the last column counts padding."""
        width = self.pool.num_pairs + 1
        pair = self._of_plans(self.pool.pair)[:, : self.slots]
        flat = pair + (self._envs * width)[:, None, None]
        return np.bincount(flat.ravel(), minlength=self.num_envs * width).reshape(-1, width)

    def _of_plans(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the entries of every job's present plan in a table of the pool, [N, J + 1, ...]."""
        return _entries(table, self.row, self.jobs.plan)

    def _apply(self, picks: Ints, alive: Bools) -> tuple[Bools, Bools]:
        """Put the job in turn on its option, where that is another than it has; returns where, and where not."""
        jobs, pool, place = self.jobs, self.pool, self.turn
        envs = self._envs
        before = jobs.plan[envs, place]
        changes: Bools = np.asarray(alive & (place >= 0) & (picks != before) & (picks > 0))
        assert pool.exists[self.row[envs, place], picks][changes].all(), "an option that does not exist"
        where = np.flatnonzero(changes)
        refused = np.zeros_like(changes)
        if not len(where):
            return changes, refused
        if self.is_crowded:
            row = self.row[where, place[where]]
            room = self.free()[where] + pool.needs[row, before[where]]
            refused[where] = (pool.needs[row, picks[where]] > room + 1e-9).any(axis=1)
            changes &= ~refused
            where = np.flatnonzero(changes)
        spot, pick, old = place[where], picks[where], before[where]
        row = self.row[where, spot]
        starts = old == 0
        # The first start costs nothing: all plans load weights from storage alike.
        pause = np.where(pool.moves[row, old, pick], pool.moved_s[row, old, pick] + self.settings.restart_s, 0.0)
        jobs.pause_s[where, spot] += np.where(starts, 0.0, pause)
        jobs.moved[where, spot] += np.where(starts, 0.0, pool.moved[row, old, pick])
        jobs.plan[where, spot] = pick
        queued = where[spot == self.slots]
        if len(queued):
            slot = (jobs.left_s[queued, : self.slots] <= 0).argmax(axis=1)
            for array in (jobs.kind, jobs.plan, jobs.left_s, jobs.due_s, jobs.pause_s, jobs.moved):
                array[queued, slot] = array[queued, self.slots]
            jobs.clear((queued, self.slots))
            self.waiting[queued] -= 1
        return changes, refused

    def _run(self) -> tuple[Floats, Ints, Ints]:
        """Run every slot for one interval; returns reward, jobs finished, deadlines missed."""
        jobs, pool, settings, j = self.jobs, self.pool, self.settings, self.slots
        row, plan = self.row[:, :j], jobs.plan[:, :j]
        running = plan > 0
        step = self._step_s(row, plan)
        awake = np.maximum(0.0, 1 - jobs.pause_s[:, :j] / settings.interval_s) * running
        jobs.pause_s[:, :j] = np.maximum(0.0, jobs.pause_s[:, :j] - settings.interval_s * running)
        speed = pool.reference_s[row] / step
        # What the last part of a job does not need of the interval is not counted.
        done = np.minimum(awake * speed * settings.interval_s, jobs.left_s[:, :j])
        part = done / np.where(running, np.maximum(speed, 1e-12), 1.0) / settings.interval_s
        usd = pool.usd[row, plan] * (part > 0)
        steps = settings.interval_s / pool.reference_s[row]
        paid = np.where(running, usd + jobs.moved[:, :j] / steps, 0.0)
        jobs.moved[:, :j] = 0.0
        there = jobs.left_s[:, :j] > 0
        jobs.left_s[:, :j] -= done
        over = running & (jobs.left_s[:, :j] <= 1e-9)
        now_s = self.time_s[:, None] + settings.interval_s
        late = (jobs.left_s > 1e-9) | np.pad(over, ((0, 0), (0, 1)))
        late &= now_s > jobs.due_s
        jobs.due_s[late] = np.inf
        reward = np.stack([done / settings.interval_s, part * pool.busy_s[row, plan] / step, -paid], axis=-1)
        reward = reward.sum(axis=1)
        stopped = (there & ~running).sum(axis=1)
        reward[:, 2] -= stopped + np.minimum(self.waiting, j - there.sum(axis=1))
        missed = late.sum(axis=1)
        reward[:, 0] -= settings.deadline_penalty * missed
        if over.any():
            jobs.clear(np.nonzero(np.pad(over, ((0, 0), (0, 1)))))
        return reward / j, over.sum(axis=1), missed

    def _step_s(self, row: Ints, plan: Ints) -> Floats:
        """Return the step time of each slot's plan on the links as they are, shared [N, J]; inf without a plan."""
        pool = self.pool
        pair = _entries(pool.pair, row, plan)
        inverse = np.zeros((self.num_envs, pool.num_pairs + 1))
        inverse[:, :-1] = self.users()[:, :-1] / self.links.factor
        flat = pair + (self._envs * inverse.shape[1])[:, None, None]
        wait, lag = _entries(pool.wait_s, row, plan), _entries(pool.lag_s, row, plan)
        if self.settings.latency_half_width:
            late = np.pad(self.links.lateness, ((0, 0), (0, 1))).ravel()[flat]
            wait, lag = wait * late, lag * late.max(axis=-1)
        slow: Any = 1.0
        if self.settings.load_half_width:
            slow = ((_entries(pool.needs, row, plan) > 0) * self.load[:, None, :]).max(axis=-1, initial=1.0)
        return np.asarray(step_s(
            _entries(pool.compute_s, row, plan), _entries(pool.hidden_s, row, plan),
            _entries(pool.serial_s, row, plan), _entries(pool.steady_s, row, plan), wait, lag,
            inverse.ravel().take(flat), slow=slow,
        ))  # fmt: skip

    def _move_domains(self, chance: Chance) -> None:
        settings, total = self.settings, self.pool.devices[self.instance]
        if settings.load_half_width:
            self.load = np.maximum(1.0, 1 + settings.load_half_width * (2 * chance.load - 1))
        if settings.background_share:
            # The jobs that arrive in one interval are alike: one draw of the run time stands for all of them.
            each = self._local_s[(chance.local_size * _RUNS).astype(np.int64)]
            done = self.background * settings.interval_s
            self.backlog_s = np.maximum(self.backlog_s - done, 0.0) + chance.local * each
            held = self._of_plans(self.pool.needs).sum(axis=1)
            room = np.maximum(np.minimum(settings.background_cap * total, total - held), 0.0) * self.up
            self.background = np.floor(np.minimum(self.backlog_s / _DRAIN_S, room))

    def _lose(self, chance: Chance) -> None:
        """Let domains go and come back; jobs that ran there stop, and restart wherever they go next."""
        settings, jobs = self.settings, self.jobs
        if not settings.outages_per_day:
            return
        fails = settings.outages_per_day * settings.interval_s / 86400
        back = min(1.0, settings.interval_s / settings.outage_s)
        self.up = np.where(self.up, chance.outage >= fails, chance.outage < back)
        if self.up.all():
            return
        self.background = self.background * self.up
        stops = (self._of_plans(self.pool.needs) * ~self.up[:, None]).any(axis=-1)
        jobs.plan[stops] = 0
        jobs.pause_s[stops] = settings.restart_s

    def _arrive(self, chance: Chance) -> None:
        """Let jobs join the queue; where it has no head, the next one in it steps forward."""
        if not self.settings.jobs_per_hour:
            return
        self.waiting = np.minimum(self.waiting + chance.arrivals, LONGEST_QUEUE)
        self._head((self.waiting > 0) & (self.jobs.left_s[:, self.slots] <= 0), chance.job)

    def _head(self, where: Bools, job: Floats) -> None:
        settings, jobs, at = self.settings, self.jobs, self.slots
        rows = np.flatnonzero(where)
        if not len(rows):
            return
        kind, run, timed, slack = job[rows].T
        jobs.kind[rows, at] = (kind * self.pool.num_kinds).astype(np.int64)
        if not settings.jobs_per_hour:
            jobs.left_s[rows, at] = np.inf
            return
        left_s = self._trace.run_time_s(run, least_s=settings.least_run_s)
        jobs.left_s[rows, at] = left_s
        low, high = settings.deadline_slack
        due_s = self.time_s[rows] + left_s * (low + slack * (high - low))
        jobs.due_s[rows, at] = np.where(timed < settings.deadline_share, due_s, np.inf)

    def _fresh_links(self, chance: Chance) -> Any:
        assert chance.chain is not None
        assert chance.phase is not None
        grade = (chance.chain[..., 0] * GRADES).astype(np.int64)
        announced = chance.chain[..., 1] < self.settings.precursor_share
        return self._link_world.start(chance.links, grade + GRADES * announced, chance.phase)

    def _begin(self, where: Bools, chance: Chance) -> None:
        """Begin an episode in some environments."""
        assert chance.begin is not None
        assert chance.preference is not None
        fresh = self._fresh_links(chance)
        for name in ("chain", "regime", "noise", "phase", "factor", "lateness", "seen", "seen_regime", "lost"):
            old, new = getattr(self.links, name), getattr(fresh, name)
            setattr(self.links, name, np.where(where[:, None], new, old))
        self.links.past = [
            (np.where(where[:, None], fresh.factor, factor), np.where(where[:, None], fresh.regime, regime))
            for factor, regime in self.links.past
        ]
        picked = (chance.begin * len(self.pool.instances)).astype(np.int64)
        self.instance = np.where(where, picked, self.instance)
        self.step_index = np.where(where, 0, self.step_index)
        self.time_s = np.where(where, 0.0, self.time_s)
        drawn = chance.preference / chance.preference.sum(axis=1, keepdims=True)
        fixed = self.settings.preference
        self.preference = np.where(where[:, None], drawn if fixed is None else np.array(fixed), self.preference)
        self.load, self.up = np.where(where[:, None], 1.0, self.load), where[:, None] | self.up
        # Local jobs start at what they hold on average.
        usual = np.floor(self.settings.background_share * self.pool.devices[self.instance])
        usual = np.minimum(usual, np.floor(self.settings.background_cap * self.pool.devices[self.instance]))
        self.background = np.where(where[:, None], usual, self.background)
        self.backlog_s = np.where(where[:, None], usual * _DRAIN_S, self.backlog_s)
        self.jobs.clear(where)
        self.waiting = np.where(where, 1, self.waiting)
        self._head(where, chance.job)

    def _next_turn(self) -> None:
        """Give the turn to the next place with a job: slots in order, then the queue if a slot is free."""
        j = self.slots
        there = self.jobs.left_s > 0
        there[:, j] &= ~there[:, :j].all(axis=1)
        order = (self.turn[:, None] + 1 + np.arange(j + 1)) % (j + 1)
        at = np.take_along_axis(there, order, axis=1)
        found = np.take_along_axis(order, at.argmax(axis=1)[:, None], axis=1)[:, 0]
        self.turn = np.where(at.any(axis=1), found, -1)


def _entries(table: NDArray[Any], row: Ints, plan: Ints) -> NDArray[Any]:
    """Return table[row, plan]: by one index into its rows, which is twice as fast."""
    return np.asarray(table.reshape(-1, *table.shape[2:]).take(row * table.shape[1] + plan, axis=0))
