"""A real job across two of three shaped networks: its link falls to a tenth, and it goes on elsewhere."""

import os
import shutil
import sys
import time

import pytest

from strata.evaluation.testbed.namespaces import LinkShape, Namespaces
from tests.control.running import NAMES, SMALL, TORCH, Service, fleet_text, is_final, job_text

pytestmark = [
    pytest.mark.long("trains over shaped links, twice"),
    pytest.mark.real("starlette", "uvicorn"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root, ip and tc"),
]
STEPS = 40
NOMINAL, TENTH = LinkShape(4e6, 0.0), LinkShape(4e5, 0.0)


def train(folder, command, *, is_moved):
    """Return the service, its job at its end in `job_data`, and, where a link fell, which and when [Unix s]."""
    folder.mkdir()
    with Namespaces(3, has_latency=False) as network:
        network.shape(NOMINAL)
        service = Service(folder, fleet_text(namespaces=network.names), policy="hi-ppo")
        service.up()
        try:
            service.submit(job_text(steps=STEPS, save_every=20, command=command))
            fallen, fell_s = fall(service, network) if is_moved else (None, None)
            service.job_data = service.until(is_final)
        finally:
            service.down()
    assert service.job_data["phase"] == "done"
    return service, fallen, fell_s


def fall(service, network):
    """Let the link a job is on fall, and return which and when, once it is to be left for it.

    Noise of a busy machine may have had the job leave a link as it fell: then the next link falls too.
    """
    while True:
        job = service.until(lambda job: (job["domains"] and job["steps_done"] >= 5) or is_final(job))
        assert not is_final(job), "it ended before a link fell"
        fallen = tuple(job["domains"])
        here, there = (NAMES.index(name) for name in fallen)
        network.shape_links(TENTH, [(here, there), (there, here)])
        fell_s = time.time()
        job = service.until(
            lambda job: switches(job, fell_s) or set(job["domains"]) - set(fallen) or is_final(job)  # noqa: B023
        )
        if switches(job, fell_s):
            return fallen, fell_s


def switches(job, since_s):
    """Return when a job was to leave its link for another plan, oldest first."""
    tokens = [(item["at_s"], item["reasons"][0]["token"]) for item in job["decisions"]]
    return [at_s for at_s, token in tokens if at_s >= since_s and token == "training-switched"]


def moments(service, fell_s):
    """Return after how long [s] a bad link was decided on, the job saved, and its next step done elsewhere."""
    decided_s = switches(service.job_data, fell_s)[0]
    lines = service.lines()
    saved_s = next(line["at_s"] for line in lines if "checkpoint" in line and line["at_s"] >= decided_s)
    resumed_s = next(line["at_s"] for line in lines if "loss" in line and line["at_s"] > saved_s)
    return [at_s - fell_s for at_s in (decided_s, saved_s, resumed_s)]


@pytest.mark.parametrize(
    ("command", "tolerance"),
    [
        pytest.param(SMALL, 1e-9, id="numpy", marks=pytest.mark.full("minutes; the demo moves such a job, too")),
        pytest.param(TORCH, 2e-5, id="torch", marks=pytest.mark.real("torch")),
    ],
)
def test_a_job_whose_link_falls_is_moved_and_has_the_losses_of_one_that_was_not(
    tmp_path, capsys, command, tolerance
):
    straight, _, _ = train(tmp_path / "straight", command, is_moved=False)
    moved, fallen, fell_s = train(tmp_path / "moved", command, is_moved=True)
    decided_s, saved_s, resumed_s = moments(moved, fell_s)
    with capsys.disabled():
        sys.stdout.write(
            f"\na link fell to a tenth: decided after {decided_s:.1f} s, saved after {saved_s:.1f} s, first step "
            f"elsewhere after {resumed_s:.1f} s\n"
        )
    attempts = moved.job_data["attempts"]
    follows = next(number for number, item in enumerate(attempts) if item["started_s"] > fell_s + decided_s)
    left, taken = attempts[follows - 1], attempts[follows]
    assert set(left["parts"]) == set(fallen) != set(taken["parts"])
    assert "of the best nominal rate" in left["reason"]
    assert taken["from_step"] == left["checkpoint_step"]
    reports = moved.reports()
    assert [step for _, step, _ in reports] == list(range(1, STEPS + 1))
    losses = {step: loss for _, step, loss in straight.reports()}
    assert {step: loss for _, step, loss in reports} == pytest.approx(losses, abs=tolerance)
