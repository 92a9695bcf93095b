"""Leader election: step by step, and many candidates on a bad day: crashes, pauses, lost answers, odd clocks."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import LEASE
from strata.cluster.api.lease import (
    DURATION_S,
    RENEW_S,
    RETRY_S,
    Elector,
    LeaseCandidate,
    LeaseState,
    released,
    step,
    won,
)
from tests.support.laws import examples

ME, YOU = LeaseCandidate("strata", "ai", "me"), LeaseCandidate("strata", "ai", "you")
WALL = "2026-11-21T19:36:00.000000Z"


def lease(holder, version="7", transitions=3):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions}
    return {
        "metadata": {"name": "strata", "namespace": "ai", "resourceVersion": version, "uid": "u"},
        "spec": {**spec, "acquireTime": "1999-01-01T00:00:00.000000Z", "renewTime": "2999-01-01T00:00:00.000000Z"},
    }


def ask(found, state, now_s):
    return step(found, ME, state, now_s=now_s, wall=WALL)


def test_a_lease_that_is_not_there_is_created():
    _, wanted = ask(None, LeaseState(), 0.0)
    assert wanted["metadata"] == {"name": "strata", "namespace": "ai"}
    assert wanted["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": DURATION_S,
        "leaseTransitions": 0,
        "acquireTime": WALL,
        "renewTime": WALL,
    }


def test_a_held_lease_is_waited_for_by_the_own_clock_whatever_times_it_names():
    state, wanted = ask(lease("you"), LeaseState(), 1000.0)
    assert wanted is None
    state, wanted = ask(lease("you"), state, 1000.0 + DURATION_S - 0.01)
    assert wanted is None
    state, wanted = ask(lease("you"), state, 1000.0 + DURATION_S)
    assert wanted["spec"]["holderIdentity"] == "me"
    assert wanted["spec"]["leaseTransitions"] == 4
    assert wanted["spec"]["acquireTime"] == WALL
    assert wanted["metadata"]["resourceVersion"] == "7", "without it two could take it over at once"


def test_every_renewal_by_another_starts_the_wait_anew():
    state, _ = ask(lease("you", "7"), LeaseState(), 0.0)
    state, _ = ask(lease("you", "8"), state, 14.0)
    assert ask(lease("you", "8"), state, 28.9)[1] is None
    assert ask(lease("you", "8"), state, 29.0)[1] is not None


def test_a_lease_given_back_is_taken_at_once():
    given_back = released(lease("you"), YOU, wall=WALL)
    assert ask(given_back, LeaseState(), 0.0)[1]["spec"]["leaseDurationSeconds"] == DURATION_S


def test_nobody_gives_back_another_s_lease():
    assert released(lease("you"), ME, wall=WALL) is None


def test_the_own_lease_is_renewed_as_the_same_term():
    state, wanted = ask(lease("me"), LeaseState("6", 0.0, 100.0), 5.0)
    assert wanted["spec"]["leaseTransitions"] == 3
    assert wanted["spec"]["acquireTime"].startswith("1999")
    assert wanted["spec"]["renewTime"] == WALL
    assert state.leads(99.0)


def test_the_lease_in_another_s_hand_ends_the_belief_at_once():
    state, wanted = ask(lease("you", "8"), LeaseState("7", 0.0, 100.0), 5.0)
    assert wanted is None
    assert not state.leads(5.0)


def test_belief_counts_from_before_the_question():
    state = won(lease("me", "8"), asked_s=5.0, now_s=13.0)
    assert state.leads(5.0 + RENEW_S - 0.01)
    assert not state.leads(5.0 + RENEW_S)


class Store:
    """One Lease, linearizable: each request happens at one instant."""

    def __init__(self):
        self.held, self.version = None, 0

    def get(self, kind=LEASE, name="strata", namespace="ai"):
        return self.held

    def write(self, wanted):
        there = self.held and self.held["metadata"]["resourceVersion"]
        if wanted["metadata"].get("resourceVersion") != there:
            raise ApiFailed("the object has been modified", status=409)
        self.version += 1
        self.held = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": str(self.version)}}
        return self.held

    def create(self, kind, wanted):
        return self.write(wanted)

    replace = create


class World:
    """Candidates on machines whose clocks are apart and run unequally, on a network that delays and loses."""

    def __init__(self, seed, candidates, troubled_s):
        self.rng, self.store, self.env = random.Random(seed), Store(), simpy.Environment()
        self.troubled_s, self.leaders = troubled_s, {}
        for number in range(candidates):
            self.env.process(self.machine(number))

    @property
    def is_troubled(self):
        return self.env.now < self.troubled_s

    def leading(self):
        return [who for who, (state, clock) in self.leaders.items() if state.leads(clock())]

    def believes(self, who, state, clock):
        self.leaders[who] = (state, clock)
        assert len(self.leading()) <= 1, f"two lead: {self.leading()}"

    def machine(self, number):
        """A process that crashes and comes back under another identity, until the trouble is over."""
        offset, rate = self.rng.uniform(-1e6, 1e6), self.rng.uniform(0.9, 1.1)
        for life in range(10**6):
            who = f"{number}.{life}"
            running = self.env.process(self.candidate(who, lambda: offset + rate * self.env.now))
            yield self.env.timeout(self.rng.expovariate(1 / 40))
            if not self.is_troubled:
                return
            running.interrupt()
            self.leaders.pop(who, None)
            yield self.env.timeout(self.rng.uniform(0, 5))

    def delay(self):
        long = self.is_troubled and self.rng.random() < 0.1  # a pause of the process, or of the network
        return self.env.timeout(self.rng.uniform(5, 40) if long else self.rng.uniform(0, 0.1))

    def lost(self):
        return self.is_troubled and self.rng.random() < 0.15

    def candidate(self, who, clock):
        me, state = LeaseCandidate("strata", "ai", who), LeaseState()
        while True:
            asked_s = clock()
            yield self.delay()
            found = self.store.get()
            yield self.delay()
            state, wanted = step(found, me, state, now_s=clock(), wall=f"{self.rng.random()}")
            self.believes(who, state, clock)
            if wanted is not None:
                yield self.delay()
                with_answer = not self.lost()
                try:
                    written = self.store.write(wanted)
                except ApiFailed:
                    with_answer = False
                yield self.delay()
                if with_answer:
                    state = won(written, asked_s=asked_s, now_s=clock())
                    self.believes(who, state, clock)
            yield self.env.timeout(RETRY_S * self.rng.uniform(1.0, 2.2))


def run_all(worlds):
    """Run until every pause that began in the trouble (at most three in a row) and a whole Lease are over."""
    for world in worlds:
        while world.env.peek() < world.troubled_s + 3 * 40 + 3 * DURATION_S:
            # A process that was interrupted on purpose has failed, as simpy sees it.
            with suppress(simpy.Interrupt):
                world.env.step()


@examples(100)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_never_two_lead_and_one_does_after_the_trouble(seed, candidates):
    world = World(seed, candidates, troubled_s=300.0)
    run_all([world])
    assert len(world.leading()) == 1


def test_the_world_would_notice_candidates_that_wait_too_little(monkeypatch):
    monkeypatch.setattr("strata.cluster.api.lease.RENEW_S", 3 * DURATION_S)
    with pytest.raises(AssertionError, match="two lead"):
        run_all([World(seed, 4, troubled_s=300.0) for seed in range(50)])


def test_an_elector_leads_says_so_and_gives_the_lease_back():
    store, said, leads = Store(), [], threading.Event()

    def changed(is_leader):
        said.append(is_leader)
        leads.set()

    elector = Elector(store, ME, changed, rng=random.Random(1)).start()
    assert leads.wait(60)
    assert elector.is_leader
    elector.stop(60)
    assert said == [True, False]
    assert not elector.is_leader
    assert store.held["spec"]["holderIdentity"] == ""


def test_an_elector_that_broke_no_longer_leads(caplog):
    broke = threading.Event()

    def changed(is_leader):
        broke.set()
        raise ZeroDivisionError

    elector = Elector(Store(), ME, changed, rng=random.Random(1)).start()
    assert broke.wait(60)
    elector.stop(60)
    assert isinstance(elector.failure, ZeroDivisionError)
    assert not elector.is_leader
    assert "no longer asked for" in caplog.text
