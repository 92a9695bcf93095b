"""Apply and undo on this kernel: real threads, cgroups and pages, and the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.errors import StrataError
from strata.host.apply.journal import Journal
from strata.host.apply.machine import KernelFiles, ThreadGone
from strata.host.apply.refuse import residents
from strata.host.machine.cpus import show
from strata.host.policy.step import Step
from tests.host.apply.builders import applied, undone, written

OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)
"""What children start with: a suite may be run under `nice`."""


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


def ticks(pid):
    with open(f"/proc/{pid}/stat") as stream:
        return int(stream.read().rpartition(")")[2].split()[19])


def real_steps(pid, **more):
    thread = f"/proc/{pid}/task/{pid}"
    cpu = str(max(os.sched_getaffinity(pid)))
    return (
        Step("nice", thread, "7", "as told", "rest", **more),
        Step("affinity", thread, cpu, "as told", "rest", **more),
    )


def test_nice_and_affinity_of_a_real_thread_come_and_go(tmp_path, sleeper):
    everywhere = os.sched_getaffinity(sleeper)
    steps = real_steps(sleeper, start_ticks=ticks(sleeper))
    applied(tmp_path, KernelFiles(), steps)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 7
    assert os.sched_getaffinity(sleeper) == {max(everywhere)}
    if os.geteuid() == 0:  # others may not become less nice again
        undone(tmp_path, KernelFiles())
        assert (os.getpriority(os.PRIO_PROCESS, sleeper), os.sched_getaffinity(sleeper)) == (OWN_NICE, everywhere)


@pytest.mark.parametrize(("given", "before"), [("mine", "0-7"), ("0-1,3", "mine")], ids=["none-of-its-own", "own"])
def test_an_affinity_that_is_all_its_cpuset_gives_comes_back_as_none(tmp_path, sleeper, given, before):
    # As found on Linux 7.2: put back what was there within our cpuset, and it stays when that is gone.
    mine = show(os.sched_getaffinity(sleeper))
    files = {f"proc/{sleeper}/cgroup": "0::/job/strata-pipeline\n", "sys/devices/system/cpu/online": "0-7\n"}
    files["sys/fs/cgroup/job/cpuset.cpus.effective"] = f"{given.replace('mine', mine)}\n"
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = KernelFiles(tmp_path).before("affinity", f"/proc/{sleeper}/task/{sleeper}", "0")
    assert found == before.replace("mine", mine)


def test_a_number_that_belongs_to_another_thread_now_is_left_alone(tmp_path, sleeper):
    found = applied(tmp_path, KernelFiles(), real_steps(sleeper, start_ticks=ticks(sleeper) - 1))
    assert {one.why for one in found} == {"its number belongs to another thread now"}
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == OWN_NICE


def test_the_start_of_a_thread_is_kept_though_the_file_does_not_say_it(tmp_path, sleeper):
    applied(tmp_path, KernelFiles(), real_steps(sleeper))
    assert {one.step.start_ticks for one in Journal(tmp_path).records.values()} == {ticks(sleeper)}


KILLED_CODE = """
import os, signal, sys
from pathlib import Path
from strata.host.apply import act, journal, machine, policy
class Dying(machine.KernelFiles):
    def set(self, what, path, value):
        if what == sys.argv[3] and sys.argv[4] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().set(what, path, value)
        if what == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)
with journal.opened(Path(sys.argv[2])) as kept:
    act.apply(policy.load(sys.argv[1]), Dying(), kept)
"""


TERMINATED_CODE = """
import os, signal, sys
from strata.cli.main import main
from strata.host.apply.machine import KernelFiles
change, sent = KernelFiles.set, []
def dying(self, what, path, value):
    change(self, what, path, value)
    if what == "affinity" and not sent:
        sent.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
