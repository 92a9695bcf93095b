"""The quota library as a file: compiled once, kept by what it is made of, and never half there."""

from __future__ import annotations

import ctypes
import os
import shutil

import pytest

from strata.errors import MissingPart, StrataError
from strata.slicing import build

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")

STUB = """
#define SHOWN __attribute__((visibility("default")))
SHOWN int answer(void);
SHOWN int answer(void) { return 42; }
SHOWN int unlisted(void);
SHOWN int unlisted(void) { return 7; }
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "stub.c").write_text(STUB)
    (folder / "quota.map").write_text("{ global: answer; local: *; };\n")
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(build, "brought", lambda: None)
    return folder


@pytest.fixture
def environment(tmp_path):
    return {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_what_is_listed_is_exported_and_nothing_else(sources, environment):
    loaded = ctypes.CDLL(str(build.library(environment)))
    assert loaded.answer() == 42
    assert not hasattr(loaded, "unlisted")


def test_it_is_compiled_once(sources, environment):
    first = build.library(environment)
    stamp = first.stat().st_mtime_ns
    without_compiler = {**environment, "CC": "cc"}
    assert build.library(without_compiler) == first
    assert first.stat().st_mtime_ns == stamp


def test_other_sources_make_another_library(sources, environment):
    first = build.library(environment)
    (sources / "stub.c").write_text(STUB.replace("42", "43"))
    second = build.library(environment)
    assert first != second
    assert ctypes.CDLL(str(second)).answer() == 43


def test_the_library_of_the_wheel_is_taken_first(sources, environment, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "brought", lambda: tmp_path / build.NAME)
    assert build.library(environment) == tmp_path / build.NAME


def test_without_a_compiler_it_says_what_to_install(sources, environment, tmp_path):
    with pytest.raises(MissingPart, match="no C compiler") as told:
        build.library({**environment, "PATH": str(tmp_path)})
    assert told.value.exit_code == 5
    assert "gcc" in told.value.hint


def test_a_compiler_that_is_named_is_the_one_that_is_asked(sources, environment):
    with pytest.raises(MissingPart, match="no-such-cc"):
        build.library({**environment, "CC": "no-such-cc -m64"})


def test_what_does_not_compile_is_said_and_leaves_nothing(sources, environment, tmp_path):
    (sources / "stub.c").write_text("int answer(void) { return nothing; }\n")
    with pytest.raises(StrataError, match="nothing"):
        build.library(environment)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(sources, environment, tmp_path):
    (tmp_path / "cache").write_text("a file, no folder")
    with pytest.raises(MissingPart) as told:
        build.library(environment)
    assert "XDG_CACHE_HOME" in told.value.hint


def test_a_library_is_put_into_a_folder_and_replaced_whole(sources, environment, tmp_path):
    there = build.install(tmp_path / "host" / "strata", environment)
    old = there.open("rb")
    assert there.stat().st_mode & 0o777 == 0o644
    (sources / "stub.c").write_text(STUB.replace("42", "43"))
    assert build.install(there.parent, environment) == there
    with old:
        assert old.read() != there.read_bytes()  # who has the old one open keeps it
    assert sorted(path.name for path in there.parent.iterdir()) == ["ld.so.preload", build.NAME]
    assert (there.parent / "ld.so.preload").read_text() == "/usr/local/strata/libstrata_quota.so\n"
