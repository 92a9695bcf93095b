"""What `strata --help` must not pay for: each of these costs more than all the rest of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"array_api_compat", "highspy", "numpy", "onnxruntime", "pydantic", "rich", "simpy", "torch", "yaml"}


def imported_by(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()}


@pytest.mark.parametrize(
    "code",
    [
        "import strata.cli.main",
        "from strata.cli.main import run; run(['--help'])",
        "from strata.cli.main import run; run(['--version'])",
        "from strata.cli.main import run; run(['bench', '--help'])",
        "import strata.cli.kinds, strata.cli.check, strata.cli.lint",
    ],
)
def test_help_loads_nothing_heavy(code):
    loaded = imported_by(code)
    assert "click" in loaded
    assert not loaded & HEAVY


def test_asking_what_works_here_imports_none_of_it():
    loaded = imported_by("from strata.cli.main import run; run(['check', '-o', 'json'])")
    assert not loaded & HEAVY


def test_the_watch_itself_works():
    assert {"pydantic", "yaml"} <= imported_by("import strata.files")
