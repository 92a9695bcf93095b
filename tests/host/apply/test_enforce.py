"""Enforcement: threads that start later get their layer, undo is as exact, and what does not help goes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cli import host_enforce
from strata.errors import Infeasible, MissingPart
from strata.host.apply.effect import judge, noise_floor
from strata.host.apply.enforce import Enforcement, HostLook
from strata.host.apply.journal import opened
from strata.host.policy.step import Step
from strata.host.threads.classify import Classified
from tests.host.apply.builders import applied, step, undone
from tests.host.builders import thread
from tests.host.pretend_kernel import Kernel


class Host:
    """A job whose first thread waits `waits` of what it wants, and a further thread from each round of `born`."""

    def __init__(self, folder, *, waits=0.5, with_policy=0.1, born=(), rounds=40, ends_at=None):
        self.kernel, self.folder, self.born = Kernel(), folder, born
        self.waits, self.with_policy, self.rounds, self.ends_at = waits, with_policy, rounds, ends_at
        self.now, self.run_s, self.wait_s, self.said = 0, 0.0, 0.0, []
        self.happens = {}
        for tid in (51, *(60 + number for number in range(len(born)))):
            self.kernel.state["nice", f"/proc/50/task/{tid}"] = "0"
        self.before = dict(self.kernel.state)

    @property
    def tids(self):
        return [51, *(60 + number for number, at in enumerate(self.born) if self.now >= at)]

    def look(self):
        if self.ends_at is not None and self.now >= self.ends_at:
            return HostLook((), ())
        told = {"run_s": self.run_s, "wait_s": self.wait_s, "start_ticks": 7}
        members = [thread(tid, "x", pid=50, **told) for tid in self.tids]
        found = tuple(Classified(each, None, "critical", 1.0, ("x",)) for each in members)
        steps = tuple(Step("nice", f"/proc/50/task/{tid}", "-10", "critical", "critical", 7) for tid in self.tids)
        return HostLook(found, steps)

    def pause(self):
        self.now += 1
        self.happens.get(self.now, lambda: None)()
        is_applied = self.kernel.state["nice", "/proc/50/task/51"].startswith("-10")
        share = self.with_policy if is_applied else self.waits
        # A machine is never quite quiet.
        share += 0.01 * (-1) ** self.now
        self.run_s, self.wait_s = self.run_s + 1 - share, self.wait_s + share
        return self.now < self.rounds

    def enforced(self, **more):
        return Enforcement(
            self.look, self.pause, lambda: opened(self.folder), self.kernel, say=self.said.append, **more
        )

    def nices(self):
        return [self.kernel.state["nice", f"/proc/50/task/{tid}"].split()[0] for tid in self.tids]


def test_a_policy_that_helps_stays_and_threads_born_later_get_their_layer_in_the_next_round(tmp_path):
    host = Host(tmp_path, born=(30, 33))
    seen = []
    host.happens = {at: lambda: seen.append(host.nices()) for at in (31, 32, 34, 35)}
    enforced = host.enforced()
    assert enforced.run() == "stopped"
    assert enforced.effect.verdict == "helped"
    # Born by round 30: it has its layer when round 31 begins, one interval later.
    assert seen[0] == ["-10", "-10"]
    assert seen[-1] == ["-10", "-10", "-10"]
    assert {one.result for one in undone(tmp_path, host.kernel)} == {"restored"}
    assert host.kernel.state == host.before


@pytest.mark.parametrize(("with_policy", "verdict"), [(0.5, "no-effect"), (0.7, "worse")])
def test_a_policy_that_does_not_help_is_taken_back_by_itself(tmp_path, with_policy, verdict):
    host = Host(tmp_path, with_policy=with_policy, born=(15,))
    enforced = host.enforced()
    assert enforced.run() == "taken-back"
    assert enforced.effect.verdict == verdict
    assert enforced.num_done == 2
    assert host.kernel.state == host.before
    assert undone(tmp_path, host.kernel) == ()


def test_where_nothing_waits_nothing_is_done(tmp_path):
    host = Host(tmp_path, waits=0.0)
    enforced = host.enforced()
    assert enforced.run() == "not-needed"
    assert (enforced.num_done, host.kernel.changes) == (0, 0)


def test_a_kernel_that_counts_no_waits_is_not_said_to_be_quiet(tmp_path):
    host = Host(tmp_path)
    counted = host.look

    def look():
        seen = counted()
        members = (replace(each, thread=replace(each.thread, wait_s=None)) for each in seen.threads)
        return HostLook(tuple(members), seen.steps)

    host.look = look
    with pytest.raises(MissingPart, match="counts no run-queue delays"):
        host.enforced().run()
    assert host.kernel.changes == 0
    assert host.enforced(windows=0).run() == "stopped"
    assert host.nices() == ["-10"]


def test_who_enforces_is_not_held_back_itself():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
        pids = {thread.thread.pid for thread in host_enforce._looks(job.pid)().threads}
        job.communicate(b"\n")
    assert (job.pid in pids, os.getpid() in pids) == (True, False)


def test_undo_from_elsewhere_ends_it(tmp_path):
    host = Host(tmp_path)
    host.happens = {30: lambda: undone(tmp_path, host.kernel)}
    assert host.enforced().run() == "undone"
    assert host.kernel.state == host.before


def test_the_kill_switch_ends_it(tmp_path):
    host = Host(tmp_path)
    host.happens = {30: (tmp_path / "off").touch}
    assert host.enforced().run() == "switched-off"


def test_it_ends_with_the_job(tmp_path):
    host = Host(tmp_path, ends_at=25)
    assert host.enforced().run() == "job-ended"


def test_what_another_apply_did_before_stays_when_it_is_taken_back(tmp_path):
    host = Host(tmp_path, with_policy=0.5)
    applied(tmp_path, host.kernel, [step("/proc/irq/24/smp_affinity_list", "0")])
    host.enforced().run()
    assert host.kernel.state["write", "/proc/irq/24/smp_affinity_list"] == "0"
    assert host.nices() == ["0"]


def test_steps_that_would_starve_someone_are_not_done(tmp_path):
    def refuse(steps):
        raise Infeasible("no")

    host = Host(tmp_path)
    with pytest.raises(Infeasible):
        host.enforced(refuse=refuse).run()
    assert host.kernel.state == host.before


SHARES = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9)


@given(SHARES, SHARES)
def test_what_helped_one_way_is_worse_the_other_way_round(before, after):
    there, back = judge(before, after).verdict, judge(after, before).verdict
    if "not-needed" not in (there, back):
        assert (there == "helped") == (back == "worse")


@given(SHARES)
def test_equal_windows_never_help(windows):
    assert judge(windows, windows).verdict in ("no-effect", "not-needed")
    assert noise_floor(windows) > 0
