"""The script that a virtual machine starts with, without the machine: what it names is there."""

from __future__ import annotations

import sys

from tests.host.vm import guest, guest_side


def test_the_first_process_of_the_guest_finds_its_module(monkeypatch):
    calls = []
    monkeypatch.setattr(guest_side, "main", lambda: calls.append("main"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(guest.INIT, "/init", "exec"), {"__name__": "__main__"})
    assert calls == ["main"]
