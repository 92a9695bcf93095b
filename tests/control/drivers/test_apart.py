"""A driver apart: each action once, a call that hangs left behind, a look that fails said to be silence."""

import threading
import time

import pytest

from strata.control.drivers.apart import MOST_LEFT_BEHIND, Apart
from strata.control.state import DomainSeen, DomainSilent, PartPhase, Stop
from tests.control.drivers.test_local import start_of


class Driver:
    lost_after_s = 60.0

    def __init__(self):
        self.open, self.asked, self.stops, self.fails = threading.Event(), threading.Semaphore(0), [], False
        self.open.set()

    def observe(self, now_s):
        self.asked.release()
        self.open.wait()
        if self.fails:
            raise RuntimeError("no credentials")
        return DomainSeen("a", now_s, 8)

    def start(self, start):
        raise RuntimeError("quota exceeded")

    def stop(self, attempt, *, grace_s):
        self.open.wait()
        self.stops.append(attempt)


@pytest.fixture
def apart():
    """A driver, what was reported, its thread apart, and a clock."""

    class Case:
        now_s = 0.0
        driver, reported = Driver(), []

    case = Case()
    case.apart = Apart(
        "a", case.driver, case.reported.append, clock=lambda: case.now_s, every_s=0.0, deadline_s=20.0
    )
    yield case
    case.driver.open.set()
    case.apart.close()
    case.apart.join(60)


def until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_action_that_waits_to_be_done_is_not_added_again(apart):
    apart.driver.open.clear()
    assert apart.driver.asked.acquire(timeout=300)
    for _ in range(5):
        apart.apart.carry_out(Stop("a", "x", 0.0))
    apart.driver.open.set()
    until(lambda: apart.driver.stops)
    apart.apart.carry_out(Stop("a", "y", 0.0))
    until(lambda: "y" in apart.driver.stops)
    assert apart.driver.stops == ["x", "y"]


def test_a_call_that_fails_in_any_way_is_silence_with_its_words(apart):
    apart.driver.fails = True
    until(lambda: any(isinstance(item, DomainSilent) for item in apart.reported))
    silent = next(item for item in apart.reported if isinstance(item, DomainSilent))
    assert (silent.domain, silent.message) == ("a", "no credentials")
    apart.driver.fails = False
    count = len(apart.reported)
    until(lambda: any(isinstance(item, DomainSeen) for item in apart.reported[count:]))


def test_a_domain_is_looked_at_between_actions_that_take_long(apart):
    order = []

    def look(now_s):
        order.append("look")
        return DomainSeen("a", now_s, 8)

    def start(action):
        order.append(action.attempt.id)
        apart.now_s += 10.0

    apart.driver.open.clear()
    assert apart.driver.asked.acquire(timeout=300)
    apart.driver.observe, apart.driver.start = look, start
    for number in (1, 2, 3):
        apart.apart.carry_out(start_of(["train"], number=number))
    apart.driver.open.set()
    until(lambda: "job.3" in order)
    assert order[order.index("job.1") :][:5] == ["job.1", "look", "job.2", "look", "job.3"]


def test_a_part_that_cannot_be_started_fails_alone_after_a_while_and_its_domain_is_no_less_there(apart):
    def failed():
        seen = [part for item in apart.reported if isinstance(item, DomainSeen) for part in item.parts]
        return [(part.attempt, part.phase, part.message) for part in seen]

    apart.apart.carry_out(start_of(["train"]))
    until(lambda: apart.apart._refused)
    count = len(apart.reported)
    until(lambda: len(apart.reported) > count + 5)
    assert failed() == []
    apart.now_s = 60.0
    until(failed)
    count = len(apart.reported)
    until(lambda: len(apart.reported) > count + 5)
    assert failed() == [("job.1", PartPhase.FAILED, "quota exceeded")]
    assert not any(isinstance(item, DomainSilent) for item in apart.reported)


def test_a_call_that_hangs_is_left_behind_a_few_times_and_what_it_says_late_is_dropped(apart):
    apart.driver.open.clear()
    until(lambda: apart.apart._busy_since_s is not None)
    apart.apart.check()
    assert not any(isinstance(item, DomainSilent) for item in apart.reported)  # it has until its deadline
    for _ in range(2 * MOST_LEFT_BEHIND):
        until(lambda: apart.apart._busy_since_s is not None)
        apart.now_s += 21.0
        apart.apart.check()
    hanging = [thread for thread in threading.enumerate() if thread.name == "driver a" and thread.is_alive()]
    assert len(hanging) <= MOST_LEFT_BEHIND + 1
    silent = [item for item in apart.reported if isinstance(item, DomainSilent)]
    assert len(silent) == 2 * MOST_LEFT_BEHIND
    assert silent[0].message == "no answer in 20 s"
    count = len(apart.reported)
    apart.driver.open.set()
    until(lambda: len(apart.reported) > count + 5)
    late = [item for item in apart.reported[count:] if item.at_s < apart.now_s]
    assert len(late) <= 1  # what was left behind is not heard; the one that was not is


def test_what_was_closed_calls_no_more(apart):
    until(lambda: apart.reported)
    apart.apart.close()
    apart.apart.join(60)
    count = len(apart.reported)
    apart.apart.carry_out(Stop("a", "x", 0.0))
    assert (len(apart.reported), apart.driver.stops) == (count, [])
