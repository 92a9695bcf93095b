from __future__ import annotations

import json
import os

import pytest

from strata.cli import check
from strata.cli.check import survey
from strata.cli.main import run
from strata.simulate.astra.discover import NAMES, AstraBackend


def states(environment, root):
    return {part.name: part for part in survey(environment, root=root)}


def test_the_base_is_here_and_the_command_exits_0(capsys, monkeypatch):
    real = check._library
    monkeypatch.setattr(check, "_library", lambda name: None if name == "ray" else real(name))
    assert run(["check"]) == 0
    assert "'.[train]'" in capsys.readouterr().out


def test_every_part_has_a_state_a_use_and_a_way_to_get_it(capsys):
    assert run(["check", "-o", "json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in parts[:2]] == ["Python", "numpy"]
    for part in parts:
        assert part["used_for"]
        assert (part["state"] == "ok") == bool(part["detail"])
        assert (part["state"] == "ok") != bool(part["get"])


def test_a_missing_base_part_exits_5_and_a_missing_option_does_not(monkeypatch, capsys):
    monkeypatch.setattr(check, "_TRAIN", {"no-such-library": "nothing"})
    assert run(["check"]) == 0
    monkeypatch.setattr(check, "_BASE", {"no-such-library": "nothing"})
    assert run(["check"]) == 5
    shown = capsys.readouterr()
    assert "no-such-library  missing" in shown.out
    assert shown.err == "error: not installed: no-such-library\ntry: pip install -e ., in a clone of strata\n"


def test_a_folder_of_the_same_name_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "ray").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(check.metadata, "version", _no_version)
    assert states({}, tmp_path)["ray"].state == "optional-missing"


def _no_version(name):
    raise check.metadata.PackageNotFoundError(name)


def test_parts_of_the_machine_are_found_where_they_are(tmp_path):
    for file, text in {
        "proc/driver/nvidia/version": "NVRM version: 570.1\nGCC\n",
        "sys/kernel/sched_ext/state": "enabled\n",
        "home/.kube/config": "",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    binary = tmp_path / NAMES[AstraBackend.AWARE]
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    parts = states({"HOME": str(tmp_path / "home"), "STRATA_ASTRA_SIM": str(tmp_path)}, tmp_path)
    assert parts["NVIDIA driver"].detail == "NVRM version: 570.1"
    assert parts["sched_ext"].detail == "enabled"
    assert parts["kubeconfig"].detail == str(tmp_path / "home/.kube/config")
    assert parts["ASTRA-sim"].detail == f"aware: {binary} (not asked yet)"


def test_a_wrong_astra_sim_variable_is_said_and_no_failure(tmp_path):
    part = states({"STRATA_ASTRA_SIM": str(tmp_path / "none_aware")}, tmp_path)["ASTRA-sim"]
    assert (part.state, part.detail) == ("optional-missing", "")
    assert part.get == f"STRATA_ASTRA_SIM={tmp_path / 'none_aware'}: no such file"


def test_nothing_is_found_on_an_empty_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / NAMES[AstraBackend.UNAWARE]
    here.write_text("#!/bin/sh\n")
    here.chmod(0o755)
    environment = {"KUBECONFIG": os.pathsep.join(("", str(tmp_path / "none"))), "PATH": "/no/such/folder"}
    parts = states(environment, tmp_path)
    for name in ("C compiler", "ASTRA-sim", "kubeconfig", "NVIDIA driver", "sched_ext"):
        assert parts[name].state == "optional-missing"


@pytest.mark.parametrize("folder", ["proc/driver/nvidia/version", "sys/kernel/sched_ext/state"])
def test_what_cannot_be_read_is_missing_and_no_error(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    assert "ok" not in (states({}, tmp_path)[name].state for name in ("NVIDIA driver", "sched_ext"))
