"""Files of steps: only what policies touch, and each fault at its place."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from strata.errors import StrataError, UsageError
from strata.host.apply.journal import FORM, folder_of, opened
from strata.host.apply.machine import KernelFiles
from strata.host.apply.policy import load
from tests.host.apply.builders import STEPS, step, written
from tests.host.pretend_kernel import NOISE, THREAD


def test_a_policy_comes_back_as_it_was_written(tmp_path):
    steps = (*STEPS, replace(STEPS[0], start_ticks=17))
    assert load(written(tmp_path, [one.to_dict() for one in steps])) == steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/etc/passwd"}, "is not allowed for act 'write'"),
        ({"path": "/sys/fs/cgroup/../../../etc/cpu.weight"}, "is not allowed for act 'write'"),
        ({"act": "exec"}, "steps.1.act"),
        ({"value": "10; rm"}, "is not allowed there"),
        ({"value": 10}, "should be text"),
        ({"layer": "vip"}, "should be 'critical'"),
        ({"start_ticks": -1}, "greater than or equal to 0"),
        ({"extra": 1}, "unknown key"),
        ({"act": "nice", "path": THREAD, "value": "-21"}, "is not allowed there"),
        ({"act": "nice", "path": f"/proc/{'9' * 5000}/task/1", "value": "1"}, "is not allowed for act 'nice'"),
        ({"path": "/sys/fs/cgroup/a\0b/cpu.weight"}, "is not allowed for act 'write'"),
        ({"value": "9" * 5000}, "is not allowed there"),
        ({"path": f"{NOISE}/cpuset.cpus", "value": "0-99999999999"}, "is not allowed there"),
        ({"path": f"{NOISE}/cpuset.cpus", "value": "1--2"}, "is not allowed there"),
        ({"act": "affinity", "path": THREAD, "value": ""}, "is not allowed there"),
        ({"act": "scheduler", "path": THREAD, "value": "FIFO 10"}, "is not allowed there"),
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


PLANTED = (
    {"act": "write", "path": "/etc/cron.d/x", "value": "0", "why": "", "layer": "rest"},
    {
        "act": "write",
        "path": "/sys/fs/cgroup/../../../etc/passwd/cpu.weight",
        "value": "1",
        "why": "",
        "layer": "rest",
    },
    {"act": "remove", "path": "/sys/fs/cgroup/x", "value": "", "why": "", "layer": "rest"},
)


def line(step, before, **more):
    return json.dumps({"n": 0, "step": step, "before": before, "beside": [], **more})


def planted(folder, *lines):
    form = json.dumps({"form": FORM, "boot": KernelFiles().boot()})
    (folder / "undo.jsonl").write_text("\n".join([form, *lines, ""]))
    (folder / "undo.jsonl").chmod(0o644)


@pytest.mark.parametrize("step", PLANTED, ids=["any-file", "through-dots", "no-such-act"])
def test_a_journal_that_says_what_no_policy_does_is_not_carried_out(tmp_path, step):
    planted(tmp_path, line(step, "* * * * * root sh"))
    with pytest.raises(StrataError, match="not a line of an undo journal"), opened(tmp_path):
        pass


def test_neither_is_what_was_before_written_elsewhere(tmp_path):
    attach = {
        "act": "attach",
        "path": "/sys/fs/cgroup/a/strata-rest/cgroup.threads",
        "value": "1",
        "why": "",
        "layer": "rest",
    }
    idle = {"act": "write", "path": "/sys/fs/cgroup/a/cpu.idle", "value": "1", "why": "", "layer": "rest"}
    for bad in (line(attach, "/etc/passwd"), line(idle, "0", beside=[["/etc/passwd", "70"]])):
        planted(tmp_path, bad)
        with pytest.raises(StrataError, match="not a line of an undo journal"), opened(tmp_path):
            pass


@pytest.mark.parametrize("spoil", ["folder", "file", "owner", "link"])
def test_a_journal_that_others_can_write_is_not_trusted(tmp_path, spoil):
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o755)
    planted(folder)
    if spoil == "folder":
        folder.chmod(0o777)
    elif spoil == "file":
        (folder / "undo.jsonl").chmod(0o666)
    elif spoil == "link":
        (folder / "undo.jsonl").rename(tmp_path / "elsewhere")
        (folder / "undo.jsonl").symlink_to(tmp_path / "elsewhere")
    elif os.geteuid() == 0:
        os.chown(folder / "undo.jsonl", 1234, 1234)
    else:
        pytest.skip("only root gives files to others")
    with pytest.raises(UsageError, match="not trusted"), opened(folder):
        pass
