"""How busy a machine is, from its /proc."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from strata.serving.worker.usage import MachineUsage


def proc(folder, *, user, idle):
    (folder / "stat").write_text(f"cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    (folder / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n")


def test_the_processors_are_judged_since_the_last_look(tmp_path):
    proc(tmp_path, user=1000, idle=1000)
    machine = MachineUsage("cpu", tmp_path)
    proc(tmp_path, user=1030, idle=1010)
    assert machine.shares() == {"cpu": pytest.approx(0.75), "memory": pytest.approx(0.6)}
    proc(tmp_path, user=1030, idle=1110)
    assert machine.shares()["cpu"] == 0.0


def test_no_time_since_the_last_look_says_nothing_of_the_processors(tmp_path):
    proc(tmp_path, user=1000, idle=1000)
    assert "cpu" not in MachineUsage("cpu", tmp_path).shares()


def test_this_machine_is_read():
    shares = MachineUsage("cpu").shares()
    assert 0 < shares["memory"] <= 1
