"""Apply and undo: what was there comes back exactly, whenever the process dies; nobody is starved."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pretend_kernel import JOB, NOISE, THREAD, Kernel, Killed, policy
from strata.cli.main import cli
from strata.errors import MissingPart, StrataError, UsageError
from strata.host.apply.act import apply, preview
from strata.host.apply.journal import Journal, folder_of, opened
from strata.host.apply.machine import Gone, Machine
from strata.host.apply.policy import load
from strata.host.apply.refuse import Residents, refusals, residents
from strata.host.apply.undo import undo
from strata.host.layers.plain import Step

STEPS = policy()
IRQ = "/proc/irq/24/smp_affinity_list"


def applied(folder, kernel, steps=STEPS):
    with opened(folder) as journal:
        return apply(steps, kernel, journal)


def undone(folder, kernel, **more):
    with opened(folder) as journal:
        return undo(kernel, journal, **more)


def test_every_step_is_done_and_undo_brings_everything_back(tmp_path):
    kernel = Kernel()
    before = dict(kernel.state)
    assert {one.result for one in applied(tmp_path, kernel)} == {"done"}
    assert kernel.state["nice", THREAD] == "-10"
    assert kernel.state["attach", "51"] == f"{JOB}/strata-critical/cgroup.threads"
    assert kernel.state["write", "/sys/fs/cgroup/cgroup.subtree_control"] == "cpu cpuset memory"
    assert {one.result for one in undone(tmp_path, kernel)} == {"restored", "kept"}
    assert kernel.state == before
    assert undone(tmp_path, kernel) == ()


def test_a_second_apply_changes_nothing_and_one_undo_is_enough(tmp_path):
    kernel = Kernel()
    before = dict(kernel.state)
    applied(tmp_path, kernel)
    once = dict(kernel.state)
    again = applied(tmp_path, kernel)
    assert {one.result for one in again if one.step.act != "migrate"} == {"already"}
    assert kernel.state == once
    undone(tmp_path, kernel)
    assert kernel.state == before


@pytest.mark.parametrize("after", [False, True], ids=["before-the-write", "after-the-write"])
@pytest.mark.parametrize("dies_at", range(len(STEPS)))
def test_killed_at_any_change_undo_is_exact(tmp_path, dies_at, after):
    kernel = Kernel(dies_at=dies_at, after=after)
    before = dict(kernel.state)
    with pytest.raises(Killed):
        applied(tmp_path, kernel)
    assert (kernel.state != before) == (dies_at > 0 or after)
    undone(tmp_path, kernel)
    assert kernel.state == before


@pytest.mark.parametrize("after", [False, True], ids=["before-the-write", "after-the-write"])
@pytest.mark.parametrize("dies_at", range(14))
def test_killed_while_undoing_the_next_undo_ends_it(tmp_path, dies_at, after):
    kernel = Kernel()
    before = dict(kernel.state)
    applied(tmp_path, kernel)
    kernel.__dict__.update(dies_at=kernel.changes + dies_at, after=after)
    try:
        undone(tmp_path, kernel)
    except Killed:
        undone(tmp_path, kernel)
    assert kernel.state == before


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 10**6))
def test_a_journal_cut_anywhere_still_says_all_that_was_done(tmp_path_factory, cut):
    # A power cut loses the end of the journal; what was not announced on disk was not done yet.
    folder = tmp_path_factory.mktemp("journal")
    applied(folder, Kernel())
    raw = (folder / "undo.jsonl").read_bytes()
    (folder / "undo.jsonl").write_bytes(raw[: cut % len(raw)])
    known = Journal(folder).records
    kernel = Kernel()
    before = dict(kernel.state)
    for step in STEPS[: len(known)]:
        kernel._set(step.act, step.path, step.value)
    undone(folder, kernel)
    assert kernel.state == before


def test_a_journal_goes_on_behind_a_line_that_was_cut_off(tmp_path):
    kernel = Kernel()
    applied(tmp_path, kernel, STEPS[:1])
    with (tmp_path / "undo.jsonl").open("ab") as stream:
        stream.write(b'{"n": 1, "step": {"act"')
    applied(tmp_path, kernel, STEPS[1:2])
    assert [one.step.act for one in Journal(tmp_path).records.values()] == ["nice", "affinity"]


def test_a_damaged_journal_is_told_and_never_thrown_away(tmp_path):
    (tmp_path / "undo.jsonl").write_text('{"form": "strata-host-undo/1", "boot": "b"}\nnonsense\n')
    with pytest.raises(StrataError, match=r"undo\.jsonl:2"):
        Journal(tmp_path)
    (tmp_path / "undo.jsonl").write_text('{"form": "strata-host-undo/9", "boot": "b"}\n')
    with pytest.raises(StrataError, match="another version"):
        Journal(tmp_path)
    assert (tmp_path / "undo.jsonl").exists()


def test_what_others_changed_since_is_left_to_them(tmp_path):
    kernel = Kernel()
    applied(tmp_path, kernel)
    kernel.state["nice", THREAD] = "3"
    kernel.state["write", IRQ] = "1"
    found = {one.record.step.path: one for one in undone(tmp_path, kernel) if one.result == "changed"}
    assert set(found) == {THREAD, IRQ}
    assert "'1'" in found[IRQ].why
    assert (kernel.state["nice", THREAD], kernel.state["write", IRQ]) == ("3", "1")
    assert undone(tmp_path, kernel) == ()


def test_controllers_that_others_switched_on_since_stay_on(tmp_path):
    kernel = Kernel()
    applied(tmp_path, kernel)
    kernel.state["write", f"{JOB}/cgroup.subtree_control"] += " pids"
    undone(tmp_path, kernel)
    assert kernel.state["write", f"{JOB}/cgroup.subtree_control"] == "pids"


def test_controllers_that_others_use_since_stay_on(tmp_path):
    kernel = Kernel()
    applied(tmp_path, kernel)
    kernel.refuses["/sys/fs/cgroup/cgroup.subtree_control"] = OSError(errno.EBUSY, "Device or resource busy")
    found = [one for one in undone(tmp_path, kernel) if one.result == "changed"]
    assert [one.why for one in found] == ["cgroups below use these controllers now"]
    assert undone(tmp_path, kernel) == ()


def test_threads_born_in_our_cgroup_move_up_when_it_goes(tmp_path):
    kernel = Kernel()
    applied(tmp_path, kernel)
    kernel.state["attach", "77"] = f"{JOB}/strata-critical/cgroup.threads"
    undone(tmp_path, kernel)
    assert kernel.state["attach", "77"] == f"{JOB}/cgroup.threads"


def test_threads_that_ended_are_skipped_by_both(tmp_path):
    kernel = Kernel()
    kernel.gone.add(THREAD)
    results = [one.result for one in applied(tmp_path, kernel)]
    assert results[:3] == ["skipped", "skipped", "done"]
    kernel.gone.add("51")
    assert "gone" in {one.result for one in undone(tmp_path, kernel)}


def test_after_a_reboot_nothing_is_left_to_undo(tmp_path):
    applied(tmp_path, Kernel())
    fresh = Kernel(boot="boot-2")
    before = dict(fresh.state)
    assert {one.result for one in undone(tmp_path, fresh)} == {"gone"}
    assert fresh.state == before
    applied(tmp_path, Kernel())
    later = Kernel(boot="boot-3")
    applied(tmp_path, later)
    undone(tmp_path, later)
    assert later.state == before


def test_a_step_the_kernel_refuses_takes_all_back(tmp_path):
    kernel = Kernel()
    before = dict(kernel.state)
    kernel.refuses[f"{NOISE}/cpuset.cpus"] = OSError(errno.EBUSY, "Device or resource busy")
    with pytest.raises(StrataError, match=r"cpuset\.cpus.*busy; all that was done is undone"):
        applied(tmp_path, kernel)
    assert kernel.state == before
    kernel.refuses[f"{NOISE}/cpuset.cpus"] = PermissionError(errno.EPERM, "Operation not permitted")
    with pytest.raises(MissingPart):
        applied(tmp_path, kernel)
    assert kernel.state == before


def test_a_failed_apply_takes_back_itself_only(tmp_path):
    kernel = Kernel()
    applied(tmp_path, kernel, STEPS[:2])
    kernel.refuses[IRQ] = OSError(errno.EBUSY, "busy")
    with pytest.raises(StrataError):
        applied(tmp_path, kernel)
    assert kernel.state["nice", THREAD] == "-10"
    assert ("mkdir", f"{JOB}/strata-critical") not in kernel.state


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.ENOSPC, errno.EPERM])
def test_an_interrupt_the_kernel_places_itself_is_skipped(tmp_path, number):
    kernel = Kernel()
    kernel.refuses[IRQ] = OSError(number, "no")
    last = applied(tmp_path, kernel)[-1]
    assert (last.result, last.why) == ("skipped", "the kernel places this interrupt itself")


def test_a_change_that_cannot_be_put_back_stays_in_the_journal(tmp_path):
    kernel = Kernel()
    before = dict(kernel.state)
    applied(tmp_path, kernel)
    kernel.refuses[IRQ] = OSError(errno.EIO, "Input/output error")
    assert [one.record.step.path for one in undone(tmp_path, kernel) if one.result == "failed"] == [IRQ]
    kernel.refuses.clear()
    assert [one.result for one in undone(tmp_path, kernel)] == ["restored"]
    assert kernel.state == before


def test_previews_change_nothing(tmp_path):
    kernel = Kernel()
    before = dict(kernel.state)
    assert {one.result for one in preview(STEPS, kernel)} == {"would"}
    assert kernel.state == before
    applied(tmp_path, kernel)
    there = dict(kernel.state)
    assert {one.result for one in undone(tmp_path, kernel, is_dry=True)} == {"would", "kept"}
    assert kernel.state == there
    assert {one.result for one in undone(tmp_path, kernel)} == {"restored", "kept"}


def test_two_at_once_do_not_mix(tmp_path):
    with opened(tmp_path), pytest.raises(UsageError, match="another strata"), opened(tmp_path):
        pass


# --- nobody starves -----------------------------------------------------------------------------------------

HERE = Residents(frozenset(range(4)), frozenset({0}), {0: frozenset({"/", "/job"}), 7: frozenset({"/batch/a"})})


def step(path, value, act="write"):
    return Step(act, path, value, "as told", "rest")


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


# --- files of steps -----------------------------------------------------------------------------------------


def written(folder, steps):
    path = folder / "policy.json"
    path.write_text(json.dumps({"steps": steps, "left_out": []}))
    return str(path)


def test_a_policy_comes_back_as_it_was_written(tmp_path):
    steps = (*STEPS, replace(STEPS[0], start_ticks=17))
    assert load(written(tmp_path, [one.to_dict() for one in steps])) == steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/etc/passwd"}, "nothing that write may touch"),
        ({"path": "/sys/fs/cgroup/../../../etc/cpu.weight"}, "nothing that write may touch"),
        ({"act": "exec"}, "should be one of"),
        ({"value": "10; rm"}, "nothing to write there"),
        ({"value": 10}, "value should be text"),
        ({"layer": "vip"}, "should be one of critical"),
        ({"start_ticks": -1}, "clock ticks"),
        ({"extra": 1}, "unknown key"),
        ({"act": "nice", "path": THREAD, "value": "-21"}, "nothing to write there"),
    ],
)
def test_a_file_may_touch_only_what_policies_touch(tmp_path, change, message):
    good = step(f"{NOISE}/cpu.weight", "10").to_dict()
    with pytest.raises(UsageError) as caught:
        load(written(tmp_path, [good, {**good, **change}]))
    assert message in str(caught.value)
    assert "steps.1" in str(caught.value)


def test_a_policy_of_scx_layered_is_sent_to_its_own_command(tmp_path):
    path = tmp_path / "layers.json"
    path.write_text('[{"name": "rest", "matches": [[]], "kind": {"Open": {}}}]')
    with pytest.raises(UsageError) as caught:
        load(str(path))
    assert caught.value.hint == f"strata host run-layered {path}"


def test_the_journal_of_root_outlives_a_reboot(tmp_path):
    assert str(folder_of({}, user=0)) == "/var/lib/strata/host"
    assert folder_of({"XDG_STATE_HOME": str(tmp_path)}, user=0) == tmp_path / "strata/host"


# --- this kernel --------------------------------------------------------------------------------------------


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
    applied(tmp_path, Machine(), steps)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 7
    assert os.sched_getaffinity(sleeper) == {max(everywhere)}
    if os.geteuid() == 0:  # others may not become less nice again
        undone(tmp_path, Machine())
        assert (os.getpriority(os.PRIO_PROCESS, sleeper), os.sched_getaffinity(sleeper)) == (0, everywhere)


def test_a_number_that_belongs_to_another_thread_now_is_left_alone(tmp_path, sleeper):
    found = applied(tmp_path, Machine(), real_steps(sleeper, start_ticks=ticks(sleeper) - 1))
    assert {one.why for one in found} == {"its number belongs to another thread now"}
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 0


KILLED_CODE = """
import os, signal, sys
from pathlib import Path
from strata.host.apply import act, journal, machine, policy
class Dying(machine.Machine):
    def set(self, what, path, value):
        if what == sys.argv[3] and sys.argv[4] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().set(what, path, value)
        if what == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)
