"""What a sleeping thread sleeps in, as procfs tells it, and where a process keeps its Python interpreter."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

import pytest

from strata.host.threads.interpreter import interpreters_of, state_in
from strata.host.threads.sleep_calls import SLEEP_CALLS, WORDS, sleep_call_of

STATE = (0x7F00_1000, 0x7F00_2000)
FILES = {0: "/dev/nvidia0", 3: "pipe:[17]", 4: "socket:[18]", 5: "anon_inode:[eventfd]", 6: "/data/shard-0", 7: ""}


def call_of(text, machine="x86_64"):
    return sleep_call_of(text, machine=machine, interpreters=lambda: (STATE,), target=FILES.__getitem__)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("202 0x7f0016f4 0x89 0x0 0x7ffec6c73d70 0x0 0xffffffff 0x7ffe 0x7f04", "interpreter_lock"),
        ("202 0x7f002000 0x89 0x0 0x0 0x0 0x0 0x7ffe 0x7f04", "futex"),
        ("230 0x0 0x0 0x7ffe6e60b6b0 0x7ffe6e60b6f0 0x0 0x0 0x7ffe 0x7f3e", "timer"),
        ("232 0x5 0x0 0x1 0x0 0x0 0x0 0x7ffe 0x7f3e", "events"),
        ("0 0x3 0x7fb4 0x64 0x0 0x0 0x0 0x7ffe 0x7f3e", "pipe"),
        ("45 0x4 0x7fb4 0x64 0x0 0x0 0x0 0x7ffe 0x7f3e", "socket"),
        ("0 0x5 0x7fb4 0x8 0x0 0x0 0x0 0x7ffe 0x7f3e", "events"),
        ("17 0x6 0x7fb4 0x1000 0x0 0x0 0x0 0x7ffe 0x7f3e", "file"),
        ("16 0x0 0xc020462a 0x7ffe 0x0 0x0 0x0 0x7ffe 0x7f3e", "driver"),
        ("0 0x7 0x7fb4 0x64 0x0 0x0 0x0 0x7ffe 0x7f3e", "other"),
        ("61 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f3e", "child"),
        ("28 0x7f00 0x1000 0x4 0x0 0x0 0x0 0x7ffe 0x7f3e", "memory_map"),
        ("-1 0x7ffdd0bffd18 0x7fb4cec812ad", "fault"),
        ("999 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f3e", "other"),
        ("running", None),
        ("", None),
        ("0", None),
        ("nonsense 0x3", None),
        ("0 three", None),
    ],
)
def test_a_sleep_is_known_by_its_call_and_what_that_is_about(text, call):
    assert call_of(text) == call


def test_other_machines_number_their_calls_otherwise_and_unknown_ones_say_little():
    assert call_of("98 0x7f0016f4 0x89", "aarch64") == "interpreter_lock"
    assert call_of("63 0x3 0x7fb4", "aarch64") == "pipe"
    assert call_of("63 0x3 0x7fb4", "s390x") == "other"
    assert call_of("-1 0x7ffd 0x7fb4", "s390x") == "fault"


def test_each_call_has_its_words():
    assert WORDS.keys() == SLEEP_CALLS


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="another Python keeps its state elsewhere")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="read of 64-bit ELF files alone")
def test_the_state_of_this_very_interpreter_is_found():
    here = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    assert here in [low for low, _ in interpreters_of(os.getpid())]


def test_a_process_without_an_interpreter_or_none_at_all_has_none(tmp_path):
    assert interpreters_of(1, tmp_path) == ()
    maps = tmp_path / "proc/1/maps"
    maps.parent.mkdir(parents=True)
    maps.write_text(
        "55bd2a8e1000-55bd2a8e2000 r--p 00000000 fe:00 18500      /usr/bin/sleep\n"
        "55bd2a8e3000-55bd2a8e4000 r--p 00000000 fe:00 18501      /usr/bin/python3.11\n"
    )
    assert interpreters_of(1, tmp_path) == ()


@pytest.mark.parametrize(
    "data", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200, b"\x7fELF\x01\x01" * 20]
)
def test_what_a_process_calls_its_interpreter_may_be_anything(tmp_path, data):
    image = tmp_path / "libpython3.11.so"
    image.write_bytes(data)
    assert state_in(image) is None


def test_an_image_that_would_be_waited_for_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "python3")
    assert state_in(tmp_path / "python3") is None
    assert state_in(tmp_path) is None
