from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from strata import database
from strata.errors import StrataError, UsageError
from strata.history import MIGRATIONS, Entry, History, default_path

WRITER = """
import sys
from strata.history import History
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with History(path) as kept:
    for number in range(count):
        print(kept.add(name, {"number": number}, at_s=float(number)), flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "history.db"


def write_in_another_process(path, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, path, name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_what_is_added_is_read_back_after_closing(path):
    with History(path) as kept:
        first = kept.add("train", {"choice": "东 \ud800", "cost": [1.5, None]}, at_s=12.5)
    with History(path) as kept:
        assert kept.get(first) == Entry(1, "train", 12.5, {"choice": "东 \ud800", "cost": [1.5, None]})


def test_the_latest_of_a_kind_come_newest_first(path):
    with History(path) as kept:
        for number in range(6):
            kept.add("train" if number % 2 else "serve", {"number": number}, at_s=number)
        assert [entry.decision["number"] for entry in kept.latest("train", 2)] == [5, 3]
        assert kept.latest("host", 2) == []


def test_the_oldest_rows_go_and_ids_are_never_used_again(path):
    with History(path, max_rows=3) as kept:
        ids = [kept.add("train", {"number": number}, at_s=0.0) for number in range(5)]
        assert ids == [1, 2, 3, 4, 5]
        assert kept.count() == 3
        assert [entry.id for entry in kept.latest("train", 10)] == [5, 4, 3]
        with pytest.raises(UsageError, match="no decision 2 is kept"):
            kept.get(2)


def test_what_is_not_json_is_not_stored(path):
    with History(path) as kept:
        with pytest.raises(ValueError, match="not JSON compliant"):
            kept.add("train", {"cost": float("nan")}, at_s=0.0)
        assert kept.count() == 0


def make_v1_file(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as old:
        old.execute(
            "CREATE TABLE decision "
            "(id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at_s REAL NOT NULL, body TEXT NOT NULL)"
        )
        old.execute("INSERT INTO decision (kind, at_s, body) VALUES ('train', 3.0, '{\"number\": 1}')")
        old.execute("PRAGMA user_version=1")
    old.close()


def indexes_and_version(path):
    rows = sqlite3.connect(path)
    names = rows.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall()
    version = rows.execute("PRAGMA user_version").fetchone()
    rows.close()
    return names, version


def test_a_file_of_the_first_version_is_upgraded_with_its_rows(path):
    make_v1_file(path)
    with History(path) as kept:
        assert kept.get(1) == Entry(1, "train", 3.0, {"number": 1})
        assert kept.add("train", {}, at_s=4.0) == 2
    assert indexes_and_version(path) == ([("decision_by_kind",)], (len(MIGRATIONS),))


def test_an_upgrade_that_fails_half_way_leaves_the_old_file(path, monkeypatch):
    make_v1_file(path)
    monkeypatch.setattr(History, "migrations", (*MIGRATIONS, "CREATE NONSENSE"))
    with pytest.raises(UsageError, match="syntax error"), History(path):
        pass
    assert indexes_and_version(path) == ([], (1,))


def test_a_file_of_a_newer_strata_is_left_alone(path):
    with History(path) as kept:
        kept.add("train", {}, at_s=0.0)
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(UsageError, match="newer strata") as caught, History(path):
        pass
    assert caught.value.hint == "the strata that wrote it, or another file"


def test_a_file_of_another_program_is_left_alone(path):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    with pytest.raises(UsageError, match="another program"), History(path):
        pass
    assert indexes_and_version(path) == ([], (0,))


def test_a_file_that_is_no_database_is_kept_and_said_so(path):
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, but it may be somebody's thesis" * 100)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="not a history strata can use: file is not a database") as caught:
        History(path).__enter__()
    assert "deletes nothing" in str(caught.value.hint)
    assert path.read_bytes() == before


def test_a_file_broken_in_the_middle_is_said_so(path):
    with History(path) as kept:
        for number in range(300):
            kept.add("train", {"number": number, "text": "x" * 200}, at_s=0.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(UsageError, match="malformed"), History(path) as kept:
        kept.latest("train", 10)


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path):
    (tmp_path / "plain").write_text("")
    with (
        pytest.raises(UsageError, match=r"Not a directory|File exists"),
        History(tmp_path / "plain" / "history.db"),
    ):
        pass
    with pytest.raises(UsageError, match="unable to open"), History(tmp_path):
        pass


def test_a_file_that_stays_locked_is_said_so(path, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_S", 0.0)
    with History(path) as kept:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StrataError, match="locked"):
            kept.add("train", {}, at_s=0.0)
        other.execute("ROLLBACK")
        other.close()
        assert kept.add("train", {}, at_s=0.0) == 1


def test_two_writers_that_start_together_lose_no_row(path):
    writers = [write_in_another_process(path, name, 200) for name in ("left", "right")]
    ids = [int(line) for writer in writers for line in writer.communicate()[0].split()]
    assert sorted(ids) == list(range(1, 401))
    with History(path) as kept:
        for name in ("left", "right"):
            assert [entry.decision["number"] for entry in kept.latest(name, 1000)] == list(range(199, -1, -1))


def test_a_killed_writer_loses_no_acknowledged_row_and_no_file(path):
    writer = write_in_another_process(path, "train", 1_000_000)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(50)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += [
        int(line) for line in writer.communicate()[0].splitlines(keepends=True) if line.endswith("\n")
    ]
    assert writer.returncode == -signal.SIGKILL
    rows = sqlite3.connect(path)
    assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    kept = {row[0] for row in rows.execute("SELECT id FROM decision")}
    rows.close()
    assert kept >= set(acknowledged)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_STATE_HOME": "/var/state"}, Path("/var/state")),
        ({"XDG_STATE_HOME": "relative"}, Path.home() / ".local/state"),
        ({}, Path.home() / ".local/state"),
    ],
)
def test_the_default_place_follows_xdg(environment, folder):
    assert default_path(environment) == folder / "strata" / "history.db"
