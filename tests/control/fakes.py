"""A scheduler in virtual time on domains that do as they are told: real threads and store, no processes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.daemon import Daemon, Sites
from strata.control.policies import exact
from strata.control.state import DomainSeen, PartPhase, PartSeen
from strata.control.store import Store
from strata.errors import StrataError
from strata.fleet.schema import load_fleet
from strata.training.environment.network import scaled
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job

SEED = load_fleet("seed").only(["East_DataCenter", "West_DataCenter"])
FLEET = SEED.with_links(scaled(link, bandwidth=1000.0) for link in SEED.links.values())
EAST, WEST = (domain.name for domain in FLEET.domains)
STEPS = 1000
PACE = 1.0
"""Steps a second, wherever it runs; a checkpoint is made every tenth."""


def piece(name="a", **run):
    document = {
        "apiVersion": "strata/v1alpha1", "kind": "TrainingJob", "name": name, "model": "opt-350m",
        "train": {"global_batch": 64, "sequence": 1024},
        "run": {"command": ["train"], "steps": STEPS, "resume": True, **run},
    }  # fmt: skip
    return {"document": document, "texts": {}}


class FakeDriver:
    """One domain. fails: what its API says. answers: cleared, calls hang. starts: those that did something.

    Its parts train as long as all parts of the attempt run somewhere, whether anybody can see them or not.
    """

    every_s, lost_after_s = 0.002, 60.0

    def __init__(self, world, domain):
        self.world, self.domain = world, domain
        self.fails, self.calls, self.num_devices = "", 0, 8
        self.answers = threading.Event()
        self.answers.set()
        self.starts, self.phases = [], {}

    def _call(self):
        self.answers.wait()
        self.calls += 1
        if self.fails:
            raise StrataError(self.fails)

    def observe(self, now_s):
        self._call()
        with self.world.lock:
            parts = tuple(self.world.part(id_, self) for id_ in self.phases)
            return DomainSeen(self.domain, now_s, self.num_devices, parts)

    def start(self, start):
        self._call()
        with self.world.lock:
            if start.attempt.id not in self.phases:
                self.starts.append(start.attempt.id)
                self.phases[start.attempt.id] = PartPhase.RUNNING
                self.world.begin(start.attempt)

    def stop(self, attempt, *, grace_s):
        self._call()
        with self.world.lock:
            if self.phases.setdefault(attempt, PartPhase.ENDED) is PartPhase.RUNNING:
                self.phases[attempt] = PartPhase.ENDED
                self.world.save(attempt)

    def logs(self, attempt, *, follow=False):
        yield f"{attempt} in {self.domain}"
        while follow and self.phases[attempt] is PartPhase.RUNNING:
            yield None


class World:
    """The domains, what trains in them, and a daemon whose clock only `passes` moves."""

    def __init__(self, folder, fleet=FLEET):
        self.now_s, self.lock, self.stack = 1000.0, threading.RLock(), ExitStack()
        self.folder, self.fleet = folder, fleet
        self.drivers = {name: FakeDriver(self, name) for name in (EAST, WEST)}
        self.runs, self.saved, self.trained, self.jobs = {}, 0, 0, {}
        self.up()

    def sites(self, names=(EAST, WEST)):
        return Sites(self.fleet.only(names), {name: self.drivers[name] for name in names})

    def up(self, *, names=(EAST, WEST)):
        self.store = self.stack.enter_context(Store(self.folder / "s.db"))
        self.named = names
        self.daemon = Daemon(
            self.store, Scheduler(exact, planner), self.sites(names), reread=lambda: self.sites(self.named),
            clock=lambda: self.now_s,
        )  # fmt: skip

    def down(self):
        for apart in self.daemon._apart.values():
            apart.close()
        self.stack.close()

    def begin(self, attempt):
        known = self.runs.setdefault(attempt.id, [attempt, 0])
        if len(known) == 2:
            known[1:] = [attempt.from_step, attempt.from_step]

    def part(self, id_, driver):
        _, first, step = self.runs.get(id_, (None, 0, 0))
        return PartSeen(id_, driver.phases[id_], step, self.saved, first_step=first + 1 if step > first else None)

    def save(self, id_):
        if id_ in self.runs:
            self.saved = max(self.saved, self.runs[id_][2])

    def passes(self, seconds, *, every_s=5.0):
        """Let time pass: domains train, drivers look, the daemon takes turns."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            with self.lock:
                self.now_s += every_s
                for id_ in self.runs:
                    self._train(id_, every_s)
            self.look()
            self.jobs |= self.daemon.turn().snapshot.jobs  # those that are over leave the daemon's
            self.look()  # what was decided is carried out

    def look(self):
        for driver in self.daemon.drivers.values():
            if driver.answers.is_set():
                before, deadline = driver.calls, time.monotonic() + 300
                while driver.calls < before + 3 and driver.answers.is_set():
                    assert time.monotonic() < deadline, "a driver is not called"
                    time.sleep(0.001)

    def _train(self, id_, seconds):
        attempt, _, step = self.runs[id_]
        phases = [self.drivers[name].phases.get(id_) for name in attempt.parts]
        if phases == [PartPhase.RUNNING] * len(phases):
            done = min(STEPS, step + round(seconds * PACE))
            self.trained += done - step
            self.runs[id_][2] = done
            self.saved = max(self.saved, done // 10 * 10)
            if done == STEPS:
                for name in attempt.parts:
                    self.drivers[name].phases[id_] = PartPhase.ENDED

    @property
    def job(self):
        return self.jobs["a"]


def on(*domains):
    layers = len(load_job("opt-350m").layers)
    return TrainingPlan(tuple(Pipeline((Stage(name, 0, layers, 1),), 8, 32) for name in domains), 1)


@cache
def _candidates(names):
    plans = [on(*group) for group in ((EAST, WEST), (EAST,), (WEST,)) if set(group) <= set(names)]
    fleet = FLEET.only(names)
    return Candidates(fleet, replace(load_job("opt-350m"), name="a"), plans)


def planner(fleet, _job):
    return _candidates(tuple(domain.name for domain in fleet.domains))
