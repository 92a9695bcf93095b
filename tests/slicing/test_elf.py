"""ELF files, as far as the quota needs to know them; and files that only begin like one."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.slicing.elf import read_elf
from strata.slicing.program import incompatibility
from tests.support.laws import examples

PATH = os.environ["PATH"]
PYTHON = Path(sys.executable).resolve()


def compiled(folder: Path, *flags: str) -> Path:
    source, program = folder / "p.c", folder / "p"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-o", program, source, *flags], check=True)
    return program


def elf64(interpreter: str) -> bytes:
    """A program that has nothing but the name of what loads it."""
    name = interpreter.encode() + b"\0"
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 3, 4, 120, 120, 120, len(name), len(name), 1) + name


def why_not_held(path: Path, search: str) -> str:
    found = incompatibility(path, search)
    return found.why if found else ""


def test_pythons_own_program_is_loaded_and_needs_a_glibc():
    elf = read_elf(PYTHON)
    assert elf.bits == 64
    assert "ld-linux" in elf.interpreter
    assert elf.glibc() >= (2, 2)
    assert why_not_held(PYTHON, PATH) == ""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_a_dynamic_program_is_held_and_a_static_one_is_not(tmp_path):
    assert why_not_held(compiled(tmp_path), PATH) == ""
    static = incompatibility(compiled(tmp_path, "-static"), PATH)
    assert "statically" in static.why
    assert not static.objects  # what it starts may still be held


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x7fELF\x01\x01\x01" + bytes(60), "32-bit"),
        (elf64("/lib/ld-musl-x86_64.so.1"), "musl"),
        (elf64("/lib64/ld-linux-x86-64.so.2"), ""),
        (b"#!/no/such/interpreter\n", ""),
        (b"\x7fELF", ""),
        (b"", ""),
    ],
)
def test_why_a_program_cannot_be_held(tmp_path, content, why):
    program = tmp_path / "program"
    program.write_bytes(content)
    got = why_not_held(program, PATH)
    assert why in got
    assert bool(why) == bool(got)


@pytest.mark.parametrize(
    ("content", "objects"), [(b"\x7fELF\x01\x01\x01" + bytes(60), True), (elf64("/lib/ld-musl-x86_64.so.1"), True)]
)
def test_loaders_that_object_to_the_library(tmp_path, content, objects):
    program = tmp_path / "program"
    program.write_bytes(content)
    assert incompatibility(program, PATH).objects is objects


@pytest.mark.parametrize("first", ["#!{}", "#! {} -x", "#!/usr/bin/env {}", "#!/usr/bin/env -S A=1 {} -x"])
def test_a_script_is_judged_by_its_interpreter(tmp_path, first):
    musl = tmp_path / "musl"
    musl.write_bytes(elf64("/lib/ld-musl-x86_64.so.1"))
    musl.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(first.format(musl) + "\nprint()\n")
    assert str(musl) in why_not_held(script, PATH)


def test_scripts_that_name_each_other_end(tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!{script}\n")
    script.chmod(0o755)
    assert why_not_held(script, PATH) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program to somebody else")
def test_a_program_with_more_rights_than_its_user_is_not_held(tmp_path):
    program = tmp_path / "program"
    shutil.copy(PYTHON, program)
    os.chown(program, 65534, 65534)
    program.chmod(0o755 | stat.S_ISUID)
    assert "elevated privileges" in why_not_held(program, PATH)


@examples(200)
@given(st.data())
def test_a_broken_file_is_no_program_and_no_error(tmp_path_factory, data):
    raw = bytearray(elf64("/lib64/ld-linux-x86-64.so.2"))
    for place, value in data.draw(st.dictionaries(st.integers(4, len(raw) - 1), st.integers(0, 255))).items():
        raw[place] = value
    path = tmp_path_factory.getbasetemp() / "broken"
    path.write_bytes(raw[: data.draw(st.integers(4, len(raw)))])
    found = read_elf(path)
    assert found is None or found.bits in (32, 64)
