"""Two jobs on accelerators of one host, in a private /dev with a made-up card: each leaves the other alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

SCENE = """
import json, os, stat, subprocess, sys
os.setpriority(os.PRIO_PROCESS, 0, 0)  # of tests that run at low priority: who has it already is given none
os.mknod("/dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
os.mknod("/dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
BUSY = "\\nos.write(1, b'.')\\nwhile True: pass"
HOLDS = "import os; card = os.open('/dev/nvidia0', os.O_RDWR)"
def start(code):
    return subprocess.Popen([sys.executable, "-c", code + BUSY], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
a, b, stranger = start(HOLDS), start(HOLDS + "; os.fork()"), start("import os")
try:
    for process, how_many in ((a, 1), (b, 2), (stranger, 1)):
        assert len(process.stdout.read(how_many)) == how_many
    from click.testing import CliRunner
    from strata.cli.main import cli
    from strata.host.policy import plain
    plain.SETTLED_S = plain.NOISE = 0.0  # it is young, and may have had little of a loaded machine
    ran = CliRunner().invoke(cli, ["host", "layers", "--plain", "--pid", str(a.pid), "-o", "json"])
    from strata.host.threads.observe import observe
    children = [pid for pid, parent in observe().parents.items() if parent == b.pid]
    scene = {"a": a.pid, "b": [b.pid, *children], "stranger": stranger.pid}
    print(json.dumps({**scene, "policy": json.loads(ran.stdout)}))
    for child in children:
        os.kill(child, 9)
finally:
    for process in (a, b, stranger):
        process.kill()
        process.wait()
"""


@pytest.fixture(scope="module")
def scene():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root makes devices")
    private = 'mount -t tmpfs -o mode=755 none /dev && exec "$0" -c "$1"'
    ran = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", private, sys.executable, SCENE],
        capture_output=True,
        timeout=300,
        check=False,
    )
    if b"Operation not permitted" in ran.stderr:
        pytest.skip("no mounts or devices may be made here")
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout)


def pids_of(steps):
    return {int(step["path"].split("/")[2]) for step in steps if step["path"].startswith("/proc/")}


def test_a_policy_for_one_job_touches_no_thread_of_another(scene):
    assert len(scene["b"]) == 2
    steps = scene["policy"]["steps"]
    assert not pids_of(steps) & set(scene["b"])
    assert scene["stranger"] in pids_of(steps)


def test_nor_does_it_put_its_own_before_them(scene):
    assert not [step for step in scene["policy"]["steps"] if step["value"].startswith("-")]
    (left,) = (each for each in scene["policy"]["left_out"] if each["what"].startswith("other jobs"))
    assert str(scene["b"][0]) in left["what"]
