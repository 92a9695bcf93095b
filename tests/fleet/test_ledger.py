"""The ledger of a slice as it is read: who is counted, who is gone, and files that are no ledgers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.fleet import ledger
from strata.fleet.ledger import (
    DeviceUse,
    LedgerHolder,
    count_processes,
    new_ledger,
    read_ledger,
    read_limits,
)
from strata.fleet.slices import QuotaLimits
from tests.slicing.ledger_builders import MIB, Ledger, die, lock
from tests.support.laws import examples

HEADER = Path(ledger.__file__).parents[1] / "slicing" / "native" / "quota.h"


@pytest.fixture(autouse=True)
def _no_slot_outlives_its_test():
    yield
    die()


def test_the_living_are_counted_and_the_others_are_gone(tmp_path):
    made = Ledger()
    row = made.row(4096 * MIB, ordinal=2, cores=30)
    here, ended, other = made.process(), made.process(lives=False), made.process(7, lives=False)
    made.held(row, here, 600 * MIB, undecided=3)
    made.held(row, ended, 100 * MIB)
    made.held(row, other, 10 * MIB)
    path = made.write(tmp_path / "s")
    (one,) = read_ledger(path, name="s")
    holders = (LedgerHolder(os.getpid(), 600 * MIB),)
    assert one == DeviceUse("s", 2, "nvidia", 4096 * MIB, 0.3, 600 * MIB, holders, gone_bytes=110 * MIB)
    assert count_processes(path) == 1


def test_each_device_has_an_entry_with_its_own_holders(tmp_path):
    made = Ledger()
    first, second = made.row(MIB, ordinal=0), made.row(0, ordinal=1, vendor=1)
    one, other = made.process(11), made.process(10)
    made.held(first, one, 3)
    made.held(second, other, 4)
    a, b = read_ledger(made.write(tmp_path / "s"), name="s")
    assert (a.used_bytes, a.processes) == (3, (LedgerHolder(10, 0), LedgerHolder(11, 3)))
    assert (b.used_bytes, b.vendor, b.limit_bytes) == (4, "ascend", None)


def test_who_has_a_word_locked_lives_whatever_its_pid_is_here(tmp_path):
    made = Ledger()
    row, none = made.row(MIB), 2**22 - 1
    made.held(row, made.process(none, lives=False, namespace=99), 5)
    path = made.write(tmp_path / "s")
    assert read_ledger(path, name="s")[0].gone_bytes == 5
    held = lock(path, 0)
    (one,) = read_ledger(path, name="s")
    assert (one.processes, one.gone_bytes) == ((LedgerHolder(none, 5, is_here=False),), 0)
    os.close(held)
    assert read_ledger(path, name="s")[0].processes == ()


def test_before_any_process_has_a_device_what_was_asked_for_is_shown(tmp_path):
    asked = QuotaLimits(8 * MIB, 0.3, 1)
    path = tmp_path / "s"
    path.write_bytes(new_ledger(asked))
    assert read_limits(path) == asked
    assert read_ledger(path, name="s") == [DeviceUse("s", 1, "", 8 * MIB, 0.3, 0, ())]


@pytest.mark.parametrize("content", [b"", bytes(ledger.SIZE)])
def test_one_that_is_just_being_made_holds_nothing(tmp_path, content):
    path = tmp_path / "s"
    path.write_bytes(content)
    assert read_ledger(path, name="s") == []
    assert read_limits(path) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"garbage", "7 bytes"),
        (bytes(ledger.SIZE + 5), "a truncated slice ledger"),
        (b"NOLEDGER" + bytes(ledger.SIZE - 8), "not a slice ledger"),
        (bytes(Ledger().data[:5000]), "a truncated slice ledger: 5000 bytes"),
        (bytes(Ledger(version=1).data[:540_672]), "version 1"),
        (bytes(Ledger(version=3).data), "version 3"),
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
        QuotaLimits,
        st.none() | st.integers(1, 2**52),
        st.none() | st.integers(1, 100).map(lambda c: c / 100),
        st.none() | st.integers(0, 63),
    )
)
def test_what_was_asked_for_is_read_back(tmp_path_factory, asked):
    path = tmp_path_factory.getbasetemp() / "note"
    path.write_bytes(new_ledger(asked))
    assert read_limits(path) == asked


@examples(100)
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


def test_a_ledger_of_an_earlier_library_is_read(tmp_path):
    made = Ledger()
    made.held(made.row(MIB), made.process(), 5)
    del made.data[544_768:]
    (use,) = read_ledger(made.write(tmp_path / "earlier"), name="s")
    assert use.used_bytes == 5


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
    places = {"rows": 4096, "owners": 8192, "held": 16384, "namespaces": 540672, "heirs": 544768}
    assert {name: int(place) for name, place in offsets.items()} == places
    assert f"sizeof(struct ledger_file) == {ledger.SIZE}" in text
