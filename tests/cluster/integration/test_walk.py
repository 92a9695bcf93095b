"""One job through all levels: submitted, put into a domain, placed, in a container, at its steps, over.

docs/walk.md shows what this test sees.
"""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, JOB, conditions_of, name_of
from tests.cluster.builders import B3
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.cluster.integration.test_real_node import GPU, VISIBLE, agent, environment, node, strata
from tests.support.real_processes import Process, until

pytestmark = pytest.mark.real("grpc", "node", "node-rights", "uvicorn")
__all__ = ["agent", "node", "strata"]

STEPS = 20
TRAIN = f"""\
env
echo END
step=0
while [ $step -lt {STEPS} ]; do
  sleep 1
  step=$((step + 1))
  [ $RANK != 0 ] || echo "{{\\"step\\": $step, \\"step_time_s\\": 1.0}}" > $STRATA_PROGRESS
done
"""
JOB_FILE = {
    "apiVersion": "strata/v1alpha1",
    "kind": "TrainingJob",
    "name": "walk",
    "model": "opt-350m",
    "train": {"global_batch": 64, "sequence": 1024},
    "parallel": {"tensor": 1, "pipeline": 1, "data": 1},  # a rank asks for a core, and small machines have few
    "run": {"command": ["sh", "-c", TRAIN], "steps": STEPS},
}


def fleet(plane, namespace):
    """Two domains of one cluster: the real node, and a node of Ascend cards that has no machine."""
    driver = {
        "kind": "kubernetes", "managed": True, "image": IMAGE, "kubeconfig": str(plane.kubeconfig()),
        "namespace": namespace,
    }  # fmt: skip
    domains = [
        {"name": name, "accelerator": card, "num_gpus": 8, "gpus_per_node": 8, "driver": driver}
        for name, card in (("west", "H100-SXM5-80GB"), ("east", B3))
    ]
    links = [{"between": ["west", "east"], "bandwidth": "10Gbps", "latency": "5ms"}]
    head = {"apiVersion": "strata/v1alpha1", "kind": "Fleet", "name": "two"}
    return json.dumps({**head, "domains": domains, "links": links})


@pytest.fixture
def scheduler(plane, strata, nodes, namespace, tmp_path):
    """The control loop, `strata up`, on those domains."""
    strata.devices(nodes, "a1", B3)
    (tmp_path / "fleet.json").write_text(fleet(plane, namespace))
    (tmp_path / "walk.json").write_text(json.dumps(JOB_FILE))
    options = ("--port", "0", "--policy", "exact")
    made = Process(tmp_path / "log", "up", str(tmp_path / "fleet.json"), *options)
    yield made
    made.close()
    strata.api.delete(COMPUTE_NODE, "a1")


def test_one_job_is_walked_from_its_file_to_its_steps_and_every_level_says_why(
    scheduler, strata, node, agent, api, namespace, tmp_path, capsys
):
    until(lambda: (api.get(COMPUTE_NODE, node.name) or {}).get("status"), lambda: agent.log)
    url = scheduler.popen.stdout.readline().split()[3].rstrip(",")

    def said(*command):
        assert run([*command, "--server", url]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    def seen():
        return json.loads(said("job", "walk", "-o", "json"))

    # Level 1: a domain.
    said("submit", str(tmp_path / "walk.json"))
    until(lambda: seen()["domains"] == ["west"], lambda: f"west: {said('job', 'walk', '--why')}{scheduler.log}")
    # Level 2: its part is a gang, which has a claim and a place.
    (job,) = until(lambda: api.list(JOB, namespace=namespace)[0], lambda: scheduler.log)
    (pod,) = strata.pods(namespace, name_of(job))
    assert pod["spec"]["nodeName"] == node.name
    (routed,) = conditions_of(api.get(COMPUTE_CLAIM, f"job-{name_of(job)}", namespace))
    assert routed["reason"] == "GangPlaced"
    # Level 3: its container has the card's image and environment, the plan's ranks, the kubelet's devices.
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    assert int(container["resources"]["limits"][GPU]) == 1
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {
        "/strata/part",
        "/dev/shm",
        "/workspace",
    }
    env = environment(node, pod)
    assert env["FROM_PROFILE"] == "yes"
    assert tuple(env[VISIBLE].split(",")) == node.plugin.given[-1]
    assert (env["WORLD_SIZE"], env["STRATA_JOB"], env["STRATA_STEPS"]) == ("1", "walk", str(STEPS))
    # Its steps come back, and every level's answer is in one place.
    running = until(lambda: (one := seen())["steps_done"] > 2 and one, lambda: f"steps: {seen()} {scheduler.log}")
    (attempt,) = running["attempts"]
    assert attempt["parts"]["west"]["message"] == routed["message"], "level 2's own words"
    shown = said("job", "walk", "--why")
    assert routed["message"] in " ".join(shown.split())
    over = until(lambda: (one := seen())["phase"] == "done" and one, lambda: f"its end: {seen()} {scheduler.log}")
    assert (over["steps_done"], len(over["attempts"])) == (STEPS, 1)
    assert over["decisions"][0]["choice"]["pipelines"][0]["stages"][0]["domain"] == "west", (
        "kept, with its reasons"
    )
    assert scheduler.end() == 0, scheduler.log
