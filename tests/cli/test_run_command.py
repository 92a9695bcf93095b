"""`strata run` as a user has it: what it turns into, and what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from strata.cli.main import run

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder for all tests here: the library is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(cache, tmp_path, monkeypatch):
    for name in ("STRATA_LEDGER", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return dict(os.environ)


def strata_run(*arguments, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "strata", "run", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def ended(*arguments):
    process = strata_run(*arguments)
    out, err = process.communicate(timeout=300)
    return process, out, err


def test_streams_code_and_process_are_the_commands_own(environment):
    process, out, err = ended("--memory", "1Gi", "sh", "-c", "echo $$; echo told >&2; exit 7")
    assert (process.returncode, out, err) == (7, f"{process.pid}\n", "told\n")


def test_a_signal_ends_the_command_and_none_is_left_ignored(environment):
    process, out, _ = ended("--memory", "1Gi", "--", "sh", "-c", "grep SigIgn /proc/$$/status; kill -TERM $$")
    assert process.returncode == -signal.SIGTERM
    # None that Python ignores for itself; who starts the tests may have left others ignored.
    ignored = int(out.split()[1], 16)
    assert not [one for one in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT) if ignored >> (one - 1) & 1]


def test_what_a_command_starts_is_in_its_slice_with_its_limits(environment, tmp_path):
    script = "env | grep -E '^STRATA|^LD_PRELOAD' | sort"
    _, out, _ = ended(
        "--memory", "1Gi", "--cores", "30", "--device", "1", "--slice", "s", "--", "sh", "-c", script
    )
    lines = dict(line.split("=", 1) for line in out.splitlines())
    library = lines.pop("LD_PRELOAD")
    assert library.endswith("libstrata_quota.so")
    assert lines == {
        "STRATA_CORES_LIMIT_1": "30",
        "STRATA_LEDGER": str(ledger := tmp_path / "runtime/strata/slices/s.ledger"),
        "STRATA_LEDGER_INODE": str(ledger.stat().st_ino),
        "STRATA_MEMORY_LIMIT_1": str(2**30),
    }


def test_nothing_else_of_the_environment_changes(environment, tmp_path):
    given = {
        "PATH": os.environ["PATH"],
        "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"],
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    out, err = strata_run("--memory", "1Gi", "--", "env", "-0", env=given).communicate(timeout=300)
    names = {entry.partition("=")[0] for entry in out.split("\0") if entry}
    assert names == given.keys() | {"LD_PRELOAD", "STRATA_LEDGER", "STRATA_LEDGER_INODE", "STRATA_MEMORY_LIMIT"}, (
        err
    )


def test_a_slice_lasts_as_long_as_its_command_and_others_must_agree(environment):
    first = strata_run("--memory", "1Gi", "--slice", "shared", "--", "sh", "-c", "echo here; read line")
    assert first.stdout.readline() == "here\n"
    assert ended("--memory", "1Gi", "--slice", "shared", "--", "true")[0].returncode == 0
    other, out, err = ended("--memory", "2Gi", "--slice", "shared", "--", "true")
    assert (other.returncode, out) == (2, "")
    assert f"{2**30:,} bytes" in err
    assert f"{2**31:,} bytes" in err
    first.communicate("\n", timeout=300)
    assert ended("--memory", "2Gi", "--slice", "shared", "--", "true")[0].returncode == 0


@pytest.fixture
def on_musl(tmp_path):
    if shutil.which("musl-gcc") is None:
        pytest.skip("needs musl-gcc (musl-tools)")
    source, program = tmp_path / "p.c", tmp_path / "on-musl"
    source.write_text("int main(void) { return 7; }\n")
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    return str(program)


def test_a_program_on_musl_is_refused_before_its_loader_fails_on_the_library(environment, on_musl):
    process, out, err = ended("--memory", "1Gi", "--", on_musl)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"error: the quota cannot be enforced: {on_musl} uses musl")
    assert err.count("\n") == 2
    assert err.splitlines()[1].startswith("try: --fail open")


def test_or_runs_with_one_line_on_stderr(environment, on_musl):
    process, out, err = ended("--memory", "1Gi", "--fail", "open", "--", on_musl)
    assert (process.returncode, out) == (7, "")
    assert err == f"warning: the quota is not enforced: {on_musl} uses musl, and the library needs glibc\n"


def test_a_slice_in_a_slice_is_refused(environment):
    inner = [sys.executable, "-m", "strata", "run", "--memory", "2Gi", "--", "true"]
    process, _, err = ended("--memory", "1Gi", "--", *inner)
    assert process.returncode == 2
    assert "already inside a slice" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--memory", "0", "--", "true"], 2, "is not above 0"),
        (["--memory", "-1Gi", "--", "true"], 2, "is not above 0"),
        (["--memory", "8", "--", "true"], 2, "has no unit"),
        (["--memory", "8Gb", "--", "true"], 2, "bits"),
        (["--memory", "much", "--", "true"], 2, "cannot read"),
        (["--memory", "8Ei", "--", "true"], 2, "not one of bytes"),
        (["--memory", "8EB", "--", "true"], 2, "too large to count"),
        (["--cores", "0", "--", "true"], 2, "--cores"),
        (["--cores", "101", "--", "true"], 2, "--cores"),
        (["--memory", "1Gi", "--device", "64", "--", "true"], 2, "--device"),
        (["--memory", "1Gi", "--slice", "../x", "--", "true"], 2, "not a valid slice name"),
        (["--", "true"], 2, "no limit was given"),
        (["--memory", "1Gi"], 2, "COMMAND"),
        (["--memory", "1Gi", "--", ""], 2, "its first word is empty: the name of the program is missing"),
        ([""], 2, "the name of the program is missing"),
        (["--memory", "1Gi", "--", "no-such-command"], 127, "command not found"),
        (["--memory", "1Gi", "--", "/etc/passwd"], 126, "not executable"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(environment, capsys, arguments, code, said):
    assert run(["run", *arguments]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert "Traceback" not in told.err


def test_a_recording_of_a_command_without_a_name_is_refused(capsys):
    assert run(["host", "record", "--", " "]) == 2
    assert "the name of the program is missing" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said(environment, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    assert run(["run", "--memory", "1Gi", "--", "true"]) == 2
    assert "try: XDG_RUNTIME_DIR=" in capsys.readouterr().err


def test_without_a_compiler_it_is_said_what_to_install(environment, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert run(["run", "--memory", "1Gi", "--", "true"]) == 5
    assert "no-such-compiler" in capsys.readouterr().err


def test_a_static_program_is_refused_or_warned_of_and_runs(environment, tmp_path):
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text("int main(void) { return 5; }\n")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    assert ended("--memory", "1Gi", "--", str(program))[0].returncode == 2
    process, out, err = ended("--memory", "1Gi", "--fail", "open", "--", str(program))
    assert (process.returncode, out) == (5, "")
    assert err.startswith(f"warning: the quota is not enforced: {program} is statically linked")
    assert err.count("\n") == 1
