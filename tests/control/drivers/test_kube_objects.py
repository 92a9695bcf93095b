"""The scripts of a pod, run as it runs them: ranks in their own environment, stops that let them save, ends."""

import os
import signal
import subprocess

import pytest

from strata.control.drivers import kube_objects
from strata.training.program.client import STOPPED

pytestmark = pytest.mark.long("waits for scripts that look once a second")
SAVES = "trap 'echo saved $RANK; exit 143' TERM; echo up $RANK; while :; do sleep 0.1; done"


def pod(folder, command, *, index=0, grace_s=60.0):
    """Start the pod of a node: ranks 0 and 1, or rank 2."""
    environments = {rank: {"RANK": str(rank), "ODD": "a'b $(x)", "WORLD_SIZE": "3"} for rank in range(3)}
    made = kube_objects.record(
        "r", "job-1", {}, ranks_json={}, environments=environments, nodes=((0, 1), (2,)), steps=9, grace_s=grace_s
    )
    for name, text in made["data"].items():
        own = text.replace("/tmp/", f"{folder}/tmp/").replace(kube_objects.FOLDER, str(folder))
        (folder / name).write_text(own if not name.startswith("rank-") else text)
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        ["sh", str(folder / "node.sh"), *command], stdout=subprocess.PIPE, text=True,
        start_new_session=True, env={"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index)},
    )  # fmt: skip


def test_every_rank_of_the_node_runs_in_its_own_environment(tmp_path):
    process = pod(tmp_path, ("sh", "-c", 'echo "$RANK/$WORLD_SIZE $ODD"'))
    assert sorted(process.communicate()[0].splitlines()) == ["0/3 a'b $(x)", "1/3 a'b $(x)"]
    assert process.returncode == 0


@pytest.mark.parametrize("by", ["record", "kubelet"])
def test_ranks_are_asked_to_save_by_the_record_or_by_the_kubelet(tmp_path, by):
    process = pod(tmp_path, ("sh", "-c", SAVES))
    assert {process.stdout.readline() for _ in range(2)} == {"up 0\n", "up 1\n"}
    if by == "record":
        (tmp_path / "stop").write_text("60")
    else:
        process.send_signal(signal.SIGTERM)
    assert sorted(process.communicate()[0].splitlines()) == ["saved 0", "saved 1"]
    assert process.returncode == STOPPED


def test_who_is_deaf_is_left_after_the_grace(tmp_path):
    process = pod(tmp_path, ("sh", "-c", "trap '' TERM; echo up; sleep 600"), index=1)
    process.stdout.readline()
    (tmp_path / "stop").write_text("1")
    assert process.wait() == 137
    os.killpg(process.pid, signal.SIGKILL)  # in a pod it ends with its container
    process.stdout.close()


def test_one_rank_that_fails_ends_the_pod_with_its_code(tmp_path):
    process = pod(tmp_path, ("sh", "-c", "[ $RANK = 1 ] && exit 3; sleep 30"))
    assert process.wait() == 3
    process.stdout.close()
