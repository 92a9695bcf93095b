"""Limits in a file: what programs of a pod are held to that come without its environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strata.fleet.slices import LIMITS_FILE, QuotaLimits, limits_file, slice_environment
from strata.slicing.build import SOURCES, compile_library
from tests.slicing.fake_accelerators import GIB, MIB


@pytest.fixture(scope="module")
def library(tmp_path_factory, accelerators) -> Path:
    """The library, but with the file in a folder of the test's, beside it."""
    folder = tmp_path_factory.mktemp("pod")
    compile_library(folder / "quota.so", ["cc"], more=("-Werror", f'-DQUOTA_LIMITS_FILE="{folder / "limits"}"'))
    return folder / "quota.so"


@pytest.fixture
def calls(accelerators, library):
    def call(*words, text, **more):
        (library.parent / "limits").write_bytes(text.encode())
        env = accelerators.environment(preload=str(library), STRATA_CONTEXT_BYTES="", **more)
        done = accelerators.run("calls", "dlsym", *words, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return call


def test_the_file_is_where_the_webhook_puts_it():
    (path,) = re.findall(r'#define QUOTA_LIMITS_FILE "(.*)"', (SOURCES / "config.c").read_text())
    assert path == LIMITS_FILE


def test_without_limits_in_the_environment_those_of_the_file_hold(calls, ledger):
    variables = slice_environment(QuotaLimits(GIB, device=0), ledger=str(ledger))
    text = limits_file(variables, container="main") + "STRATA_CONTEXT_BYTES=0\n"
    assert calls("alloc:600M", "alloc:600M", "device:1", "alloc:2G", text=text)[0] == [
        "alloc 0",
        "alloc 2",
        "device 0",
        "alloc 0",
    ]
    assert ledger.exists()


def test_the_environments_come_first(calls, ledger):
    text = f"STRATA_MEMORY_LIMIT={GIB}\nSTRATA_LEDGER={ledger}.other\nSTRATA_CONTEXT_BYTES=0\n"
    more = {"STRATA_LEDGER": str(ledger), "STRATA_MEMORY_LIMIT": str(600 * MIB)}
    assert calls("alloc:400M", text=text, **more)[0] == ["alloc 2"]  # beside a context of 520 MiB
    assert calls("alloc:900G", "alloc:70G", text=text, STRATA_QUOTA="off")[0] == ["alloc 2", "alloc 0"]


@pytest.mark.parametrize("text", ["", "\n\n", "no", "=\n==\n", "STRATA_MEMORY_LIMIT\n", "x\n" * 5000, "\0" * 100])
def test_a_file_that_says_nothing_limits_nothing(calls, text):
    assert calls("alloc:70G", text=text) == (["alloc 0"], "")


def test_a_limit_in_it_that_is_none_refuses_everything_and_says_so(calls, ledger):
    codes, said = calls("alloc:1M", text=f"STRATA_MEMORY_LIMIT=lots\nSTRATA_LEDGER={ledger}")
    assert codes == ["alloc 2"]
    assert "STRATA_MEMORY_LIMIT=lots is no limit" in said