KernelFiles.set = dying
sys.argv = ["strata", "host", "apply", sys.argv[1]]
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a nice value again")
def test_apply_that_is_told_to_end_takes_back_what_it_did(tmp_path, sleeper):
    everywhere = os.sched_getaffinity(sleeper)
    file = written(tmp_path, [one.to_dict() for one in real_steps(sleeper)])
    ended = subprocess.run(
        [sys.executable, "-c", TERMINATED_CODE, file],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == 130
    assert (os.getpriority(os.PRIO_PROCESS, sleeper), os.sched_getaffinity(sleeper)) == (OWN_NICE, everywhere)
    assert not (tmp_path / "strata/host/undo.jsonl").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a nice value again")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["nice", "affinity"])
def test_undo_after_kill_9_is_exact_on_a_real_thread(tmp_path, sleeper, what, when):
    everywhere = os.sched_getaffinity(sleeper)
    file = written(tmp_path, [one.to_dict() for one in real_steps(sleeper, start_ticks=ticks(sleeper))])
    died = subprocess.run(
        [sys.executable, "-c", KILLED_CODE, file, str(tmp_path / "state"), what, when], check=False
    )
    assert died.returncode == -signal.SIGKILL
    undone(tmp_path / "state", KernelFiles())
    assert (os.getpriority(os.PRIO_PROCESS, sleeper), os.sched_getaffinity(sleeper)) == (OWN_NICE, everywhere)


def test_pages_of_a_real_process_are_moved_and_stay(tmp_path, sleeper):
    node = min(residents().memory_nodes)
    move = Step("migrate", f"/proc/{sleeper}", str(node), "as told", "critical", ticks(sleeper))
    try:
        assert [one.result for one in applied(tmp_path, KernelFiles(), [move])] == ["done"]
    except StrataError as error:
        pytest.skip(str(error))  # a kernel without NUMA, or no right to move another's pages
    assert [one.result for one in undone(tmp_path, KernelFiles())] == ["kept"]


def test_files_below_a_root_are_read_written_and_removed(tmp_path):
    machine = KernelFiles(tmp_path)
    group = "/sys/fs/cgroup/job"
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job/cgroup.threads").write_text("")
    assert machine.read("mkdir", f"{group}/strata-rest", "") == ""
    machine.set("mkdir", f"{group}/strata-rest", "")
    assert machine.read("mkdir", f"{group}/strata-rest", "") == "there"
    (tmp_path / "sys/fs/cgroup/job/strata-rest/cgroup.threads").write_text("")
    (tmp_path / "proc/51").mkdir(parents=True)
    (tmp_path / "proc/51/cgroup").write_text("9:cpu:/x\n0::/job\n")
    assert machine.read("attach", f"{group}/strata-rest/cgroup.threads", "51") == f"{group}/cgroup.threads"
    with pytest.raises(ThreadGone):
        machine.read("write", f"{group}/cpu.weight", "")


def test_a_thread_is_found_in_the_group_of_resctrl_that_has_it(tmp_path):
    for group, tids in (("", "1\n"), ("mine", "51\n"), ("strata-pipeline", "")):
        folder = tmp_path / "sys/fs/resctrl" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tasks").write_text(tids)
    machine, path = KernelFiles(tmp_path), "/sys/fs/resctrl/strata-pipeline/tasks"
    assert machine.read("attach", path, "51") == "/sys/fs/resctrl/mine/tasks"
    assert machine.read("attach", path, "1") == "/sys/fs/resctrl/tasks"


def run(*arguments):
    return CliRunner().invoke(cli, ["host", *map(str, arguments)])


def test_the_commands_apply_and_undo(tmp_path, sleeper):
    file = written(tmp_path, [one.to_dict() for one in real_steps(sleeper)])
    dry = json.loads(run("apply", file, "--dry-run", "-o", "json").stdout)
    assert [one["result"] for one in dry["steps"]] == ["would", "would"]
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == OWN_NICE
    assert "done" in run("apply", file).stdout
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 7
    if os.geteuid() == 0:
        found = json.loads(run("undo", "-o", "json").stdout)
        assert [one["result"] for one in found["changes"]] == ["restored", "restored"]
        assert os.getpriority(os.PRIO_PROCESS, sleeper) == OWN_NICE
        assert "nothing to undo" in run("undo").stdout


def test_the_kill_switch_stops_every_apply(tmp_path, sleeper):
    file = written(tmp_path, [one.to_dict() for one in real_steps(sleeper)])
    assert json.loads(run("undo", "--off", "-o", "json").stdout)["is_off"]
    refused = run("apply", file)
    assert refused.exception.exit_code == 3
    assert "kill switch" in str(refused.exception)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == OWN_NICE


def test_a_refused_policy_does_nothing_and_exits_3(tmp_path, sleeper):
    starving = Step("affinity", f"/proc/{sleeper}/task/{sleeper}", "9999", "as told", "rest")
    file = written(tmp_path, [one.to_dict() for one in (*real_steps(sleeper), starving)])
    refused = run("apply", file)
    assert refused.exception.exit_code == 3
    assert "no-cpu" in refused.stdout
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == OWN_NICE


@pytest.fixture(scope="module")
def cgroups(tmp_path_factory):
    """A root with this kernel's cgroups of version 2, and a cgroup of ours among them."""
    root = tmp_path_factory.mktemp("root")
    folder = root / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (root / "proc").symlink_to("/proc")
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "cgroup2", "none", str(folder)], check=False, capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("needs root and a kernel with cgroup v2")
    job = folder / f"strata-test-{os.getpid()}"
    job.mkdir()
    yield root, job
    job.rmdir()
    subprocess.run(["umount", str(folder)], check=True)


