"""Files of steps: only what policies touch, and each fault at its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.errors import UsageError
from strata.host.apply.journal import folder_of
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
