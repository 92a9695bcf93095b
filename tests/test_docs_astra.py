"""docs/astra.md: what it shows below a command is what is printed, and its program is the example's."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from tests import ROOT

PAGE = (ROOT / "docs" / "astra.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```\n\$ ([^\n]*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OUTPUT = {command.partition(" --")[0]: (command, output) for command, output in SHOWN}


def printed(start, tmp_path, monkeypatch):
    """Return what a command of the page prints, and what is shown, as words."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    command, output = OUTPUT[start]
    answer = CliRunner().invoke(cli, shlex.split(command.removeprefix("strata ")))
    assert answer.exit_code == 0, answer.output
    return answer.stdout.split(), output.split()


def test_the_page_shows_a_network_an_episode_and_a_training():
    assert list(OUTPUT) == [
        "strata fleet show examples/fleet-seed-matrix.json",
        "python examples/astra_episode.py",
        "strata learn train",
    ]


def test_the_matrices_are_shown_as_they_are_read(tmp_path, monkeypatch):
    now, shown = printed("strata fleet show examples/fleet-seed-matrix.json", tmp_path, monkeypatch)
    assert now == shown


@pytest.mark.real("gymnasium")
def test_the_episode_prints_what_is_shown_and_its_program_is_on_the_page():
    program = (ROOT / "examples" / "astra_episode.py").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert program.endswith(shown)
    command = [sys.executable, str(ROOT / "examples" / "astra_episode.py")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == OUTPUT["python examples/astra_episode.py"][1]


@pytest.mark.real("torch", "onnx", "gymnasium")
def test_the_training_prints_what_is_shown(tmp_path, monkeypatch):
    now, shown = printed("strata learn train", tmp_path, monkeypatch)
    assert now == shown
