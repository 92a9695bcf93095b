"""What the tests in a virtual machine share: its files, made once; a machine for each file of tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.host.vm import guest as virtual
from tests.slicing.fake_accelerators import find_compiler

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real("vm", "cc"))
            if config.pluginmanager.hasplugin("xdist"):  # two machines at once would be in each other's way
                item.add_marker(pytest.mark.xdist_group("vm"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    machine = getattr(item, "funcargs", {}).get("guest")
    if report.failed and machine is not None:
        report.sections.append(("the guest's console", machine.console))
    return report


CURVES = pytest.StashKey[dict[str, list[dict[str, object]]]]()


@pytest.fixture(scope="session")
def curves(request):
    """Rows of what a thread waited in each state, by the table's title: printed at the end of the run."""
    return request.config.stash.setdefault(CURVES, {})


def pytest_terminal_summary(terminalreporter, config):
    parts = virtual.find()
    for title, rows in config.stash.get(CURVES, {}).items():
        kernel = (parts / "release").read_text().strip() if parts is not None else ""
        terminalreporter.section(f"waits of the trainer: {title}, Linux {kernel}")
        line = "{:24} {:>10} {:>10} {:>8} {:>10}".format
        terminalreporter.line(line("state", "waited ms", "% of wall", "turns", "us a turn"))
        for row in rows:
            wait_ms, turns = row["wait_ms"], row["turns"]
            share, each = 100 * wait_ms / row["wall_ms"], 1e3 * wait_ms / max(1, turns)
            terminalreporter.line(line(row["state"], f"{wait_ms:.0f}", f"{share:.1f}", turns, f"{each:.0f}"))
        terminalreporter.line(json.dumps({"kernel": kernel, "policy": title, "waits": rows}))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """The guest's kernel and files; `work` (see work.c) is a program there."""
    folder = tmp_path_factory.mktemp("guest")
    subprocess.run([find_compiler(), "-O1", "-pthread", "-o", folder / "work", HERE / "work.c"], check=True)
    made = virtual.image(virtual.find(), folder, {"/usr/local/bin/work": folder / "work"})
    yield made
    made.unlink()  # 300 MB


@pytest.fixture(scope="module")
def guest(files):
    """A machine with two CPUs, up."""
    with virtual.Guest(files) as machine:
        yield machine
