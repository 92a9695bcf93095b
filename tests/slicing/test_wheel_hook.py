"""What the wheel's build hook adds, seen without building a wheel: hatchling's interface is two attributes."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from strata.slicing import build
from strata.slicing.elf import read_elf
from tests import ROOT

ROOT = ROOT


@pytest.fixture
def hook(monkeypatch, tmp_path):
    """Return the hook of a wheel, over a library of one function, and the warnings it shows."""
    native = tmp_path / "native"
    native.mkdir()
    (native / "stub.c").write_text(
        '#include <stdlib.h>\nvoid *stub(void);\nvoid *stub(void) { return getenv("X"); }\n'
    )
    monkeypatch.setattr(build, "SOURCES", native)
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.QuotaLibrary()
    warnings = []
    made.root, made.target_name = str(ROOT), "wheel"
    made.app = SimpleNamespace(display_warning=warnings.append)
    yield made, warnings
    made.finalize("standard", {}, "wheel")


def run(hook, version="standard"):
    data = {"force_include": {}}
    hook.initialize(version, data)
    return data


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_the_library_is_in_the_wheel_and_the_tag_says_which_machines_it_is_for(hook):
    made, warnings = hook
    data = run(made)
    ((library, place),) = data["force_include"].items()
    assert place == "strata/slicing/libstrata_quota.so"
    assert read_elf(Path(library)).glibc() <= (2, 17)
    assert data["tag"] == f"py3-none-manylinux_2_17_{platform.machine()}"
    assert data["pure_python"] is False
    assert warnings == []
    made.finalize("standard", data, "wheel")
    assert not Path(library).exists()


def test_without_a_compiler_the_wheel_is_pure_and_says_so(hook, monkeypatch):
    made, warnings = hook
    monkeypatch.setenv("CC", "no-such-compiler")
    assert run(made) == {"force_include": {}}
    (said,) = warnings
    assert "the wheel goes without it" in said


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_a_library_that_does_not_compile_stops_the_build(hook, monkeypatch):
    (build.SOURCES / "stub.c").write_text("int unused_variable(void) { int x; return 0; }\n")
    with pytest.raises(build.StrataError, match="Werror"):
        run(hook[0])


@pytest.mark.parametrize(("target", "version"), [("wheel", "editable"), ("sdist", "standard")])
def test_an_editable_install_and_the_sources_have_none(hook, target, version):
    made, _ = hook
    made.target_name = target
    assert run(made, version) == {"force_include": {}}


def test_the_sources_are_in_the_package():
    assert build.SOURCES.is_relative_to(ROOT / "src" / "strata")
    assert {"quota.h", "quota.map"} <= {path.name for path in build.sources()}
