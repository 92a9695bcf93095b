"""Paths of cgroups: by the kernel's text, and as a process sees them that has a cgroup namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from strata.host.machine.cgroups import cgroup_of

POD = "kubepods.slice/kubepods-pod1.slice"
SEES = """
import sys
from pathlib import Path
from strata.host.machine.cgroups import cgroup_of
print(cgroup_of(Path(f"/proc/{sys.argv[1]}/cgroup").read_text()))
"""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/user.slice\n", "/user.slice"),
        ("4:cpu,cpuacct:/a:b\n2:memory:/c\n0::/\n", "/a:b"),
        ("0::/\n", ""),
        ("2:memory:/c\n", ""),
        ("", ""),
    ],
)
def test_the_path_is_that_of_version_2_else_of_the_cpu_controller(text, path):
    assert cgroup_of(text) == path


@pytest.fixture
def container(tmp_path):
    """What a container sees that has a namespace of its own and the machine's /sys: its pod is pod1."""
    own = tmp_path / "sys/fs/cgroup" / POD / "cri-1.scope"
    own.mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    (own / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    return tmp_path


def test_paths_of_others_are_those_of_the_machine(container):
    assert cgroup_of("0::/../../kubepods-pod2.slice/cri-2.scope", container) == (
        "/kubepods.slice/kubepods-pod2.slice/cri-2.scope"
    )
    assert cgroup_of("0::/../../../init.scope", container) == "/init.scope"


def test_without_the_machines_hierarchy_no_path_leads_out_of_it(tmp_path):
    assert cgroup_of("0::/../../../../../etc/pod1", tmp_path) == "/etc/pod1"


@pytest.mark.real("node-rights")
def test_a_real_namespace_shows_what_is_outside_of_it_by_its_path():
    """As containers have it on cgroup v2: `unshare --cgroup` makes the namespace where the process is."""
    base = Path("/sys/fs/cgroup")
    base = base if (base / "cgroup.controllers").exists() else base / "cpu"
    name = f"strata-test-{os.getpid()}"
    with ExitStack() as stack:
        folders = [base / name, *(base / name / each for each in ("agent", "job"))]
        for folder in folders:
            folder.mkdir()
            stack.callback(folder.rmdir)
        waits = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(waits.wait)
        stack.callback(waits.kill)
        (base / name / "job/cgroup.procs").write_text(str(waits.pid))
        enter = f'echo $$ > {base / name / "agent/cgroup.procs"} && exec unshare --cgroup "$@"'
        command = ["sh", "-c", enter, "sh", sys.executable, "-c", SEES, str(waits.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"/{name}/job\n", "")