THREADS = """
import threading
ready = threading.Barrier(3)
def wait():
    ready.wait()
    threading.Event().wait()
for _ in range(2):
    threading.Thread(target=wait, daemon=True).start()
ready.wait()
print("ready", flush=True)
input()
"""


def test_threads_of_one_process_go_to_real_cgroups_and_back(tmp_path, cgroups):
    root, job = cgroups
    machine, name = KernelFiles(root), f"/sys/fs/cgroup/{job.name}"
    with subprocess.Popen(
        [sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        (job / "cgroup.procs").write_text(str(process.pid))
        tids = sorted(int(one) for one in os.listdir(f"/proc/{process.pid}/task"))
        steps = [
            Step("mkdir", f"{name}/strata-critical", "", "as told", "critical"),
            Step("write", f"{name}/strata-critical/cgroup.type", "threaded", "as told", "critical"),
            Step("attach", f"{name}/strata-critical/cgroup.threads", str(tids[1]), "as told", "critical"),
        ]
        assert [one.result for one in applied(tmp_path, machine, steps)] == ["done"] * 3
        assert (job / "strata-critical/cgroup.threads").read_text().split() == [str(tids[1])]
        assert {one.result for one in applied(tmp_path, machine, steps)} == {"already"}
        # A thread that came later, as one born of ours would.
        (job / "strata-critical/cgroup.threads").write_text(str(tids[2]))
        undone(tmp_path, machine)
        assert not (job / "strata-critical").exists()
        assert sorted(map(int, (job / "cgroup.threads").read_text().split())) == tids
        assert (job / "cgroup.type").read_text().strip() == "domain"
        process.kill()


FORKING = """
import os, sys, time
sys.stdin.readline()
if os.fork() == 0:
    time.sleep(60)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def forking():
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def child_of(process):
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as stream:
        return int(stream.read())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a nice value again")
def test_what_a_thread_that_was_put_forward_starts_is_not_put_forward(tmp_path, forking):
    applied(
        tmp_path, KernelFiles(), [Step("nice", f"/proc/{forking.pid}/task/{forking.pid}", "-10", "", "critical")]
    )
    child = child_of(forking)
    assert (os.getpriority(os.PRIO_PROCESS, forking.pid), os.getpriority(os.PRIO_PROCESS, child)) == (-10, 0)
    undone(tmp_path, KernelFiles())
    assert os.getpriority(os.PRIO_PROCESS, forking.pid) == OWN_NICE
    assert os.sched_getscheduler(forking.pid) == os.SCHED_OTHER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a nice value again")
def test_undo_follows_what_the_thread_started_since(tmp_path, forking):
    everywhere = os.sched_getaffinity(forking.pid)
    applied(tmp_path, KernelFiles(), real_steps(forking.pid))
    child = child_of(forking)
    assert (os.getpriority(os.PRIO_PROCESS, child), os.sched_getaffinity(child)) == (7, {max(everywhere)})
    found = undone(tmp_path, KernelFiles())
    assert (os.getpriority(os.PRIO_PROCESS, child), os.sched_getaffinity(child)) == (OWN_NICE, everywhere)
    assert all(f"1 thread it started since ({child})" in one.why for one in found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a nice value")
def test_a_child_that_others_put_forward_as_far_is_theirs(tmp_path, forking):
    step = Step("nice", f"/proc/{forking.pid}/task/{forking.pid}", "-10", "", "critical")
    applied(tmp_path, KernelFiles(), [step])
    child = child_of(forking)
    os.setpriority(os.PRIO_PROCESS, child, -10)
    undone(tmp_path, KernelFiles())
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in (forking.pid, child)] == [OWN_NICE, -10]
