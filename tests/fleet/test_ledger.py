"""The ledger of a slice as it is read: who is counted, who is gone, and files that are no ledgers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_builders import MIB, SWEPT, Ledger, started
from strata.errors import UsageError
from strata.fleet import ledger
from strata.fleet.ledger import Asked, DeviceUse, Holder, new_ledger, process_lives, read_asked, read_ledger

HEADER = Path(ledger.__file__).parents[1] / "slicing" / "native" / "quota.h"


def test_the_living_are_counted_and_the_others_are_gone(tmp_path):
    made = Ledger()
    row = made.row(4096 * MIB, ordinal=2, cores=30)
    here, ended, swept = made.process(), made.process(start=1), made.process(state=SWEPT)
    made.held(row, here, 600 * MIB, undecided=3)
    made.held(row, ended, 100 * MIB)
    made.held(row, swept, 10 * MIB)
    (one,) = read_ledger(made.write(tmp_path / "s"), name="s")
    holders = (Holder(os.getpid(), 600 * MIB),)
    assert one == DeviceUse("s", 2, "nvidia", 4096 * MIB, 0.3, 600 * MIB, holders, gone_bytes=110 * MIB)


def test_each_device_has_an_entry_with_its_own_holders(tmp_path):
    made = Ledger()
    first, second = made.row(MIB, ordinal=0), made.row(0, ordinal=1, vendor=1)
    one, other = made.process(10, start=5), made.process(11, start=6)
    made.held(first, one, 3)
    made.held(second, other, 4)
    a, b = read_ledger(made.write(tmp_path / "s"), name="s", is_alive=lambda pid, start: start == pid - 5)
    assert (a.used_bytes, a.processes) == (3, (Holder(10, 3), Holder(11, 0)))
    assert (b.used_bytes, b.vendor, b.limit_bytes) == (4, "ascend", None)


def test_a_process_that_took_anothers_number_is_not_that_process():
    start = started(os.getpid())
    assert process_lives(os.getpid(), start)
    assert not process_lives(os.getpid(), start + 1)
    assert not process_lives(2**22 - 1, start)


@pytest.mark.parametrize(
    ("state", "threads", "lives"), [("R", 1, True), ("Z", 1, False), ("Z", 2, True), ("X", 1, False)]
)
def test_a_zombie_lives_while_one_of_its_threads_does(tmp_path, state, threads, lives):
    (tmp_path / "7").mkdir()
    fields = [state, *["0"] * 16, str(threads), "0", "99", "0"]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) {' '.join(fields)}\n")
    assert process_lives(7, 99, proc=tmp_path) is lives


def test_before_any_process_has_a_device_what_was_asked_for_is_shown(tmp_path):
    asked = Asked(8 * MIB, 0.3, 1)
    path = tmp_path / "s"
    path.write_bytes(new_ledger(asked))
    assert read_asked(path) == asked
    assert read_ledger(path, name="s") == [DeviceUse("s", 1, "", 8 * MIB, 0.3, 0, ())]


@pytest.mark.parametrize("content", [b"", bytes(ledger.SIZE)])
def test_one_that_is_just_being_made_holds_nothing(tmp_path, content):
    path = tmp_path / "s"
    path.write_bytes(content)
    assert read_ledger(path, name="s") == []
    assert read_asked(path) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"garbage", "7 bytes"),
        (bytes(ledger.SIZE + 5), "is no ledger"),
        (b"NOLEDGER" + bytes(ledger.SIZE - 8), "is no ledger"),
        (bytes(Ledger(version=2).data), "version 2"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, content, said):
    path = tmp_path / "s"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_ledger(path, name="s")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_ledger(tmp_path / "s", name="s")


@given(
    st.builds(
        Asked,
        st.none() | st.integers(1, 2**52),
        st.none() | st.integers(1, 100).map(lambda c: c / 100),
        st.none() | st.integers(0, 63),
    )
)
def test_what_was_asked_for_is_read_back(tmp_path_factory, asked):
    path = tmp_path_factory.getbasetemp() / "note"
    path.write_bytes(new_ledger(asked))
    assert read_asked(path) == asked


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, ledger.SIZE - 1), st.integers(0, 255)), max_size=50))
def test_no_content_breaks_the_reader(tmp_path_factory, changes):
    made = Ledger()
    made.held(made.row(MIB), made.process(), 5)
    for place, value in changes:
        made.data[place] = value
    path = made.write(tmp_path_factory.getbasetemp() / "broken")
    try:
        found = read_ledger(path, name="s")
    except UsageError:
        return
    assert all(one.used_bytes == sum(holder.used_bytes for holder in one.processes) for one in found)


def test_the_layout_is_that_of_the_librarys_header():
    text = HEADER.read_text()
    said = dict(re.findall(r"#define (LEDGER_\w+) \"?(\w+)\"?", text))
    assert said["LEDGER_MAGIC"].encode() == ledger.MAGIC
    assert [int(said[f"LEDGER_{name}"]) for name in ("VERSION", "SLOTS", "ROWS")] == [
        ledger.VERSION,
        ledger.SLOTS,
        ledger.ROWS,
    ]
    offsets = dict(re.findall(r"offsetof\(struct ledger_file, (\w+)\) == (\d+)", text))
    assert offsets == {"rows": "4096", "owners": "8192", "held": "16384"}
    assert f"sizeof(struct ledger_file) == {ledger.SIZE}" in text
