"""What cannot be kept is refused, or let through with a word on it: by policy, and never in silence."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.slicing.fake_accelerators import GIB, MIB


@pytest.fixture
def alloc(accelerators):
    """Return what allocating 600 MiB twice says: the codes, and stderr."""

    def run(env=None, *, ledger=None, **more):
        env = env or accelerators.environment(ledger=ledger, **more)
        done = accelerators.run("calls", "dlsym", "alloc:600M", "alloc:600M", env=env)
        assert done.returncode == 0, done.stderr
        return [int(line.split()[1]) for line in done.stdout.splitlines()], done.stderr

    return run


def test_without_a_limit_nothing_changes(alloc, ledger):
    assert alloc(ledger=ledger) == ([0, 0], "")
    assert not ledger.exists()


BAD = ["-1", "0", "eight", "8Gx", "1.5", "16G", "99999999999999999999999", "1e3"]


@pytest.mark.parametrize("text", BAD)
def test_a_limit_that_is_none_refuses_everything_and_says_so_once(alloc, ledger, text):
    codes, said = alloc(ledger=ledger, STRATA_MEMORY_LIMIT=text)
    assert codes == [2, 2]
    assert said.count("\n") == 1
    assert text in said


@pytest.mark.parametrize("text", BAD)
def test_or_lets_everything_through_where_that_is_the_policy(alloc, ledger, text):
    codes, said = alloc(ledger=ledger, STRATA_MEMORY_LIMIT=text, STRATA_QUOTA_FAIL="open")
    assert codes == [0, 0]
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["1Gi", "1GiB", "1024MiB", "1073741824", " 1Gi ", "1.0GiB"])
def test_limits_in_every_unit(alloc, ledger, text):
    assert alloc(ledger=ledger, STRATA_MEMORY_LIMIT=text) == ([0, 2], "")


def test_a_limit_beyond_the_device_shows_the_device(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(500 * GIB))
    done = accelerators.run("calls", "dlsym", "alloc:600M", "info", "total", "alloc:80G", env=env)
    assert done.stdout.splitlines() == [
        "alloc 0",
        f"free {80 * GIB - 600 * MIB} total {80 * GIB} info 0",
        f"total {80 * GIB} total 0",
        "alloc 2",
    ]


def test_the_switch_turns_everything_off(alloc, ledger):
    assert alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi", STRATA_QUOTA="off") == ([0, 0], "")
    assert not ledger.exists()


@pytest.mark.parametrize(("value", "codes"), [("1024m", [0, 2]), ("1g", [0, 2]), ("0", [0, 0])])
def test_hamis_names_are_understood(alloc, ledger, value, codes):
    assert alloc(ledger=ledger, CUDA_DEVICE_MEMORY_LIMIT_0=value) == (codes, "")


def test_hamis_switch_turns_its_names_off(alloc, ledger):
    assert alloc(ledger=ledger, CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DISABLE_CONTROL="true")[0] == [0, 0]
    both = {"CUDA_DEVICE_MEMORY_LIMIT": "9g", "CUDA_DISABLE_CONTROL": "true", "STRATA_MEMORY_LIMIT": "1Gi"}
    assert alloc(ledger=ledger, **both)[0] == [0, 2]


@pytest.fixture(params=["no folder", "a folder", "no file's"])
def unusable(request, tmp_path):
    """Return a path no ledger can be kept at: root may write everywhere, so that rights are no obstacle here."""
    if request.param == "no folder":
        return tmp_path / "missing" / "slice.ledger"
    if request.param == "a folder":
        return tmp_path
    path = tmp_path / "own"
    path.write_bytes(b"#!/bin/sh\necho somebody's\n" * 100)
    return path


def test_a_ledger_that_cannot_be_kept_refuses_everything_and_says_so_once(alloc, unusable):
    before = unusable.read_bytes() if unusable.is_file() else None
    codes, said = alloc(ledger=unusable, STRATA_MEMORY_LIMIT="1Gi")
    assert codes == [2, 2]
    assert said.count("\n") == 1
    assert str(unusable) in said
    assert before is None or unusable.read_bytes()[: len(before)] == before


def test_or_grants_everything_where_that_is_the_policy(alloc, unusable):
    codes, said = alloc(ledger=unusable, STRATA_MEMORY_LIMIT="1Gi", STRATA_QUOTA_FAIL="open")
    assert codes == [0, 0]
    assert said.count("\n") == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_ledger_full_of_nonsense_ends_no_program(accelerators, tmp_path, seed):
    ledger = tmp_path / "slice.ledger"
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
    accelerators.run("calls", "dlsym", "alloc:1M", env=env)
    whole = ledger.read_bytes()
    # Behind the header, all of it: rows, owners, bytes; and more slots than there are.
    noise = random.Random(seed).randbytes(len(whole) - 20)
    ledger.write_bytes(whole[:20] + noise)
    done = accelerators.run("calls", "dlsym", "alloc:600M", "info", env=env)
    assert done.returncode == 0


def test_a_ledger_of_another_version_is_not_written_to(alloc, tmp_path):
    ledger = tmp_path / "slice.ledger"
    assert alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")[0] == [0, 2]
    whole = bytearray(ledger.read_bytes())
    whole[8] += 1
    ledger.write_bytes(whole)
    codes, said = alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
    assert codes == [2, 2]
    assert said.count("\n") == 1
    assert ledger.read_bytes() == whole


def test_a_link_in_the_ledgers_place_is_not_followed(alloc, tmp_path):
    treasure = tmp_path / "treasure"
    treasure.write_bytes(b"")
    link = tmp_path / "slice.ledger"
    link.symlink_to(treasure)
    codes, said = alloc(ledger=link, STRATA_MEMORY_LIMIT="1Gi")
    assert codes == [2, 2]
    assert said.count("\n") == 1
    assert treasure.stat().st_size == 0


def test_a_program_that_clears_its_environment_keeps_its_limit(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
    done = accelerators.run("calls", "stripped+dlsym", "alloc:600M", "alloc:600M", env=env)
    assert done.stdout.splitlines() == ["alloc 0", "alloc 2"]


@pytest.fixture
def stopped(accelerators, ledger):
    """Return what a process that had allocated 600 MiB and was stopped says when it goes on to allocate."""

    @contextmanager
    def begin(*words, **more):
        env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi", **more)
        with accelerators.start("calls", "dlsym", "alloc:600M", "stop", *words, env=env) as process:
            assert process.stdout.readline() == "alloc 0\n"
            while "State:\tT" not in Path(f"/proc/{process.pid}/status").read_text():
                pass
            yield process, lambda: (process.send_signal(signal.SIGCONT), process.communicate(timeout=300))[1]

    return begin


@pytest.mark.parametrize("policy", ["closed", "open"])
def test_a_ledger_that_is_cut_short_ends_no_program(stopped, ledger, policy):
    with stopped("alloc:300M", "free:0", "info", STRATA_QUOTA_FAIL=policy) as (process, go_on):
        os.truncate(ledger, 0)
        out, error = go_on()
        assert out.splitlines()[1] == ("alloc 2" if policy == "closed" else "alloc 0")
        assert "cut short" in error
        assert process.returncode == 0


def test_nobody_begins_anew_in_a_ledger_that_was_cut_short_in_use(stopped, alloc, ledger):
    with stopped("alloc:300M") as (process, go_on):
        os.truncate(ledger, 0)
        codes, said = alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
        assert codes == [2, 2]
        assert "cut short while in use" in said
        assert go_on()[0].splitlines()[1] == "alloc 2"
        assert process.returncode == 0
    assert alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi") == ([0, 2], "")


@pytest.mark.parametrize("by", ["nothing", "another"])
def test_a_slices_ledger_that_was_removed_is_not_begun_anew(stopped, alloc, ledger, by):
    with stopped() as (_, go_on):
        inode = str(ledger.stat().st_ino)
        ledger.rename(ledger.with_name("removed"))
        if by == "another":
            ledger.touch()
        codes, said = alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi", STRATA_LEDGER_INODE=inode)
        assert (codes, said.count("\n")) == ([2, 2], 1)
        assert ledger.exists() == (by == "another")
        go_on()


def test_what_processes_held_comes_back_without_the_ledgers_folder(stopped, accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
    with accelerators.start("calls", "dlsym", "alloc:300M", "wait", env=env) as sibling:
        assert sibling.stdout.readline() == "alloc 0\n"
        with stopped("alloc:300M") as (_, go_on):
            ledger.unlink()
            sibling.kill()
            sibling.wait()
            assert go_on()[0].splitlines()[1] == "alloc 0"


def test_a_ledger_forgets_how_many_were_once_in_it(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
    with ExitStack() as stack:
        many = [
            stack.enter_context(accelerators.start("calls", "dlsym", "alloc:1M", "wait", env=env))
            for _ in range(12)
        ]
        assert {process.stdout.readline() for process in many} == {"alloc 0\n"}
        assert int.from_bytes(ledger.read_bytes()[20:24], "little") == 12
        for process in many:
            process.kill()
    accelerators.run("calls", "dlsym", "alloc:1M", env=env)
    assert int.from_bytes(ledger.read_bytes()[20:24], "little") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
def test_a_ledger_that_another_user_made_first_is_not_mapped(alloc, tmp_path):
    # They could cut it short at any time, which ends every program that has it mapped. Only where nobody named it.
    theirs = tmp_path / "cache.strata"
    theirs.touch(mode=0o666)
    os.chown(theirs, 65534, 65534)
    codes, said = alloc(CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DEVICE_MEMORY_SHARED_CACHE=str(tmp_path / "cache"))
    assert codes == [2, 2]
    assert "belongs to another user" in said
    assert theirs.stat().st_size == 0


def test_a_new_ledger_is_everybodys_from_the_start_and_alone_in_its_folder(alloc, tmp_path):
    ledger = tmp_path / "slice.ledger"
    assert alloc(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi") == ([0, 2], "")
    assert [path.name for path in tmp_path.iterdir()] == ["slice.ledger"]
    assert ledger.stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_folder_one_may_not_write(accelerators, tmp_path):
    import subprocess

    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    for folder in (accelerators.folder, *accelerators.folder.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    env = accelerators.environment(ledger=closed / "slice.ledger", STRATA_MEMORY_LIMIT="1Gi")
    done = subprocess.run(
        [accelerators.folder / "calls", "dlsym", "alloc:600M"],
        env=env,
        user=65534,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "alloc 2\n"
    assert done.stderr.count("\n") == 1
