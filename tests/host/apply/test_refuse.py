"""Nobody is starved: a policy with such a step is refused before any is taken."""

from __future__ import annotations

import os

import pytest

from strata.host.apply.refuse import Residents, refusals, residents
from tests.host.apply.builders import IRQ, step
from tests.host.pretend_kernel import NOISE, THREAD

HERE = Residents(frozenset(range(4)), frozenset({0}), {0: frozenset({"/", "/job"}), 7: frozenset({"/batch/a"})})


@pytest.mark.parametrize(
    ("one", "token"),
    [
        (step(f"{NOISE}/cpuset.cpus", ""), "no-cpu"),
        (step(f"{NOISE}/cpuset.cpus", "4-7"), "no-cpu"),
        (step(THREAD, "9", "affinity"), "no-cpu"),
        (step(IRQ, "12"), "no-cpu"),
        (step(f"{NOISE}/cpuset.mems", "1"), "no-memory"),
        (step(f"{NOISE}/cpuset.mems", ""), "no-memory"),
        (step("/proc/50", "3", "migrate"), "no-memory"),
        (step(f"{NOISE}/cpu.weight", "0"), "no-weight"),
        (step("/sys/fs/resctrl/strata-pipeline/schemata", "MB:0=50;1=0"), "no-bandwidth"),
        (step("/sys/fs/cgroup/system.slice/cpu.idle", "1"), "system-idle"),
        (step("/sys/fs/cgroup/cpu.idle", "1"), "system-idle"),
        (step(f"{NOISE}/cpu.idle", "1"), "user-idle"),
    ],
)
def test_a_step_that_would_starve_someone_is_refused(one, token):
    assert [refusal.token for refusal in refusals([one], HERE)][:1] == [token]


@pytest.mark.parametrize(
    "one",
    [
        step(f"{NOISE}/cpuset.cpus", "3-7"),
        step(f"{NOISE}/cpu.weight", "1"),
        step("/sys/fs/cgroup/batch/b/cpu.idle", "1"),
        step(f"{NOISE}/cpu.idle", "0"),
        step("/sys/fs/cgroup/job/cpu.idle", "1"),
        step("/sys/fs/resctrl/strata-pipeline/schemata", "MB:0=50;1=10"),
    ],
)
def test_steps_that_leave_everyone_something_are_not_refused(one):
    assert refusals([one], HERE) == ()


def test_who_lives_here_is_read_from_proc(tmp_path):
    for pid, group, pages in ((1, "/init.scope", 10), (40, "/", 0), (50, "/job", 5)):
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::{group}\n")
        (folder / "statm").write_text(f"{pages} 0 0\n")
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-7\n")
    found = residents(tmp_path)
    assert found.cpus == frozenset(range(8))
    assert found.groups == {os.geteuid(): frozenset({"/init.scope", "/job"})}
