"""`strata demo --live` as a newcomer meets it: it ends by itself, and leaves nothing behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STRATA = str(Path(sys.executable).parent / "strata")
pytestmark = pytest.mark.long("trains on this machine for most of a minute")


@pytest.fixture
def started(tmp_path):
    """Return a function that starts the demo; its temporary files go to a folder of the test."""
    processes = []

    def start(*options):
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        processes.append(
            subprocess.Popen(
                [STRATA, "demo", "--live", *options], env=environment, text=True, start_new_session=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def left(folder):
    """Return what the demo left: files, and processes that work in its folder."""
    running = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in path.read_text():
                running.append(path.read_text())
        except OSError:
            continue  # it ended meanwhile
    return list(folder.glob("strata*")), running


def test_a_job_is_moved_off_a_bad_link_and_does_every_step_once(started, tmp_path):
    process = started("--plain", "-o", "json")
    out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    report = json.loads(out)
    assert report["is_whole"]
    assert report["steps"] == list(range(1, 31))
    assert report["losses"][-1] < report["losses"][0] / 10
    texts = [event["text"] for event in report["events"]]
    fell = next(n for n, text in enumerate(texts) if "goes bad" in text)
    assert any("to be moved" in text for text in texts[fell:])
    assert "the trainer itself keeps to" in report["kind"]
    assert left(tmp_path) == ([], [])


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGINT, ("--plain",)), (signal.SIGTERM, ("--plain",)), (signal.SIGINT, ()), (signal.SIGHUP, ())],
)
def test_who_interrupts_it_is_left_with_nothing(started, tmp_path, number, options):
    process = started(*options)
    for line in process.stdout:
        if "runs as" in line:
            break
    time.sleep(1.0 if number == signal.SIGINT else 0.0)  # in the middle of its start, or soon after
    os.killpg(process.pid, number)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "interrupted: what was started is ended\n"
    assert left(tmp_path) == ([], [])