with journal.opened(Path(sys.argv[2])) as kept:
    act.apply(policy.load(sys.argv[1]), Dying(), kept)
"""


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
    undone(tmp_path / "state", Machine())
    assert (os.getpriority(os.PRIO_PROCESS, sleeper), os.sched_getaffinity(sleeper)) == (0, everywhere)


def test_pages_of_a_real_process_are_moved_and_stay(tmp_path, sleeper):
    node = min(residents().memory_nodes)
    move = Step("migrate", f"/proc/{sleeper}", str(node), "as told", "critical", ticks(sleeper))
    try:
        assert [one.result for one in applied(tmp_path, Machine(), [move])] == ["done"]
    except StrataError as error:
        pytest.skip(str(error))  # a kernel without NUMA, or no right to move another's pages
    assert [one.result for one in undone(tmp_path, Machine())] == ["kept"]


def test_files_below_a_root_are_read_written_and_removed(tmp_path):
    machine = Machine(tmp_path)
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
    with pytest.raises(Gone):
        machine.read("write", f"{group}/cpu.weight", "")


def test_a_thread_is_found_in_the_group_of_resctrl_that_has_it(tmp_path):
    for group, tids in (("", "1\n"), ("mine", "51\n"), ("strata-pipeline", "")):
        folder = tmp_path / "sys/fs/resctrl" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tasks").write_text(tids)
    machine, path = Machine(tmp_path), "/sys/fs/resctrl/strata-pipeline/tasks"
    assert machine.read("attach", path, "51") == "/sys/fs/resctrl/mine/tasks"
    assert machine.read("attach", path, "1") == "/sys/fs/resctrl/tasks"


# --- the commands -------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(cli, ["host", *map(str, arguments)])


def test_the_commands_apply_and_undo(tmp_path, sleeper):
    file = written(tmp_path, [one.to_dict() for one in real_steps(sleeper)])
    dry = json.loads(run("apply", file, "--dry-run", "-o", "json").stdout)
    assert [one["result"] for one in dry["steps"]] == ["would", "would"]
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 0
    assert "done" in run("apply", file).stdout
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 7
    if os.geteuid() == 0:
        found = json.loads(run("undo", "-o", "json").stdout)
        assert [one["result"] for one in found["changes"]] == ["restored", "restored"]
        assert os.getpriority(os.PRIO_PROCESS, sleeper) == 0
        assert "nothing to undo" in run("undo").stdout


def test_the_kill_switch_stops_every_apply(tmp_path, sleeper):
    file = written(tmp_path, [one.to_dict() for one in real_steps(sleeper)])
    assert json.loads(run("undo", "--off", "-o", "json").stdout)["is_off"]
    refused = run("apply", file)
    assert refused.exception.exit_code == 3
    assert "kill switch" in str(refused.exception)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 0


def test_a_refused_policy_does_nothing_and_exits_3(tmp_path, sleeper):
    starving = Step("affinity", f"/proc/{sleeper}/task/{sleeper}", "9999", "as told", "rest")
    file = written(tmp_path, [one.to_dict() for one in (*real_steps(sleeper), starving)])
    refused = run("apply", file)
    assert refused.exception.exit_code == 3
    assert "no-cpu" in refused.stdout
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 0


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
    machine, name = Machine(root), f"/sys/fs/cgroup/{job.name}"
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
