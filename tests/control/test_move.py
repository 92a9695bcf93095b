"""A real job across two of three shaped networks: its link falls to a tenth, and it goes on elsewhere."""

import os
import shutil
import sys
import time

import pytest

from strata.evaluation.testbed.namespaces import LinkShape, Namespaces
from tests.control.running import NAMES, SMALL, Service, fleet_text, job_text

pytestmark = [
    pytest.mark.long("trains over shaped links, twice"),
    pytest.mark.real("starlette", "uvicorn"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root, ip and tc"),
]
STEPS = 40
NOMINAL, TENTH = LinkShape(4e6, 0.0), LinkShape(4e5, 0.0)


TORCH = (
    "python", "-m", "strata.training.export.train", "--hidden-size", "128", "--num-heads", "4",
    "--sequence-length", "64",
)  # fmt: skip


def train(folder, command, *, is_moved):
    """Return the job at its end, what rank 0 reported, and when its link fell [Unix s]."""
    folder.mkdir()
    fell_s = None
    with Namespaces(3, has_latency=False) as network:
        network.shape(NOMINAL)
        service = Service(folder, fleet_text(namespaces=network.names), policy="hi-ppo")
        service.up()
        try:
            service.submit(job_text(steps=STEPS, save_every=20, command=command))
            if is_moved:
                job = service.until(lambda job: job["steps_done"] >= 5)
                here, there = (NAMES.index(name) for name in job["domains"])
                network.shape_links(TENTH, [(here, there), (there, here)])
                fell_s, before = time.time(), len(job["attempts"])
                service.until(lambda job: len(job["attempts"]) > before)
            job = service.job_data = service.until(lambda job: job["phase"] in ("done", "failed"))
        finally:
            service.down()
    assert job["phase"] == "done"
    return job, service, fell_s


def moments(service, fell_s):
    """Return after how long [s] a bad link was decided on, the job saved, and its next step done elsewhere."""
    decisions = service.job_data["decisions"]
    tokens = [(item["at_s"], item["reasons"][0]["token"]) for item in decisions]
    decided_s = next(at_s for at_s, token in tokens if at_s >= fell_s and token == "training-switched")
    lines = service.lines()
    saved_s = next(line["at_s"] for line in lines if "checkpoint" in line and line["at_s"] >= decided_s)
    resumed_s = next(line["at_s"] for line in lines if "loss" in line and line["at_s"] > saved_s)
    return [at_s - fell_s for at_s in (decided_s, saved_s, resumed_s)]


@pytest.mark.parametrize(
    ("command", "tolerance"),
    [
        pytest.param(SMALL, 1e-9, id="numpy"),
        pytest.param(TORCH, 2e-5, id="torch", marks=pytest.mark.real("torch")),
    ],
)
def test_a_job_whose_link_falls_is_moved_and_has_the_losses_of_one_that_was_not(
    tmp_path, capsys, command, tolerance
):
    _, straight, _ = train(tmp_path / "straight", command, is_moved=False)
    job, moved, fell_s = train(tmp_path / "moved", command, is_moved=True)
    decided_s, saved_s, resumed_s = moments(moved, fell_s)
    with capsys.disabled():
        sys.stdout.write(
            f"\na link fell to a tenth: decided after {decided_s:.1f} s, saved after {saved_s:.1f} s, first step "
            f"elsewhere after {resumed_s:.1f} s\n"
        )
    first, *_, last = job["attempts"]
    assert set(first["parts"]) != set(last["parts"])
    assert "of the best nominal rate" in first["reason"]
    assert last["from_step"] == job["attempts"][-2]["checkpoint_step"]
    reports = moved.reports()
    assert [step for _, step, _ in reports] == list(range(1, STEPS + 1))
    losses = {step: loss for _, step, loss in straight.reports()}
    assert {step: loss for _, step, loss in reports} == pytest.approx(losses, abs=tolerance)
