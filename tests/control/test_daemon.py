"""What goes wrong around the loop, in virtual time: APIs that are down, drivers that hang, clocks, new fleets."""

import logging
import threading
import time
from dataclasses import replace

import pytest

from strata.control.assembly import assembled
from strata.control.daemon import steady_clock
from strata.control.drivers.apart import MOST_LEFT_BEHIND
from strata.control.policies import PolicyName
from strata.control.state import JobPhase, PartPhase
from strata.errors import UsageError
from tests.control.fakes import EAST, FLEET, STEPS, WEST, World, piece
from tests.control.running import fleet_text


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    for driver in world.drivers.values():
        driver.answers.set()
    world.down()


def is_counted(world):
    """Whether every step that was trained is either one of the job's or one that was repeated."""
    return world.trained == world.job.steps_done + world.job.repeated_steps


def test_a_job_runs_to_its_end(world):
    world.daemon.submit(piece())
    world.passes(STEPS + 30, every_s=30.0)
    assert (world.job.phase, world.job.steps_done, world.job.attempts) == (JobPhase.DONE, STEPS, 1)
    assert is_counted(world)


@pytest.mark.long("twelve minutes of the loop, second by second")
def test_an_api_that_is_down_for_ten_minutes_costs_the_steps_since_the_checkpoint_and_starts_nothing_twice(world):
    world.daemon.submit(piece())
    world.passes(120)
    assert world.drivers[WEST].starts == ["a-1"]
    world.drivers[WEST].fails = "503"
    world.passes(30)
    assert not world.daemon.snapshot.attempts["a-1"].is_stopping  # it may be back in a moment
    world.passes(60)
    assert world.drivers[EAST].starts == ["a-1", "a-2"]  # the job goes on where the API answers
    world.daemon.submit(piece("b"))
    world.passes(510)
    world.drivers[WEST].fails = ""
    world.passes(10)
    assert "a-1" not in {a.id for a in world.daemon.snapshot.live}
    assert str(world.drivers[WEST].phases["a-1"]) == "ended"  # what still ran there was stopped
    world.passes(2500, every_s=50.0)
    phases = {name: job.phase for name, job in world.jobs.items()}
    assert phases == {"a": JobPhase.DONE, "b": JobPhase.DONE}
    for driver in world.drivers.values():
        assert len(driver.starts) == len(set(driver.starts))


def test_a_driver_that_hangs_holds_nobody_up_and_is_taken_up_again(world):
    world.daemon.submit(piece())
    world.passes(60)
    world.drivers[WEST].answers.clear()
    threads = threading.active_count()
    world.passes(300)
    assert world.daemon.snapshot.domains[WEST].silent_since_s is not None
    assert world.drivers[EAST].starts == ["a-1", "a-2"]
    assert threading.active_count() <= threads + MOST_LEFT_BEHIND
    world.drivers[WEST].answers.set()
    world.passes(20)
    assert world.daemon.snapshot.domains[WEST].silent_since_s is None
    world.passes(STEPS, every_s=30.0)
    assert world.job.phase is JobPhase.DONE
    assert world.drivers[WEST].starts[0] == "a-1"
    assert len(world.drivers[WEST].starts) == len(set(world.drivers[WEST].starts))


def test_a_daemon_that_comes_back_goes_on_though_the_clock_was_set_back(world):
    world.daemon.submit(piece())
    world.passes(120)
    before_s = world.now_s
    world.down()
    world.now_s = 10.0
    world.up()
    assert world.daemon.clock() >= before_s - 10
    world.passes(STEPS, every_s=30.0)
    assert (world.job.phase, world.job.attempts, is_counted(world)) == (JobPhase.DONE, 1, True)


def test_a_clock_that_is_set_back_while_we_run_is_not_heard_of():
    wall, monotonic = iter([1000.0, 5.0, 5.0]), iter([50.0, 51.0, 52.0])
    clock = steady_clock(lambda: next(wall), lambda: next(monotonic))
    assert [clock(), clock()] == [1001.0, 1002.0]


