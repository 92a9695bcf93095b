"""Slices by name: begun, joined, cleared away when nobody is in them, and kept from other users."""

from __future__ import annotations

import fcntl
import os

import pytest

from strata.errors import UsageError
from strata.fleet.ledger import SIZE, read_limits
from strata.fleet.slices import QuotaLimits
from strata.slicing.ledger_directory import (
    free_name,
    ledger_of,
    ledgers,
    prepare_directory,
    take,
    user_directory,
    visible_ledgers,
)
from tests.slicing.ledger_builders import MIB, Ledger

ASKED = QuotaLimits(64 * MIB, None, None)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "strata" / "slices"
    prepare_directory(folder)
    return folder


def names(folder):
    return [path.stem for path in ledgers(folder)]


def in_use(folder, name, asked=ASKED):
    """Be in a slice by a process alone that counts in its ledger, as one is whose parent has gone."""
    os.close(take(folder, name, asked))
    made = Ledger(content=ledger_of(folder, name).read_bytes())
    made.held(made.row(asked.memory_bytes), made.process(), 5)
    made.write(ledger_of(folder, name))


def test_a_folder_of_ones_own_is_in_the_runtime_folder_else_in_shared_memory(tmp_path):
    assert user_directory({"XDG_RUNTIME_DIR": "/run/user/7"}, user=7).as_posix() == "/run/user/7/strata/slices"
    assert user_directory({"XDG_RUNTIME_DIR": "relative"}, user=7).as_posix() == "/dev/shm/strata-7"
    assert user_directory({}, user=7, shared=tmp_path) == tmp_path / "strata-7"


def test_only_its_user_can_read_a_folder_and_its_files(folder):
    assert folder.stat().st_mode & 0o777 == 0o700
    os.close(take(folder, "mine", ASKED))
    found = ledger_of(folder, "mine").stat()
    assert (found.st_mode & 0o777, found.st_size) == (0o600, SIZE)


def test_a_folder_others_can_read_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match="not a private directory"):
        prepare_directory(tmp_path / "open")


def test_a_link_somebody_else_may_have_made_is_refused(tmp_path):
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(UsageError, match="not a private directory"):
        prepare_directory(tmp_path / "link")


def test_where_no_folder_can_be_it_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot store slices") as told:
        prepare_directory(tmp_path / "file" / "slices")
    assert "XDG_RUNTIME_DIR" in told.value.hint


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-x", "x" * 64, "a b", "ä"])
def test_a_name_is_a_plain_word(folder, name):
    with pytest.raises(UsageError, match="not a valid slice name"):
        ledger_of(folder, name)


def test_where_there_is_no_room_no_half_of_a_ledger_stays(folder, monkeypatch):
    monkeypatch.setattr("strata.slicing.ledger_directory.os.write", lambda file, content: len(content) // 2)
    with pytest.raises(OSError, match="space"):
        take(folder, "new", ASKED)
    assert names(folder) == []


def test_who_comes_second_joins(folder):
    first = take(folder, "shared", ASKED)
    second = take(folder, "shared", ASKED)
    assert os.fstat(first).st_ino == os.fstat(second).st_ino
    os.close(first)
    os.close(second)


def test_who_asks_for_other_limits_is_told_both(folder):
    first = take(folder, "shared", ASKED)
    with pytest.raises(UsageError, match=r"64MiB \(67,108,864 bytes\) of every device.*30 % of the cores"):
        take(folder, "shared", QuotaLimits(None, 0.3, 1))
    os.close(first)
    assert names(folder) == ["shared"]


def test_when_all_have_left_a_name_is_free_for_other_limits(folder):
    os.close(take(folder, "shared", ASKED))
    os.close(take(folder, "shared", QuotaLimits(MIB, None, 0)))
    assert read_limits(ledger_of(folder, "shared")) == QuotaLimits(MIB, None, 0)


def test_a_slice_lasts_while_one_of_its_processes_does(folder):
    in_use(folder, "orphan")
    with pytest.raises(UsageError, match=r"slice .* has .*, not "):
        take(folder, "orphan", QuotaLimits(MIB, None, None))
    os.close(take(folder, "other", ASKED))
    assert "orphan" in names(folder)


def test_slices_that_are_over_are_cleared_away_and_nothing_else(folder):
    kept = take(folder, "kept", ASKED)
    os.close(take(folder, "over", ASKED))
    (folder / "garbage.ledger").write_text("no ledger")
    (folder / "notes.txt").write_text("somebody's")
    os.close(take(folder, "new", ASKED))
    assert names(folder) == ["garbage", "kept", "new"]
    assert (folder / "notes.txt").exists()
    os.close(kept)


@pytest.mark.parametrize("num_bytes", [0, 100, 4096])
def test_what_a_run_that_was_killed_left_unfinished_is_cleared_away(folder, num_bytes):
    ledger_of(folder, "cut").write_bytes(bytes(num_bytes))
    assert visible_ledgers({"XDG_RUNTIME_DIR": str(folder.parent.parent)}, user=1) == []
    os.close(take(folder, "cut", ASKED))
    assert read_limits(ledger_of(folder, "cut")) == ASKED


def test_the_lock_is_that_of_the_open_file_so_a_copy_of_it_holds_on(folder):
    file = take(folder, "held", ASKED)
    copy = os.dup(file)
    os.close(file)
    os.close(take(folder, "new", ASKED))
    assert "held" in names(folder)
    fcntl.flock(copy, fcntl.LOCK_UN)
    os.close(copy)


def test_a_name_that_is_taken_gets_a_number(folder):
    first = take(folder, "run-7", ASKED)
    assert free_name(folder, "run-7") == "run-7-2"
    os.close(first)
    assert free_name(folder, "run-7") == "run-7"


def test_root_sees_everybodys_slices_and_others_their_own(tmp_path):
    made = Ledger()
    made.process()
    made.row(MIB)
    for place in ("dev/shm/strata-7/a.ledger", "run/user/8/strata/slices/b.ledger", "pod/quota.ledger"):
        made.write(tmp_path / place)
    Ledger().write(tmp_path / "dev/shm/strata-7/over.ledger")
    made.write(tmp_path / "dev/shm/strata-7/\x1b[2J.ledger")
    made.write(tmp_path / "dev/shm/strata-\x1b[2J/c.ledger")
    own = {"STRATA_LEDGER": str(tmp_path / "pod/quota.ledger")}
    assert [path.stem for path in visible_ledgers({}, user=0, root=tmp_path)] == ["a", "b"]
    assert [path.stem for path in visible_ledgers(own, user=7, root=tmp_path)] == ["quota", "a"]
    assert visible_ledgers({}, user=9, root=tmp_path) == []
