"""The re-planning world: N environments of jobs on fleets whose links, loads and jobs change, stepped at once.

A step is one interval. In each environment one job is in turn: the head of the queue, or one of the running
jobs, round robin; the action is one of its options (0: it waits, or once it runs keeps its plan). Then
all running jobs run one interval, a switch burning the first part of it, and links, loads and the queue move on.

Jobs that use the same pair of domains share it equally (the max-min fair share of equal demands; both directions
count as used). A domain's devices are held by plans or by small local jobs, which are a fluid that never gives
way: a plan whose devices are not free cannot be taken.

All chance of a step is one `Chance`, drawn before anything is decided: one seed gives one course of links, loads
and arrivals whatever the policy does. Episodes begin together and end by time alone (truncation); the step after
begins the next, ignores its actions and pays nothing (Gymnasium's NEXT_STEP).

Arrays are NumPy's, or torch's on a device: then everything is there, and no step waits for it (`arrays.py`).
"""

from __future__ import annotations

from math import inf, pi
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from strata.learning.draws import Draws
from strata.learning.worlds.jobs import Chance, Jobs, WorldOutcome
from strata.learning.worlds.links import GRADES, LinkChance, LinkWorld
from strata.learning.worlds.pool import Pool
from strata.learning.worlds.settings import WorldSettings
from strata.training.replan.arrays import (
    Array,
    Bools,
    Floats,
    Ints,
    Singles,
    counted,
    fill,
    first_where,
    may_be_any,
    moved,
    placed,
    rows_of,
    rows_where,
)
from strata.training.replan.response import pair_numbers, step_s
from strata.workload.arrivals import NORMAL, TRACES

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

    instance [N]; row [N, J + 1]: row of the pool of each job's kind; time_s [N]; preference [N, 3];
    jobs, links; load, background [N, K]: load factor, devices held by local jobs; backlog_s [N, K]: device-seconds
    of local jobs that wait or run; up [N, K]: False for a domain that is gone; waiting [N]: jobs in the queue,
    head included; turn [N]: place of the job in turn, J for the head of the queue, -1 where there is no job;
    envs [N]: 0 ... N - 1; pair_numbers [K, K]. step_index: steps of the episode that are gone; begins: whether
    the next step begins an episode.

    device: where its arrays are torch's; None: NumPy's. What is drawn must be there too (`draws.py`).
    """

    def __init__(self, pool: Pool, num_envs: int, *, settings: WorldSettings, device: str | None = None) -> None:
        self.num_envs, self.settings, self.device = num_envs, settings, device
        self.slots = settings.slots
        self.pool = pool.on(device)
        self.link_world = LinkWorld(settings, device)
        self.by_link, self.plan_terms = pool.by_link(device), moved(pool.terms(), device)
        #: Devices [K, P, R].
        self.needs = moved(np.ascontiguousarray(pool.needs.T, dtype=np.float32), device)
        self.xp: Any = array_namespace(self.needs)
        self.envs, self._places = (moved(np.arange(n), device) for n in (num_envs, self.slots + 1))
        self.pair_numbers = moved(pair_numbers(pool.num_domains), device)
        self.step_index, self.begins = 0, True
        self._trace = TRACES[settings.trace]
        #: Device-seconds of small local jobs, by quantile; their mean; jobs that arrive in one interval [I, K].
        local_s = self._trace.run_time_s((np.arange(_RUNS) + 0.5) / _RUNS)
        self._local_s, self._local_mean_s = moved(local_s, device), float(local_s.mean())
        wanted_s = settings.background_share * pool.devices * settings.interval_s
        self._local_rate = moved(wanted_s / self._local_mean_s, device)
        self._preference = None if settings.preference is None else moved(np.array(settings.preference), device)
        self.instance = self._zeros(num_envs, self.xp.int64)

    @property
    def row(self) -> Ints:
        """Return the row of the pool of each job [N, J + 1]."""
        return self.instance[:, None] * self.pool.num_kinds + self.jobs.kind

    def links_ahead(self, *, believes: bool = True) -> Singles:
        """Return 1 / bandwidth relative to nominal as seen now and expected at HORIZONS, [H, Q, N].

        believes: by all measurements; else by the newest, as if it were exact and of now.
        """
        return self.link_world.ahead(self.links, self.time_s[:, None], believes=believes)

    def links_stay(self, *, believes: bool = True) -> Singles:
        """Return the chance [N, Q] that each pair's regime is the same a decision later; believes: as above."""
        return self.link_world.stay(self.links, believes=believes)

    @property
    def is_crowded(self) -> bool:
        """Whether devices can be lost, or held by anybody else than the one job there is."""
        return self.slots > 1 or self.settings.background_share > 0 or self.settings.outages_per_day > 0

    def draw(self, rng: Draws, *, start: bool = False) -> Chance:
        """Draw what a step needs; with `start` also what the start of an episode needs."""
        n, k, settings, xp = self.num_envs, self.pool.num_domains, self.settings, self.xp
        pairs = (n, self.pool.num_pairs)
        links = LinkChance.draw(rng, self._zeros(pairs, xp.float32), settings)
        load = rng.random((n, k)) if settings.load_half_width else self._zeros((n, k))
        outage = rng.random((n, k)) if settings.outages_per_day else self._zeros((n, k)) + 1
        arriving = settings.jobs_per_hour * settings.interval_s / 3600
        arrivals = rng.poisson(arriving, n) if arriving else self._zeros(n, xp.int64)
        local, size = self._zeros((n, k), xp.int64), self._zeros((n, k))
        if settings.background_share:
            local, size = rng.poisson(rows_of(self._local_rate, self.instance)), rng.random((n, k))
        job = rng.random((n, 4)) if arriving or start else self._zeros((n, 4))
        began: tuple[Array, ...] = ()
        if start:
            began = rng.random(n), rng.random((*pairs, 2)), xp.astype(2 * pi * rng.random(pairs), xp.float32)
            began = *began, rng.standard_exponential((n, 3))
        return Chance(links, load, outage, arrivals, local, size, job, *began)

    def reset(self, rng: Draws) -> None:
        """Begin an episode in every environment."""
        self.begin(self.draw(rng, start=True))

    def begin(self, chance: Chance) -> None:
        """Begin an episode in every environment, under given chance: `reset` is this after `draw`."""
        assert chance.begin is not None
        assert chance.chain is not None
        assert chance.phase is not None
        assert chance.preference is not None
        xp, n, settings = self.xp, self.num_envs, self.settings
        self.step_index, self.begins = 0, False
        self.time_s = self._zeros(n)
        grade = xp.astype(chance.chain[..., 0] * GRADES, xp.int64)
        announced = chance.chain[..., 1] < settings.precursor_share
        self.links = self.link_world.start(chance.links, grade + GRADES * announced, chance.phase)
        self.instance = xp.astype(chance.begin * len(self.pool.instances), xp.int64)
        drawn = chance.preference / chance.preference.sum(axis=1)[:, None]
        self.preference = drawn if self._preference is None else 0 * drawn + self._preference
        total = rows_of(self.pool.devices, self.instance)
        self.load, self.up = self._zeros(total.shape) + 1, total > -1
        # Local jobs start at what they hold on average.
        usual = xp.minimum(xp.floor(settings.background_share * total), xp.floor(settings.background_cap * total))
        self.background, self.backlog_s = usual, usual * _DRAIN_S
        self.jobs = Jobs.none(self.time_s, self.slots)
        self.waiting = self._zeros(n, xp.int64) + (not settings.endless)
        self.turn = self._zeros(n, xp.int64) - 1
        if settings.endless:
            self.jobs.kind += xp.astype(chance.job[:, :1] * self.pool.num_kinds, xp.int64)
            self.jobs.left_s[:, : self.slots] = inf
        else:
            self._head(self.waiting > 0, chance.job)
        self._next_turn()

    def step(self, picks: Ints, rng: Draws) -> WorldOutcome:
        """Take option `picks` [N] of the job in turn in each environment, and run one interval."""
        return self.advance(picks, self.draw(rng, start=self.begins))

    def advance(self, picks: Ints, chance: Chance) -> WorldOutcome:
        """Run one interval under given chance: `step` is this after `draw`."""
        xp, n = self.xp, self.num_envs
        nowhere = self._zeros(n, xp.bool)
        if self.begins:
            self.begin(chance)
            nobody = self._zeros(n, xp.int64)
            return WorldOutcome(
                self._zeros((n, 3)), self._zeros(n), nowhere, ~nowhere, nowhere, nowhere, nobody, nobody
            )
        switched, refused = self._apply(picks)
        reward, finished, missed = self._run()
        self.step_index += 1
        self.time_s = self.time_s + self.settings.interval_s
        self.link_world.step(self.links, chance.links, self.time_s[:, None])
        self._lose(chance)
        self._move_domains(chance)
        self._arrive(chance)
        self.begins = self.step_index >= self.settings.episode_steps
        self._next_turn()
        scalar = (reward * self.preference).sum(axis=1)
        ended = ~nowhere if self.begins else nowhere
        return WorldOutcome(reward, scalar, ended, nowhere, switched, refused, finished, missed)

    def free(self) -> Floats:
        """Return the devices [N, K] that neither local jobs nor plans hold."""
        held = self._of_plans(self.pool.needs).sum(axis=1)
        return (rows_of(self.pool.devices, self.instance) - self.background) * self.up - held

    def utilisation(self) -> tuple[Floats, Floats, Floats]:
        """Return per domain [N, K] the share of devices and of memory in use, and the local jobs that wait."""
        total = rows_of(self.pool.devices, self.instance).clip(1.0)
        held = self._of_plans(self.pool.needs).sum(axis=1)
        memory = self._of_plans(self.pool.memory).sum(axis=1) + _LOCAL_MEMORY * self.background / total
        queue = (self.backlog_s / _DRAIN_S - self.background).clip(0.0) * _DRAIN_S / self._local_mean_s
        return (held + self.background) / total, memory, queue

    def users(self) -> Ints:
        """Return how many jobs use each pair [N, Q + 1]; the last column counts padding."""
        width = self.pool.num_pairs + 1
        pair = _entries(self.pool.pair, self.row[:, : self.slots], self.jobs.plan[:, : self.slots])
        flat = pair + (self.envs * width)[:, None, None]
        return counted(flat.reshape(-1), self.num_envs * width).reshape(-1, width)

    def _zeros(self, shape: Any, dtype: Any = None) -> Array:
        return self.xp.zeros(shape, dtype=dtype or self.xp.float64, device=self.envs.device)

    def _of_plans(self, table: Array) -> Array:
        """Return the entries of every job's present plan in a table of the pool, [N, J + 1, ...]."""
        return _entries(table, self.row, self.jobs.plan)

    def _apply(self, picks: Ints) -> tuple[Bools, Bools]:
        """Put the job in turn on its option, where that is another than it has; returns where, and where not."""
        jobs, pool, place, xp = self.jobs, self.pool, self.turn, self.xp
        before = jobs.plan[self.envs, place]
        changes = (place >= 0) & (picks != before) & (picks > 0)
        refused = xp.zeros_like(changes)
        rows, sure = rows_where(changes)
        if not len(rows):
            return changes, refused
        spot, pick, old = place[rows], picks[rows], before[rows]
        row = self.row[rows, spot]
        assert self.device or pool.exists[row, pick].all(), "an option that does not exist"
        if self.is_crowded:
            room = self.free()[rows] + pool.needs[row, old]
            fits = ~(pool.needs[row, pick] > room + 1e-9).any(axis=1)
            refused[rows], sure = sure & ~fits, sure & fits
            changes = changes & ~refused
        # The first start costs nothing: all plans load weights from storage alike.
        pays = sure & (old > 0)
        pause = xp.where(pool.moves[row, old, pick], pool.moved_s[row, old, pick] + self.settings.restart_s, 0.0)
        jobs.pause_s[rows, spot] += xp.where(pays, pause, 0.0)
        jobs.moved[rows, spot] += xp.where(pays, pool.moved[row, old, pick], 0.0)
        jobs.plan[rows, spot] = xp.where(sure, pick, old)
        self._admit(changes & (place == self.slots))
        return changes, refused

    def _admit(self, where: Bools) -> None:
        """Bring heads of queues that were given a plan into the first slot that is free."""
        jobs, head, xp = self.jobs, self.slots, self.xp
        rows, sure = rows_where(where)
        if not len(rows):
            return
        slot = first_where(jobs.left_s[rows, :head] <= 0)
        for array, empty in jobs.parts():
            entry = array[rows, head]
            array[rows, slot] = xp.where(sure, entry, array[rows, slot])
            array[rows, head] = xp.where(sure, empty, entry)
        self.waiting = self.waiting - xp.astype(where, xp.int64)

    def _run(self) -> tuple[Floats, Ints, Ints]:
        """Run every slot for one interval; returns reward, jobs finished, deadlines missed."""
        jobs, pool, settings, j, xp = self.jobs, self.pool, self.settings, self.slots, self.xp
        row, plan, interval_s = self.row[:, :j], jobs.plan[:, :j], self.settings.interval_s
        running = plan > 0
        step = self._step_s(row, plan)
        pause_s = jobs.pause_s[:, :j]
        awake = (1 - pause_s / interval_s).clip(0.0) * running
        jobs.pause_s[:, :j] = xp.where(running, (pause_s - interval_s).clip(0.0), pause_s)
        reference_s = rows_of(pool.reference_s, row)
        speed = reference_s / step
        left_s = jobs.left_s[:, :j]
        there = left_s > 0
        # What the last part of a job does not need of the interval is not counted.
        done = xp.minimum(awake * speed * interval_s, left_s)
        part = done / xp.where(running, speed.clip(1e-12), 1.0) / interval_s
        usd = _entries(pool.usd, row, plan) * (part > 0)
        paid = xp.where(running, usd + jobs.moved[:, :j] / (interval_s / reference_s), 0.0)
        jobs.moved[:, :j] = 0.0
        left_s -= done
        over = running & (left_s <= 1e-9)
        late = jobs.left_s > 1e-9
        late[:, :j] |= over
        late &= self.time_s[:, None] + interval_s > jobs.due_s
        fill(jobs.due_s, late, inf)
        reward = xp.stack([done / interval_s, part * _entries(pool.busy_s, row, plan) / step, -paid], axis=-1)
        reward = reward.sum(axis=1)
        stopped = (there & ~running).sum(axis=1)
        reward[:, 2] -= stopped + xp.minimum(self.waiting, j - there.sum(axis=1))
        missed = late.sum(axis=1)
        reward[:, 0] -= settings.deadline_penalty * xp.astype(missed, xp.float64)
        if may_be_any(over):
            jobs.clear(over)
        return reward / j, over.sum(axis=1), missed

    def _step_s(self, row: Ints, plan: Ints) -> Floats:
        """Return the step time of each slot's plan on the links as they are, shared [N, J]; inf without a plan."""
        pool = self.pool
        pair = _entries(pool.pair, row, plan)
        inverse = self._zeros((self.num_envs, pool.num_pairs + 1))
        inverse[:, :-1] = self.users()[:, :-1]
        inverse[:, :-1] /= self.links.factor
        flat = pair + (self.envs * inverse.shape[1])[:, None, None]
        wait, lag = _entries(pool.wait_s, row, plan), _entries(pool.lag_s, row, plan)
        if self.settings.latency_half_width:
            lateness = self._zeros(inverse.shape, self.links.lateness.dtype)
            lateness[:, :-1] = self.links.lateness
            late = lateness.reshape(-1).take(flat)
            wait, lag = wait * late, lag * self.xp.max(late, axis=-1)
        slow: Any = 1.0
        if self.settings.load_half_width:
            slow = (_entries(pool.needs, row, plan) > 0) * self.load[:, None, :]
            slow = self.xp.max(slow, axis=-1).clip(1.0)
        return step_s(
            _entries(pool.compute_s, row, plan), _entries(pool.hidden_s, row, plan),
            _entries(pool.serial_s, row, plan), _entries(pool.steady_s, row, plan), wait, lag,
            inverse.reshape(-1).take(flat), slow=slow,
        )  # fmt: skip

    def _move_domains(self, chance: Chance) -> None:
        settings, xp = self.settings, self.xp
        if settings.load_half_width:
            self.load = (1 + settings.load_half_width * (2 * chance.load - 1)).clip(1.0)
        if settings.background_share:
            total = rows_of(self.pool.devices, self.instance)
            # The jobs that arrive in one interval are alike: one draw of the run time stands for all of them.
            each = rows_of(self._local_s, xp.astype(chance.local_size * _RUNS, xp.int64))
            done = self.background * settings.interval_s
            self.backlog_s = (self.backlog_s - done).clip(0.0) + chance.local * each
            held = self._of_plans(self.pool.needs).sum(axis=1)
            room = xp.minimum(settings.background_cap * total, total - held).clip(0.0) * self.up
            self.background = xp.floor(xp.minimum(self.backlog_s / _DRAIN_S, room))

    def _lose(self, chance: Chance) -> None:
        """Let domains go and come back; jobs that ran there stop, and restart wherever they go next."""
        settings, jobs = self.settings, self.jobs
        if not settings.outages_per_day:
            return
        fails = settings.outages_per_day * settings.interval_s / 86400
        back = min(1.0, settings.interval_s / settings.outage_s)
        self.up = self.xp.where(self.up, chance.outage >= fails, chance.outage < back)
        if not may_be_any(~self.up):
            return
        self.background = self.background * self.up
        stops = (self._of_plans(self.pool.needs) * ~self.up[:, None]).any(axis=-1)
        fill(jobs.plan, stops, 0)
        fill(jobs.pause_s, stops, settings.restart_s)

    def _arrive(self, chance: Chance) -> None:
        """Let jobs join the queue; where it has no head, the next one in it steps forward."""
        if not self.settings.jobs_per_hour:
            return
        self.waiting = (self.waiting + chance.arrivals).clip(max=LONGEST_QUEUE)
        self._head((self.waiting > 0) & (self.jobs.left_s[:, self.slots] <= 0), chance.job)

    def _head(self, where: Bools, job: Floats) -> None:
        """Put the next job of the queue at its head, where there is none."""
        settings, jobs, xp = self.settings, self.jobs, self.xp
        rows, sure = rows_where(where)
        if not len(rows):
            return
        kind, run, timed, slack = job[rows].T

        def put(array: Array, values: Any) -> None:
            array[rows, self.slots] = xp.where(sure, values, array[rows, self.slots])

        put(jobs.kind, xp.astype(kind * self.pool.num_kinds, xp.int64))
        if not settings.jobs_per_hour:
            put(jobs.left_s, inf)
            return
        normal = tuple(placed(table, job) for table in NORMAL)
        left_s = self._trace.run_time_s(run, least_s=settings.least_run_s, normal=normal)
        put(jobs.left_s, left_s)
        low, high = settings.deadline_slack
        due_s = self.time_s[rows] + left_s * (low + slack * (high - low))
        put(jobs.due_s, xp.where(timed < settings.deadline_share, due_s, inf))

    def _next_turn(self) -> None:
        """Give the turn to the next place with a job: slots in order, then the queue if a slot is free."""
        j, xp = self.slots, self.xp
        there = self.jobs.left_s > 0
        there[:, j] &= ~there[:, :j].all(axis=1)
        order = (self.turn[:, None] + 1 + self._places) % (j + 1)
        at = xp.take_along_axis(there, order, axis=1)
        self.turn = xp.where(at.any(axis=1), order[self.envs, first_where(at)], -1)


def _entries(table: Array, row: Ints, plan: Ints) -> Array:
    """Return table[row, plan]: by one index into its rows, which is twice as fast."""
    return rows_of(table.reshape(-1, *table.shape[2:]), row * table.shape[1] + plan)