def test_a_domain_that_runs_something_cannot_vanish_from_the_fleet(world, caplog):
    world.daemon.submit(piece())
    world.passes(60)
    world.named = (EAST,)
    with caplog.at_level(logging.INFO):
        world.daemon.reload()
        world.passes(10)
    assert f"{WEST} runs a part of a and is not among the domains" in caplog.text
    assert set(world.daemon.drivers) == {EAST, WEST}
    world.down()
    with pytest.raises(UsageError, match=f"{WEST} runs a part of a"):
        world.up(names=(EAST,))
    world.stack.close()
    world.up()
    world.passes(10)
    world.daemon.drain(WEST)
    world.passes(60)
    world.named = (EAST,)
    world.daemon.reload()
    world.passes(10)
    assert set(world.daemon.drivers) == set(world.daemon.snapshot.domains) == {EAST}
    world.passes(STEPS, every_s=30.0)
    assert (world.job.phase, is_counted(world)) == (JobPhase.DONE, True)


def test_a_domain_that_is_added_is_used(tmp_path):
    world = World(tmp_path)
    world.down()
    world.up(names=(EAST,))
    world.daemon.submit(piece())
    world.passes(30)
    world.named = (EAST, WEST)
    world.daemon.reload()
    world.daemon.submit(piece("b"))
    world.passes(30)
    assert [world.drivers[name].starts for name in (EAST, WEST)] == [["a-1"], ["b-1"]]
    assert world.daemon.snapshot.jobs["a"].attempts == 1  # what ran went on
    world.down()


def test_who_holds_devices_that_an_edited_fleet_no_longer_has_leaves_at_once(world):
    """It was asked at its next interval."""
    world.daemon.submit(piece())
    world.passes(30)
    assert set(world.daemon.snapshot.attempts["a-1"].parts) == {EAST, WEST}
    world.fleet = replace(
        FLEET, domains=(FLEET.domain(EAST), replace(FLEET.domain(WEST), num_devices=4, devices_per_node=4))
    )
    world.drivers[WEST].num_devices = 4
    world.daemon.reload()
    world.passes(20)
    assert world.jobs["a"].attempts == 2
    assert world.daemon.snapshot.attempts["a-2"].plan.devices().get(WEST, 0) <= 4


def test_a_new_store_is_not_put_beside_the_folder_of_one_that_is_gone(tmp_path):
    """A job of the same name was done at once: its first attempt had ended, under the store before."""
    fleet, store = tmp_path / "fleet.json", tmp_path / "fleet.db"
    fleet.write_text(fleet_text())
    asked = {"policy": PolicyName.NEVER, "interval_s": 300.0, "probe_every_s": 60.0}
    for _ in range(2):  # the second time it goes on where it was
        with assembled(fleet, store, **asked):
            (tmp_path / "fleet.strata" / "domains" / "west").mkdir(parents=True, exist_ok=True)
    store.unlink()
    with pytest.raises(UsageError, match="is of a store that is gone") as error, assembled(fleet, store, **asked):
        pass
    assert error.value.hint == f"put {store} back, or move the folder"


def test_a_store_from_a_backup_does_not_give_ids_again_that_its_folder_has(tmp_path):
    """The next attempt of a job was what had become of another: it was done, or failed, and never ran."""
    fleet, store = tmp_path / "fleet.json", tmp_path / "fleet.db"
    fleet.write_text(fleet_text())
    asked = {"policy": PolicyName.NEVER, "interval_s": 300.0, "probe_every_s": 60.0}
    with assembled(fleet, store, **asked):
        (tmp_path / "fleet.strata" / "domains" / "west" / "train-2").mkdir(parents=True)
    with pytest.raises(UsageError, match="does not know the attempt train-2"), assembled(fleet, store, **asked):
        pass


def test_what_measured_the_links_of_the_fleet_before_is_ended(world):
    closed = []
    world.daemon._reread = lambda: replace(world.sites(), close=lambda: closed.append("second"))
    for _ in range(2):
        world.daemon.reload()
        world.passes(5)
    assert closed == ["second"]


def test_a_fleet_that_cannot_be_read_is_left_as_it_was(world, caplog):
    def reread():
        raise UsageError("line 3: not YAML")

    world.daemon._reread = reread
    world.daemon.reload()
    world.passes(10)
    assert "line 3: not YAML" in caplog.text
    assert set(world.daemon.drivers) == {EAST, WEST}


def test_what_a_driver_sees_begin_is_taken_in_before_the_turn_is_over(world):
    world.daemon._turn_s = 3600.0
    loop = threading.Thread(target=world.daemon.run, daemon=True)
    loop.start()
    world.daemon.submit(piece())
    deadline_s = time.monotonic() + 300
    while {part.phase for a in world.daemon.snapshot.live for part in a.parts.values()} != {PartPhase.RUNNING}:
        assert time.monotonic() < deadline_s, "nobody looked at what the drivers saw"
        time.sleep(0.01)
    world.daemon.stop()
    loop.join()
