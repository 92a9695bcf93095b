"""A real job on one of two real Slurm clusters, moved to the other: its losses are those of a run left alone."""

import json

import pytest

from strata.decision import Trust
from strata.fleet.schema import load_fleet
from tests.control.drivers.slurm_cluster import Cluster, munge
from tests.control.running import SMALL, TORCH, Service, fleet_text, is_final, job_text

pytestmark = pytest.mark.real("slurm", "starlette", "uvicorn")
STEPS = 24


@pytest.fixture(scope="module")
def clusters():
    with munge() as socket:
        made = [Cluster(socket.parent, name, munge_socket=socket) for name in ("one", "two")]
        try:
            for cluster in made:
                cluster.up()
            yield made
        finally:
            for cluster in made:
                cluster.down()


@pytest.fixture
def service(tmp_path, clusters):
    fleet = json.loads(fleet_text())
    fleet["domains"] = fleet["domains"][:2]
    fleet["links"] = fleet["links"][:1]
    for domain, cluster in zip(fleet["domains"], clusters, strict=True):
        domain["driver"] = {"kind": "slurm", "conf": str(cluster.conf)}
    service = Service(tmp_path, json.dumps(fleet))
    service.up()
    yield service
    service.down()


def losses(service, job):
    """Return what rank 0 reported of a job's steps, in the order of attempts and steps."""
    files = service.folder.glob(f"fleet.strata/domains/*/{job}-*/progress.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [
        (step, loss)
        for _, step, loss in sorted((x["attempt"], x["step"], x["loss"]) for x in lines if "loss" in x)
    ]


@pytest.mark.parametrize(
    ("command", "tolerance"),
    [
        pytest.param((*SMALL[:-1], "128"), 1e-9, id="numpy", marks=pytest.mark.full("minutes, as with torch")),
        pytest.param(TORCH, 2e-5, id="torch", marks=pytest.mark.real("torch")),
    ],
)
def test_a_job_is_moved_from_one_cluster_to_the_other_and_has_the_same_losses(service, command, tolerance):
    service.submit(job_text("straight", steps=STEPS, stages=1, command=command))
    job = service.until(is_final, "straight")
    assert (job["phase"], job["steps_done"], len(job["attempts"])) == ("done", STEPS, 1)
    straight = losses(service, "straight")
    service.submit(job_text("moved", steps=STEPS, stages=1, command=service.held(4, command)))
    job = service.until(lambda job: job["steps_done"] >= 3 or job.get("step", 0) >= 3, "moved")
    service.run("drain", job["domains"][0])
    service.until(lambda job: len(job["attempts"]) == 2, "moved")
    service.release()
    job = service.until(is_final, "moved")
    first, last = job["attempts"]
    assert job["phase"] == "done"
    assert set(first["parts"]) != set(last["parts"])
    assert 0 < last["from_step"] == first["step"] == first["checkpoint_step"] < STEPS
    moved = losses(service, "moved")
    assert [step for step, _ in moved] == [step for step, _ in straight] == list(range(1, STEPS + 1))
    assert [loss for _, loss in moved] == pytest.approx([loss for _, loss in straight], abs=tolerance)


def test_a_job_over_both_clusters_meets_though_one_starts_later(service, clusters):
    clusters[1].ask("scontrol", "update", "PartitionName=main", "State=DOWN")
    service.submit(job_text("both", steps=6))
    waits = service.until(lambda job: any("PENDING" in text for text in messages(job)), "both")
    assert waits["phase"] == "running"
    clusters[1].ask("scontrol", "update", "PartitionName=main", "State=UP")
    job = service.until(is_final, "both")
    assert (job["phase"], job["steps_done"], len(job["attempts"])) == ("done", 6, 1)


def test_the_link_between_both_clusters_is_measured_by_a_job_in_each(service):
    path = service.folder / "fleet.json"
    links = json.loads(service.run("fleet", "probe", str(path), "-o", "json").stdout)
    assert [(link["source"], link["dest"]) for link in links] == [("west", "east"), ("east", "west")]
    assert all(link["bandwidth_bytes_per_s"] > 1e6 for link in links)
    assert {link.trust for link in load_fleet(path).links.values()} == {Trust.MEASURED}


def messages(job):
    return [part["message"] for attempt in job["attempts"] for part in attempt["parts"].values()]
