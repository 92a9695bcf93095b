"""Real processes: each part runs once, ends when it is asked to, and outlives whoever started it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strata.control.drivers.launch import Workplace, launch_of
from strata.control.drivers.local import LocalDriver
from strata.control.drivers.part import PartFolder
from strata.control.state import Attempt, JobSpec, Part, PartPhase, Start
from strata.training.program.client import STOPPED
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support import builders
from tests.training.program.launched import CHAIN, SMALL

pytestmark = pytest.mark.long("starts processes of their own for every rank")
SLEEP = ("sleep", "60")
TRAINER = (sys.executable, "-m", *SMALL)
HALF = TrainingPlan((Pipeline((Stage("a", 0, 5, 4),), 1, 6),), 4)


@pytest.fixture
def domain(tmp_path, request):
    return lambda name: driver(tmp_path, name)


def driver(folder, name):
    addresses = dict.fromkeys(("a", "b", "c"), "127.0.0.1")
    return LocalDriver(name, Workplace(folder, builders.fleet(*(builders.domain(n) for n in "abc")), addresses))


def start_of(command, *, domain="a", number=1, steps=8, plan=CHAIN, **more):
    spec = JobSpec("job", None, steps, command=tuple(command), **more)
    parts = {name: Part() for name in plan.domains}
    return Start(domain, Attempt(f"job.{number}", "job", number, plan, 0.0, 0, parts), spec)


def seen(driver, attempt="job.1"):
    return next((part for part in driver.observe(0.0).parts if part.attempt == attempt), None)


def over(driver, attempt="job.1"):
    while not (part := seen(driver, attempt)).phase.is_over:
        time.sleep(0.02)
    return part


def test_a_job_over_two_domains_runs_reports_and_ends(domain):
    for name in ("a", "b"):
        domain(name).start(start_of(TRAINER, domain=name))
    parts = [over(domain(name)) for name in ("a", "b")]
    assert [part.phase for part in parts] == [PartPhase.ENDED, PartPhase.ENDED]
    assert [part.exit_code for part in parts] == [0, 0]
    assert [(part.step, part.checkpoint_step) for part in parts] == [(8, 8), (None, None)]
    assert parts[0].step_time_s > 0


def test_what_is_started_twice_runs_once(domain, tmp_path):
    count = ("sh", "-c", f"echo x >> {tmp_path}/runs; sleep 60")
    for _ in range(3):
        domain("a").start(start_of(count))
    assert seen(domain("a")).phase is PartPhase.RUNNING
    while not ((tmp_path / "runs").exists() and (tmp_path / "runs").read_text()):
        time.sleep(0.02)
    domain("a").stop("job.1", grace_s=5)
    assert over(domain("a")).phase is PartPhase.ENDED
    domain("a").start(start_of(count))
    assert (tmp_path / "runs").read_text() == "x\n"


def test_what_is_stopped_before_it_is_started_never_runs(domain, tmp_path):
    domain("a").stop("job.1", grace_s=5)
    domain("a").start(start_of(("touch", f"{tmp_path}/ran")))
    assert over(domain("a")).phase is PartPhase.ENDED
    assert not (tmp_path / "ran").exists()


def test_who_does_not_stop_within_the_grace_is_killed(domain):
    domain("a").start(start_of(("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done")))
    while "deaf" not in domain("a").logs("job.1"):
        time.sleep(0.02)
    domain("a").stop("job.1", grace_s=0.3)
    assert over(domain("a")).exit_code == -signal.SIGKILL


def test_a_trainer_that_saves_on_sigterm_has_ended_not_failed(domain):
    for name in ("a", "b"):
        domain(name).start(start_of(TRAINER, domain=name, steps=10_000))
    while not (seen(domain("a")).step or 0) > 3:
        time.sleep(0.02)
    for name in ("a", "b"):
        domain(name).stop("job.1", grace_s=30)
    parts = [over(domain(name)) for name in ("a", "b")]
    assert [(part.phase, part.exit_code) for part in parts] == [(PartPhase.ENDED, STOPPED)] * 2
    assert parts[0].step == parts[0].checkpoint_step > 3


def test_a_command_that_fails_or_is_not_there_says_so(domain):
    domain("a").start(start_of(("sh", "-c", "echo why it failed; exit 3")))
    domain("a").start(start_of(("/no/such/program",), number=2))
    domain("a").start(start_of(("sh", "-c", "a\0b"), number=3))
    failed, missing, broken = (over(domain("a"), f"job.{number}") for number in (1, 2, 3))
    assert (failed.phase, failed.exit_code, failed.message) == (PartPhase.FAILED, 3, "why it failed")
    assert [part.phase for part in (missing, broken)] == [PartPhase.FAILED] * 2
    assert "cannot be run" in missing.message
    assert broken.message == "cannot be run: embedded null byte"


def test_a_log_that_is_followed_before_its_part_begins_is_followed_to_its_end(domain):
    log = domain("a").logs("job.1", follow=True)
    assert next(log) is None
    domain("a").start(start_of(("sh", "-c", "echo here")))
    assert list(filter(None, log)) == ["here"]
    domain("a").stop("job.2", grace_s=0.0)
    assert list(domain("a").logs("job.2", follow=True)) == []


def test_parts_outlive_whoever_started_them_and_are_seen_by_the_next(domain, tmp_path):
    script = (
        "import sys; from tests.control.drivers.test_local import *; import pathlib\n"
        "driver(pathlib.Path(sys.argv[1]), 'a').start(start_of(SLEEP))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=False, env={**os.environ, "PYTHONPATH": "."}
    )
    assert seen(domain("a")).phase is PartPhase.RUNNING
    domain("a").stop("job.1", grace_s=5)
    assert over(domain("a")).phase is PartPhase.ENDED


def test_a_part_that_begins_while_it_is_looked_at_is_not_lost(domain, monkeypatch):
    driver = domain("a")
    part, is_held, locks = PartFolder(driver.workplace.part("a", "job.1")), PartFolder.is_held, []
    part.ask({"steps": 8}, {})

    def looked_at_too_early(part):
        found = is_held(part)
        locks.append(part.begin())
        return found

    monkeypatch.setattr(PartFolder, "is_held", looked_at_too_early)
    looks = [seen(driver)]
    monkeypatch.undo()
    locks.append(part.begin())
    looks.append(seen(driver))
    for lock in filter(None, locks):
        os.close(lock)
    assert [look and look.phase for look in looks] == [None, PartPhase.RUNNING]


def test_when_the_runner_is_killed_its_ranks_go_too_and_the_part_is_lost(domain, tmp_path):
    domain("a").start(start_of(("sh", "-c", "echo $$ $PPID; exec sleep 60")))
    while not (lines := list(domain("a").logs("job.1"))):
        time.sleep(0.02)
    rank, runner = map(int, lines[0].split())
    os.kill(runner, signal.SIGKILL)
    assert over(domain("a")).phase is PartPhase.LOST
    while os.path.exists(f"/proc/{rank}"):
        time.sleep(0.02)


def test_what_ended_while_the_disk_was_full_is_not_lost(domain, tmp_path):
    """Its end could not be written, so that a job that was complete ran again."""
    end = tmp_path / "domains/a/job.1/end.json"
    domain("a").start(start_of(("sh", "-c", "mkdir end.json; echo $$")))  # so nothing can be written there
    while not (lines := (end.parent / "log").read_text().splitlines()):
        time.sleep(0.02)
    while os.path.exists(f"/proc/{lines[0]}"):
        time.sleep(0.02)
    for _ in range(20):  # it looks every 0.05 s
        assert PartFolder(end.parent).is_held()
        time.sleep(0.02)
    end.rmdir()
    assert over(domain("a")).phase is PartPhase.ENDED


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"step": -1}', '{"step": 99}', '{"step": true}', "{"])
def test_a_trainer_that_reports_nonsense_is_as_good_as_one_that_reports_nothing(domain, line):
    domain("a").start(start_of(("sh", "-c", f"echo '{line}' > $STRATA_PROGRESS; exit 0")))
    part = over(domain("a"))
    assert (part.phase, part.step) == (PartPhase.ENDED, None)


def test_names_lead_nowhere_else(domain, tmp_path):
    for name in ("../../x", "..", ".", "a/b"):
        start = start_of(SLEEP)
        domain("a").stop(f"{name}{start.attempt.id}", grace_s=1)
    assert {path.name for path in tmp_path.iterdir()} == {"domains"}
    assert len(list((tmp_path / "domains" / "a").iterdir())) == 4


def test_jobs_that_share_a_domain_get_devices_of_their_own(domain):
    show = ("sh", "-c", "echo $STRATA_DEVICES; exec sleep 60")
    for number in (1, 2, 3):
        domain("a").start(start_of(show, number=number, plan=HALF))
    for number, devices in ((1, "0,1,2,3"), (2, "4,5,6,7")):
        while not (lines := list(domain("a").logs(f"job.{number}"))):
            time.sleep(0.02)
        assert set(lines) == {devices}
    assert seen(domain("a"), "job.3") is None  # there are none left; whoever asks again gets what became free
    domain("a").stop("job.1", grace_s=5)
    over(domain("a"))
    domain("a").start(start_of(show, number=3, plan=HALF))
    while not (lines := list(domain("a").logs("job.3"))):
        time.sleep(0.02)
    assert set(lines) == {"0,1,2,3"}
    for number in (2, 3):
        domain("a").stop(f"job.{number}", grace_s=0)


def test_jobs_of_one_name_under_two_schedulers_meet_at_ports_of_their_own():
    def port(folder, name):
        launch = launch_of(start_of(SLEEP, domain=name), driver(Path(folder), name).workplace, Path("/part"))
        return {each["MASTER_PORT"] for each in launch.environments.values()}

    assert port("/x", "a") == port("/x", "b") != port("/y", "a")


def test_a_job_that_cannot_resume_is_not_told_to_save_where_there_is_no_place_for_it(tmp_path):
    """The client said so with an AssertionError, at its first checkpoint."""
    workplace = driver(tmp_path, "a").workplace
    for can_resume, every in ((True, "5"), (False, "0")):
        start = start_of(["train"], save_every=5, can_resume=can_resume)
        given = launch_of(start, workplace, tmp_path).environments[0]
        assert (given["STRATA_SAVE_EVERY"], "STRATA_CHECKPOINTS" in given) == (every, can_resume)


def test_what_a_start_and_a_stop_take_is_told(domain):
    for name in ("a", "b"):
        domain(name).start(start_of(TRAINER, domain=name, steps=10_000))
    while (part := seen(domain("a"))).launch_s is None:
        time.sleep(0.02)
    assert (part.first_step, part.stop_s) == (1, None)
    assert 0 < part.launch_s < 600
    for name in ("a", "b"):
        domain(name).stop("job.1", grace_s=30)
    assert 0 < over(domain("a")).stop_s < 600


def test_transfers_that_are_reported_are_told_and_nonsense_is_not(domain):
    good = {"source": "a", "dest": "b", "num_bytes": 1000, "seconds": 0.5}
    bad = [{**good, key: value} for key in good for value in (None, -1, True, [], float("inf"))]
    lines = "\n".join(json.dumps({"at_s": time.time(), **line}) for line in (good, *bad))
    old = json.dumps({"at_s": time.time() - 3600, **good})
    domain("a").start(start_of(("sh", "-c", f"echo '{lines}\n{old}' > $STRATA_PROGRESS; exec sleep 60")))
    while not (transfers := domain("a").observe(0.0).transfers):
        time.sleep(0.02)
    assert [(t.source, t.dest, t.num_bytes, t.seconds) for t in transfers] == [("a", "b", 1000, 0.5)]
    domain("a").stop("job.1", grace_s=0)
