"""The script that a virtual machine starts with, without the machine: what it names is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import strata.cli as cli_package
from strata.cli.main import cli
from tests.host.vm import guest, guest_side

COMMANDS = [
    *(f"strata.cli.{file.stem}" for file in Path(cli_package.__file__).parent.glob("host_*.py")),
    "strata.cli.main",
    "strata.cli.bench_machines",
    "strata.evaluation.bench.host",
]


def test_the_first_process_of_the_guest_finds_its_module(monkeypatch):
    calls = []
    monkeypatch.setattr(guest_side, "main", lambda: calls.append("main"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(guest.INIT, "/init", "exec"), {"__name__": "__main__"})
    assert calls == ["main"]


@pytest.mark.long("imports every module of the host level in a process of its own")
def test_what_the_host_commands_import_is_in_the_guest():
    program = (
        "import importlib, json, os, pkgutil, sys, strata.host\n"
        "names = [found.name for found in pkgutil.walk_packages(strata.host.__path__, 'strata.host.')]\n"
        f"for name in [*names, *{COMMANDS!r}]: importlib.import_module(name)\n"
        "files = (getattr(module, '__file__', None) for module in sys.modules.values())\n"
        "print(json.dumps([os.path.realpath(file) for file in files if file and os.path.isabs(file)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    there = {os.path.realpath(path) for path in guest._python()}
    # A hook of setuptools comes with whatever Python strata is installed in.
    ours = [file for file in json.loads(done.stdout) if "_distutils_hack" not in file]
    assert [file for file in ours if file not in there] == []


def test_the_commands_of_the_guests_tests_are_there():
    named = {
        name
        for file in Path(guest.__file__).parent.glob("*.py")
        for name in re.findall(r'"host", "([a-z][a-z-]*)"', file.read_text())
    }
    host = cli.get_command(click.Context(cli), "host")
    assert {"apply", "layers", "record", "report", "run-layered", "undo"} <= named
    assert named <= set(host.list_commands(click.Context(host)))
