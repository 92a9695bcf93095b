"""`strata slices`: who holds what, for programs and for people."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from strata.cli import slices
from strata.cli.main import cli
from tests.slicing import ledger_builders
from tests.slicing.ledger_builders import MIB, Ledger


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("STRATA_LEDGER", raising=False)
    monkeypatch.setattr("strata.slicing.ledger_directory.os.geteuid", lambda: 4242)  # root would see everybody's
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    yield tmp_path / "strata" / "slices"
    ledger_builders.die()


def two_devices() -> Ledger:
    made = Ledger()
    first, second = made.row(4096 * MIB, ordinal=0), made.row(2048 * MIB, ordinal=3, cores=30)
    here, gone = made.process(), made.process(lives=False)
    made.held(first, here, 1024 * MIB)
    made.held(second, here, 256 * MIB)
    made.held(second, gone, 128 * MIB)
    return made


def shown(*arguments):
    result = CliRunner().invoke(cli, ["slices", *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_the_answer_has_the_agreed_keys_and_no_others(folder):
    two_devices().write(folder / "notebooks.ledger")
    pid = os.getpid()
    assert json.loads(shown("-o", "json").stdout) == {
        "slices": [
            {
                "name": "notebooks",
                "device": 0,
                "vendor": "nvidia",
                "limit_bytes": 4096 * MIB,
                "cores_share": None,
                "used_bytes": 1024 * MIB,
                "gone_bytes": 0,
                "context_bytes": None,
                "context_trust": None,
                "refused": 0,
                "processes": [{"pid": pid, "used_bytes": 1024 * MIB}],
            },
            {
                "name": "notebooks",
                "device": 3,
                "vendor": "nvidia",
                "limit_bytes": 2048 * MIB,
                "cores_share": 0.3,
                "used_bytes": 256 * MIB,
                "gone_bytes": 128 * MIB,
                "context_bytes": None,
                "context_trust": None,
                "refused": 0,
                "processes": [{"pid": pid, "used_bytes": 256 * MIB}],
            },
        ]
    }


def test_people_see_it_in_eighty_columns_with_what_is_gone(folder):
    two_devices().write(folder / "notebooks.ledger")
    text = shown().stdout
    assert max(map(len, text.splitlines())) <= 80
    for said in ("notebooks", "1GiB", "4GiB", "25%", "30%", "gone", "128MiB", str(os.getpid())):
        assert said in text, said


def test_a_process_of_another_container_is_shown_without_the_name_of_ours_with_its_pid(folder):
    made = Ledger()
    made.held(made.row(4096 * MIB), made.process(namespace=7), MIB)
    made.write(folder / "pod.ledger")
    own = Path("/proc/self/comm").read_text().strip()
    assert own not in shown().stdout
    assert str(os.getpid()) in shown().stdout
    two_devices().write(folder / "pod.ledger")
    assert own[:8] in shown().stdout


def test_where_there_is_no_slice_it_says_how_to_begin_one(folder):
    assert json.loads(shown("-o", "json").stdout) == {"slices": []}
    assert "strata run" in shown().stdout


def test_a_broken_file_is_named_and_the_others_are_shown(folder):
    two_devices().write(folder / "good.ledger")
    (folder / "broken.ledger").write_text("no ledger at all")
    result = shown("-o", "json")
    assert {one["name"] for one in json.loads(result.stdout)["slices"]} == {"good"}
    broken = folder / "broken.ledger"
    told = f"not a slice ledger: 16 bytes; try: rm {broken}, once its processes have ended"
    assert result.stderr == f"warning: {broken}: {told}\n"


def test_in_a_pod_its_own_slice_is_shown(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("STRATA_LEDGER", str(two_devices().write(tmp_path / "pod" / "quota.ledger")))
    assert {one["name"] for one in json.loads(shown("-o", "json").stdout)["slices"]} == {"quota"}


def test_it_is_shown_again_until_it_is_interrupted(folder, monkeypatch):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        two_devices().write(folder / "later.ledger")
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(slices.time, "sleep", nap)
    result = CliRunner().invoke(cli, ["slices", "--watch"])
    assert len(naps) == 3
    assert "later" in result.output


class Watched(Exception):
    """Long enough."""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_watching_shows_refusals_and_faults_in_their_place(folder, monkeypatch, capsys, is_terminal):
    made = two_devices()
    struct.pack_into("<Q", made.data, 4096 + 48, 1)
    made.write(folder / "notebooks.ledger")
    (folder / "broken.ledger").write_text("no ledger at all")
    monkeypatch.setattr(
        "strata.cli.slices.console", lambda: Console(force_terminal=is_terminal, width=200, highlight=False)
    )
    naps = iter([None, Watched()])

    def nap(_seconds):
        if seen := next(naps):
            raise seen

    monkeypatch.setattr(slices.time, "sleep", nap)
    with pytest.raises(Watched):
        slices.slices.main(["--watch"], standalone_mode=False)
    shown = capsys.readouterr()
    assert shown.err == ""
    # One below the other where nothing can be put in another's place.
    assert shown.out.count("notebooks, device 0: 1 request did not fit\n") >= 2
    assert shown.out.count("warning: ") == shown.out.count("not fit\n")


def test_watching_is_for_people(folder):
    result = CliRunner().invoke(cli, ["slices", "--watch", "-o", "json"])
    assert "--watch" in str(result.exception)


def test_a_narrow_terminal_has_all_columns_and_whole_words(folder, monkeypatch):
    """At 40 columns three of eight were missing."""
    monkeypatch.setenv("COLUMNS", "40")
    two_devices().write(folder / "notebooks.ledger")
    header = shown().stdout.splitlines()[0]
    assert header.split() == ["slice", "device", "used", "limit", "full", "cores", "pid", "command"]


def test_contexts_and_refusals_are_told_below(folder):
    made = two_devices()
    struct.pack_into("<I", made.data, 4096 + 28, 1)
    struct.pack_into("<QQ", made.data, 4096 + 40, 512 * MIB, 3)
    made.write(folder / "notebooks.ledger")
    text = shown().stdout
    assert "notebooks, device 0: each process's context counts 512MiB (assumed)" in text
    assert "notebooks, device 0: 3 requests did not fit" in text
    assert "device 3:" not in text


def test_the_exporter_answers_prometheus(folder, tmp_path):
    two_devices().write(folder / "notebooks.ledger")
    words = [sys.executable, "-m", "strata", "slices", "export", "--port", "0", "--pods", str(tmp_path / "none")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as exporter:
        try:
            warned, said = exporter.stderr.readline(), exporter.stderr.readline()
            page = urllib.request.urlopen(said.split()[-1], timeout=60).read().decode()
        finally:
            exporter.terminate()
    assert exporter.returncode == 0
    assert warned == f"warning: no pod's slices are shown: {tmp_path / 'none'}: No such file or directory\n"
    labels = '{container="",device="3",namespace="",pod="",slice="notebooks"}'
    (line,) = (line for line in page.splitlines() if line.startswith(f"strata_slice_used_bytes{labels}"))
    assert float(line.split()[-1]) == 256 * MIB


def test_the_exporter_runs_without_rights_to_the_kubelets_folder(folder, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.access", lambda *_, **__: False)
    monkeypatch.setattr(Path, "iterdir", refuse)
    words = ["slices", "export", "--port", "0", "--pods", str(tmp_path), "--seconds", "0.1"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert f"warning: no pod's slices are shown: {tmp_path}: Permission denied\n" in result.stderr
