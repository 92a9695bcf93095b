"""Faults as they happen to real processes: domains, checkpoints and disks; every optimizer step is counted."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from strata.control.drivers.part import PartFolder
from tests.control.running import Service, fleet_text, is_final, job_text
from tests.support.deaths import killed

pytestmark = [
    pytest.mark.long("starts a scheduler and training processes"),
    pytest.mark.real("starlette", "uvicorn"),
]
SMALLER = ("python", "-m", "strata.training.program.small", "--hidden-size", "64", "--tokens", "32")


def counted(service, job):
    """Return the steps that were trained by what rank 0 reported, and by the job's account."""
    return len(service.reports()), job["steps_done"] + job["repeated_steps"]


def runners(folder):
    """Return the runners of the parts in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().split("\0")
        except OSError:
            continue
        if "strata.control.drivers.runner" in words and str(folder) in words[-2]:
            found.append(int(path.parent.name))
    return found


def test_when_all_processes_of_a_domain_are_killed_the_job_goes_on_from_its_last_checkpoint(service):
    service.submit(job_text(steps=30, save_every=5, command=service.held(8)))
    job = service.until(lambda job: job["steps_done"] >= 8)
    lost = job["domains"][1]
    killed(*runners(service.folder / "fleet.strata" / "domains" / lost))
    service.release()
    job = service.until(is_final)
    assert (job["phase"], job["steps_done"], len(job["attempts"])) == ("done", 30, 2)
    first, second = job["attempts"]
    assert first["parts"][lost]["phase"] == "lost"
    assert second["from_step"] == first["checkpoint_step"] >= 5
    trained, accounted = counted(service, job)
    assert trained == accounted


def test_a_checkpoint_that_is_only_half_there_is_passed_over_and_the_steps_are_counted(service):
    service.submit(job_text(steps=30, save_every=5, command=service.held(12)))
    service.until(lambda job: job["attempts"] and job["attempts"][-1]["checkpoint_step"] >= 10)
    # Stopped in the middle: it cannot see that its newest checkpoint is cut, nor write another one. Nor does the
    # scheduler start another attempt before it is.
    service.process.send_signal(signal.SIGSTOP)
    killed(*runners(service.folder / "fleet.strata" / "domains"))
    service.release()
    folder = service.folder / "fleet.strata" / "checkpoints" / "small"
    newest = max(folder.glob("step-*"))
    known = int(newest.name.removeprefix("step-"))
    with open(min(newest.glob("layer-*.npz")), "r+b") as file:
        file.truncate(100)
    (folder / ".step-000000099.1").mkdir()
    (folder / "step-000000099").mkdir()  # without what makes it complete
    service.process.send_signal(signal.SIGCONT)
    job = service.until(is_final)
    assert (job["phase"], job["steps_done"]) == ("done", 30)
    assert job["attempts"][-1]["from_step"] == known - 5
    trained, accounted = counted(service, job)
    assert trained == accounted
    assert service.reports()[-1][1] == 30


def test_an_edited_fleet_is_read_again_and_what_runs_goes_on(service):
    service.submit(job_text(steps=30, command=service.held(2)))
    job = service.until(lambda job: job["steps_done"] >= 2)
    fleet = json.loads(fleet_text())
    idle = ({"west", "east", "north"} - set(job["domains"])).pop()
    used = job["domains"][0]
    for gone, text in ((used, f"{used} runs a part of small"), (idle, "the fleet was read again")):
        domains = [domain for domain in fleet["domains"] if domain["name"] != gone]
        links = [link for link in fleet["links"] if gone not in link["between"]]
        (service.folder / "fleet.json").write_text(json.dumps({**fleet, "domains": domains, "links": links}))
        service.process.send_signal(signal.SIGHUP)
        while text not in (service.folder / "up.log").read_text():
            time.sleep(0.1)
    service.release()
    job = service.until(is_final)
    assert (job["phase"], len(job["attempts"])) == ("done", 1)
    assert service.run("drain", idle, check=False).returncode == 2


def test_a_submit_says_where_the_job_goes_and_one_nobody_can_hold_what_would_help(service):
    placed = " ".join(service.submit(job_text(steps=2)).stdout.split())
    assert "of the best nominal rate with links as they are" in placed
    assert "a step expected" in placed
    many = json.loads(job_text("many", stages=2, min_devices=8))
    (service.folder / "many.json").write_text(json.dumps(many))
    large = json.loads(job_text("large", stages=2))
    large["train"] |= {"global_batch": 65_536, "sequence": 128}
    large["parallel"]["microbatch"] = 32_768
    (service.folder / "large.json").write_text(json.dumps(large))
    for name, text in (
        ("many", "the job allows 8 to any number"),
        ("large", "no plan of this job fits the fleet"),
    ):
        refused = service.run("submit", str(service.folder / f"{name}.json"), "--strict", check=False)
        assert (refused.returncode, text in " ".join(refused.stderr.split())) == (2, True), refused.stderr
        assert f"there is no job '{name}'" in service.run("job", name, check=False).stderr
        queued = " ".join(service.run("submit", str(service.folder / f"{name}.json")).stdout.split())
        assert "queued until the fleet is another one" in queued
        assert text in queued
        assert service.job(name)["phase"] == "queued"
    assert service.until(is_final)["phase"] == "done"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 12 MB: a folder, and functions that fill it and make room again."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root, to mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "strata", folder], check=False)
    if mounted.returncode:
        pytest.skip("may not mount here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder):
    """Leave no room on a disk."""
    with open(folder / "filler", "ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def test_a_full_disk_loses_nothing_that_was_acknowledged_and_is_got_over(small_disk):
    service = Service(small_disk)
    service.up()
    try:
        service.submit(job_text(steps=60, save_every=20, command=SMALLER))
        service.until(lambda job: job["steps_done"] >= 2)
        refused = 0
        names = ["small"]
        (small_disk.parent / "config.json").write_text((small_disk / "config.json").read_text())
        for number in range(20):
            file = small_disk.parent / f"job-{number}.json"
            file.write_text(job_text(f"later-{number}", steps=1, command=SMALLER))
            fill(small_disk)  # again: a checkpoint that was being written may have made room
            done = service.run("submit", str(file), "-o", "json", check=False)
            if done.returncode == 0:
                names.append(f"later-{number}")
            else:
                refused += 1
                assert "the disk is full, nothing was written" in " ".join(done.stderr.split())
                break
        assert refused == 1
        assert service.process.poll() is None
        (small_disk / "filler").unlink()
        for name in names:
            assert service.until(is_final, name)["phase"] == "done"
        assert {job["name"] for job in json.loads(service.run("jobs", "-o", "json").stdout)} == set(names)
    finally:
        service.down()
        for path in small_disk.glob("fleet.strata/domains/*/*"):
            while path.is_dir() and not PartFolder(path).is_over():
                time.sleep(0.1)
