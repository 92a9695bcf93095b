"""Apply and undo: what was there comes back exactly, whenever the process dies."""

from __future__ import annotations

import errno
import resource
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import MissingPart, StrataError, UsageError
from strata.host.apply.act import preview
from strata.host.apply.journal import Journal, opened
from tests.host.apply.builders import IRQ, STEPS, applied, undone
from tests.host.pretend_kernel import JOB, NOISE, THREAD, Kernel, Killed
from tests.support.laws import examples


def test_every_step_is_done_and_undo_brings_everything_back(tmp_path):
    kernel = Kernel()
    before = dict(kernel.state)
    assert {one.result for one in applied(tmp_path, kernel)} == {"done"}
    assert kernel.state["nice", THREAD] == "-10 reset-on-fork"
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


@examples(20)
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


def test_the_disk_is_waited_for_once_a_step_and_not_when_it_is_taken_back(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr("strata.host.apply.journal.os.fsync", waits.append)
    kernel = Kernel()
    applied(tmp_path, kernel)
    begun = 2  # the first line, and the folder
    assert len(waits) == len(STEPS) + begun
    undone(tmp_path, kernel)
    assert len(waits) == len(STEPS) + begun + 1  # the folder, when it goes aside


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
    assert kernel.state["nice", THREAD] == "-10 reset-on-fork"
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


@pytest.mark.parametrize("room", [0, 1, 40, 400, 1200, 2200])
def test_a_disk_that_runs_full_takes_all_back_and_the_journal_stays_whole(tmp_path, room):
    kernel = Kernel()
    before = dict(kernel.state)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(StrataError, match=r"undo\.jsonl: File too large|No space left"):
            applied(tmp_path, kernel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kernel.state == before
    assert {one.result for one in undone(tmp_path, kernel)} <= {"unchanged", "gone", "kept"}
    applied(tmp_path, kernel)
    undone(tmp_path, kernel)
    assert kernel.state == before


def test_a_journal_that_cannot_be_begun_is_an_error_of_ours(tmp_path):
    folder = tmp_path / "host"
    with opened(folder) as journal:
        shutil.rmtree(folder)
        with pytest.raises(StrataError, match="No such file"):
            journal.begin("boot")


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
