"""The scheduler as users run it, on plain processes: submitted jobs end, whatever is killed on the way."""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.control.running import is_final, job_text
from tests.support.deaths import killed

pytestmark = [
    pytest.mark.long("starts a scheduler and training processes"),
    pytest.mark.real("starlette", "uvicorn"),
]


def test_a_job_goes_from_submit_to_done_and_says_why(service):
    assert "small is submitted" in service.submit(job_text(steps=4)).stdout
    job = service.until(is_final)
    assert (job["phase"], job["steps_done"], len(job["attempts"])) == ("done", 4, 1)
    assert [step for _, step, _ in service.reports()] == [1, 2, 3, 4]
    assert "of the best nominal rate" in service.run("job", "small", "--why").stdout
    assert "done" in service.run("jobs").stdout
    assert max(map(len, service.run("jobs").stdout.splitlines())) <= 80


def test_a_daemon_that_is_killed_finds_its_job_running_and_restarts_nothing(service, capsys):
    service.submit(job_text(steps=30))
    service.until(lambda job: job["steps_done"] >= 2)
    service.kill()
    killed_s = time.monotonic()
    service.up()
    service.job()
    with capsys.disabled():
        sys.stdout.write(f"\na daemon that was killed answers again after {time.monotonic() - killed_s:.1f} s\n")
    job = service.until(is_final)
    assert (job["phase"], job["steps_done"], len(job["attempts"])) == ("done", 30, 1)
    assert [step for _, step, _ in service.reports()] == list(range(1, 31))


def test_when_a_rank_is_killed_the_job_goes_on_from_its_last_checkpoint(service):
    service.submit(job_text(steps=16, save_every=4, command=service.held(6)))
    service.until(lambda job: job["steps_done"] >= 5)
    rank = next(path for path in Path("/proc").glob("[0-9]*") if _is_rank(path, service.folder))
    killed(int(rank.name))
    service.release()
    job = service.until(is_final)
    assert (job["phase"], job["steps_done"], job["failures"]) == ("done", 16, 1)
    assert job["attempts"][1]["from_step"] % 4 == 0 < job["attempts"][1]["from_step"]
    assert ", killed by SIGKILL" in service.run("job", "small").stdout


def _is_rank(path, folder):
    try:
        environment = (path / "environ").read_bytes()
    except OSError:
        return False
    return f"STRATA_CHECKPOINTS={folder}".encode() in environment and b"RANK=1" in environment.split(b"\0")


def test_a_job_is_cancelled_and_a_drained_domain_is_left(service):
    service.submit(job_text(steps=5000))
    job = service.until(lambda job: job["steps_done"] >= 1)
    left = job["domains"][0]
    assert "small saves, then moves or waits" in service.run("drain", left).stdout
    moved = service.until(lambda job: [a["step"] > a["from_step"] for a in job["attempts"]] == [True, True])
    assert left not in moved["domains"]
    assert moved["attempts"][0]["step"] == moved["attempts"][1]["from_step"]
    assert "small is asked to save and to end" in service.run("cancel", "small").stdout
    assert service.until(is_final)["phase"] == "cancelled"
    assert "small is cancelled: nothing to end" in service.run("cancel", "small").stdout


def test_a_job_that_cannot_resume_stays_in_a_drained_domain_and_who_drains_is_told(service):
    service.submit(job_text(steps=5000, stages=1, resume=False, command=("sleep", "600")))
    (domain,) = service.until(lambda job: job["domains"])["domains"]
    said = service.run("drain", domain).stdout
    assert f"{domain}: nothing new starts there" in said
    assert "small stays until it ends" in " ".join(said.split())
    assert f"nothing starts there: {domain}; " in service.run("jobs").stdout
    assert f"{domain}: work goes there again" in service.run("drain", domain, "--undo").stdout
    assert service.until(lambda job: job["phase"] == "running")["domains"] == [domain]


def test_a_program_that_fails_is_tried_again_and_then_given_up_with_its_last_words(service):
    command = ("sh", "-c", "echo no luck; exit 3")
    service.submit(job_text(command=command, stages=1))
    job = service.until(is_final)
    assert job["phase"] == "failed"
    assert "no luck" in service.run("job", "small").stdout
    assert "no luck" in service.run("logs", "small").stdout


def test_what_cannot_be_done_is_refused_with_what_to_try(service, tmp_path):
    service.submit(job_text(steps=2))
    for arguments, text in (
        (("submit", str(tmp_path / "job.json")), "there is a job 'small' already"),
        (("job", "none"), "there is no job 'none'"),
        (("cancel", "none"), "there is no job 'none'"),
        (("drain", "none"), "there is no domain 'none'"),
        (("up", str(tmp_path / "fleet.json")), "another scheduler runs on this store"),
    ):
        done = service.run(*arguments, check=False)
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr
        assert "try:" in done.stderr


def test_the_api_has_a_description_metrics_and_a_token(service):
    def get(path, token=None):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        with urllib.request.urlopen(urllib.request.Request(service.url + path, headers=headers)) as response:
            return response.read().decode()

    assert "/v1/jobs/{name}" in json.loads(get("/v1/openapi.json"))["paths"]
    assert "strata_turns_total" in get("/metrics")
    assert {domain["name"] for domain in json.loads(get("/v1/domains"))} == {"west", "east", "north"}
    service.down()
    (service.folder / "token").write_text("secret")
    service.up("--token-file", str(service.folder / "token"))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get("/v1/jobs")
    assert get("/v1/jobs", token="secret") == "[]"
    assert service.run("jobs", check=False).returncode == 2
