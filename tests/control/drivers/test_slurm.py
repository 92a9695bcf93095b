"""The driver on a real cluster of two nodes with four devices each, that are character devices and no GPUs."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from strata.cli.main import run
from strata.control.drivers.launch import Workplace
from strata.control.drivers.slurm import SlurmDriver
from strata.control.state import PartPhase
from strata.fleet.schema import SlurmEntry, load_drivers, load_fleet
from strata.training.program.client import STOPPED
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.control.drivers.slurm_cluster import Cluster, munge
from tests.control.drivers.test_local import start_of
from tests.support import builders

pytestmark = pytest.mark.real("slurm")
TWO_NODES = TrainingPlan((Pipeline((Stage("a", 0, 3, 2, 1), Stage("a", 3, 2, 2, 1)), 2, 3),), 8)
ONE = TrainingPlan((Pipeline((Stage("a", 0, 5, 1),), 1, 6),), 4)


@pytest.fixture(scope="module")
def cluster():
    with munge() as socket:
        cluster = Cluster(socket.parent, "a", munge_socket=socket, nodes=2, gpus=4)
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()


@pytest.fixture
def driver(cluster, tmp_path):
    cluster.clear()  # of what the test before left
    fleet = builders.fleet(builders.domain("a", 8, per_node=4))
    entry = SlurmEntry(kind="slurm", conf=str(cluster.conf), gres="gpu", address="127.0.0.1")
    return SlurmDriver("a", Workplace(tmp_path, fleet, {"a": "127.0.0.1"}), entry)


def seen(driver, attempt="job.1"):
    return next((part for part in driver.observe(0.0).parts if part.attempt == attempt), None)


def once(driver, condition, attempt="job.1"):
    while not condition(part := seen(driver, attempt)):
        time.sleep(0.2)
    return part


def over(driver, attempt="job.1"):
    return once(driver, lambda part: part is not None and part.phase.is_over, attempt)


def is_running(part):
    return part is not None and part.phase is PartPhase.RUNNING


def test_ranks_on_two_nodes_have_their_devices_and_numbers(driver):
    say = "echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $SLURM_NODEID $CUDA_VISIBLE_DEVICES $STRATA_JOB"
    driver.start(start_of(("sh", "-c", say), plan=TWO_NODES))
    part = over(driver)
    assert (part.phase, part.exit_code) == (PartPhase.ENDED, 0)
    lines = sorted(line.split() for line in driver.logs("job.1"))
    assert [line[0] for line in lines] == [str(n) for n in range(8)]
    assert [line[1] for line in lines] == [str(n % 4) for n in range(8)]
    assert {tuple(line[2:]) for line in lines} == {("4", node, "0,1,2,3", "job") for node in ("0", "1")}


def test_what_is_started_twice_runs_once_also_after_an_answer_was_lost(driver, tmp_path, cluster):
    count = start_of(("sh", "-c", f"echo x >> {tmp_path}/runs; sleep 2"), plan=ONE)
    driver.start(count)
    (tmp_path / "domains/a/job.1/job.json").unlink()  # killed before it was written
    driver.start(count)
    first = json.loads((tmp_path / "domains/a/job.1/job.json").read_text())["job"]
    cluster.ask("sbatch", f"--chdir={tmp_path}", f"{tmp_path}/domains/a/job.1/batch.sh")
    assert over(driver).phase is PartPhase.ENDED
    driver.start(count)
    while cluster.ask("squeue", "-h", "-t", "R,PD,CG").strip():
        time.sleep(0.2)
    assert (tmp_path / "runs").read_text() == "x\n"
    assert [job.id for job in driver.cluster.jobs() if job.folder == f"{tmp_path}/domains/a/job.1"] == [first]


def test_what_is_stopped_before_it_is_started_or_waits_never_runs(driver, tmp_path):
    driver.stop("job.1", grace_s=5)
    driver.start(start_of(("touch", f"{tmp_path}/ran"), plan=ONE))
    assert seen(driver).phase is PartPhase.ENDED
    driver.start(start_of(("sleep", "60"), number=2, plan=TWO_NODES))
    once(driver, is_running, "job.2")
    driver.start(start_of(("touch", f"{tmp_path}/ran"), number=3, plan=ONE))
    waits = seen(driver, "job.3")
    assert waits.phase is PartPhase.WAITING
    assert "is PENDING" in waits.message
    assert driver.observe(0.0).queue == 1
    driver.stop("job.3", grace_s=5)
    assert seen(driver, "job.3").phase is PartPhase.ENDED
    driver.stop("job.2", grace_s=5)
    assert over(driver, "job.2").phase is PartPhase.ENDED
    assert not (tmp_path / "ran").exists()


def test_who_saves_on_sigterm_has_ended_and_who_is_deaf_is_killed(driver):
    saves = "trap 'sleep 1; echo saved; exit 143' TERM; echo up; while :; do sleep 0.1; done"
    driver.start(start_of(("sh", "-c", saves), plan=ONE))
    driver.start(start_of(("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"), number=2, plan=ONE))
    for attempt, grace_s in (("job.1", 30), ("job.2", 1)):
        while "up" not in driver.logs(attempt):
            time.sleep(0.1)
        driver.stop(attempt, grace_s=grace_s)
    saved = over(driver)
    assert (saved.phase, saved.exit_code) == (PartPhase.ENDED, STOPPED)
    assert "saved" in driver.logs("job.1")
    assert over(driver, "job.2").phase is PartPhase.ENDED


def test_one_rank_that_fails_ends_the_others_and_says_why(driver):
    fails = "[ $RANK = 1 ] && { echo why it failed; exit 3; }; sleep 100"
    driver.start(start_of(("sh", "-c", fails), plan=TWO_NODES))
    part = over(driver)
    assert (part.phase, part.exit_code) == (PartPhase.FAILED, 3)
    assert "why it failed" in driver.logs("job.1")


def test_a_job_cancelled_by_hand_has_ended_and_one_that_is_killed_is_lost(driver, cluster):
    for number in (1, 2):
        driver.start(start_of(("sh", "-c", "echo up; sleep 100"), number=number, plan=ONE))
        while "up" not in driver.logs(f"job.{number}"):
            time.sleep(0.1)
        job = driver.cluster.jobs()[-1].id
        if number == 1:
            cluster.ask("scancel", job)
            assert over(driver).phase is PartPhase.ENDED
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"job{job:0>5}/slurm_script" in path.read_text() and str(cluster.folder) in path.read_text():
                os.kill(int(path.parent.name), signal.SIGKILL)
    part = over(driver, "job.2")
    assert (part.phase, "FAILED" in part.message) == (PartPhase.LOST, True)


def test_devices_of_others_and_of_drained_nodes_are_not_ours(driver, cluster, tmp_path, capsys):
    assert driver.observe(0.0).num_devices == 8
    driver.start(start_of(("sleep", "100"), plan=ONE))
    once(driver, is_running)
    assert driver.observe(0.0).num_devices == 8
    cluster.ask("sbatch", "--gres=gpu:2", f"--output={tmp_path}/other", "--wrap", "sleep 100")
    while driver.observe(0.0).num_devices != 6:
        time.sleep(0.2)
    capsys.readouterr()
    assert run(["fleet", "discover", "--conf", str(cluster.conf)]) == 0
    # Ours holds one, another's two.
    assert "num_gpus: 8  # measured: sinfo: 2 nodes\n    free_gpus: 5  # measured" in capsys.readouterr().out
    cluster.ask("scancel", "--state=RUNNING", "--user=root")
    over(driver)
    cluster.ask("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    try:
        while driver.observe(0.0).num_devices != 4:
            time.sleep(0.2)
    finally:
        cluster.ask("scontrol", "update", "NodeName=n1", "State=RESUME")
        cluster.settle()


def test_what_is_found_of_it_is_a_fleet_that_it_runs_on(cluster, tmp_path, capsys):
    assert run(["fleet", "discover", "--conf", str(cluster.conf)]) == 0
    (tmp_path / "fleet.yaml").write_text(capsys.readouterr().out)
    (domain,) = load_fleet(tmp_path / "fleet.yaml").domains
    assert (domain.name, domain.num_devices, domain.devices_per_node) == ("a-main", 8, 4)
    assert domain.num_free_devices == 8
    entry = load_drivers(tmp_path / "fleet.yaml")["a-main"]
    found = SlurmDriver("a-main", Workplace(tmp_path, load_fleet(tmp_path / "fleet.yaml"), {}), entry)
    assert found.observe(0.0).num_devices == 8


def test_at_its_time_limit_a_part_is_asked_to_save_first(driver):
    # --signal comes grace + margin before the limit, within Slurm's resolution of 30 s: between 30 s and 60 s from
    # its start, when its rank surely listens.
    timed = SlurmDriver("a", driver.workplace, driver.entry.model_copy(update={"options": ["--time=2"]}))
    saves = "trap 'echo saved; exit 143' TERM; while :; do sleep 0.1; done"
    timed.start(start_of(("sh", "-c", saves), plan=ONE, grace_s=45.0))
    part = over(timed)
    assert (part.phase, part.exit_code, "saved" in timed.logs("job.1")) == (PartPhase.ENDED, STOPPED, True)
