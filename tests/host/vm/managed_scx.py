"""strata's manager of the real scx_layered, in the guest; work there; noise that takes its CPUs."""

from __future__ import annotations

import json
from contextlib import contextmanager

from tests.host.vm import guest_side
from tests.host.vm.guest import STRATA, Guest

STATE = "/sys/kernel/sched_ext/state"
ATTACH_S = 290.0
"""Under an emulator the verifier takes a minute, more where the machine is loaded."""
POLICY, PLAIN = "/root/policy.json", "/root/plain.json"
LOG = "/root/manager.log"


class Managed:
    """`strata host run-layered`, started; what it starts is attached at leisure."""

    def __init__(self, guest: Guest, *arguments: str, policy: str = POLICY) -> None:
        self.guest = guest
        command = [str(STRATA), "host", "run-layered", policy, *arguments]
        self.pid = guest.call(guest_side.start, command, LOG)

    def attached(self):
        """Wait until the kernel runs tasks by the policy."""
        took_s = self.guest.call(guest_side.until, STATE, "enabled", ATTACH_S, limit_s=ATTACH_S + 60)
        assert took_s is not None, self.said
        return self

    @property
    def said(self) -> str:
        """What it has told so far."""
        return self.guest.call(guest_side.text, LOG)

    def ended(self, number: int = 0, seconds: float = ATTACH_S) -> int:
        """Send it a signal, or none, and return its exit code; sched_ext is off then."""
        code = self.guest.call(guest_side.end, self.pid, number, seconds, limit_s=seconds + 60)
        assert code is not None, self.said
        assert self.guest.call(guest_side.until, STATE, "disabled", 30.0) is not None
        return code


def write_policy(guest: Guest, path: str = POLICY, change=lambda layers: layers):
    """Write what `strata host layers` makes of the threads that run there now; return its layers."""
    layers = change(guest.json("host", "layers"))
    guest.call(guest_side.write, path, json.dumps(layers))
    return layers


@contextmanager
def noise(guest: Guest, threads: int = 4):
    """Keep so many threads busy meanwhile; yields their process."""
    pid = guest.call(guest_side.start, ["work", *["hog:10000:0"] * threads])
    try:
        yield pid
    finally:
        guest.call(guest_side.end, pid, 9)


def work(guest: Guest, *threads: str, holding: str = "/dev/null") -> int:
    """Start threads that work and sleep (see work.c), wait until they are there, and return the first's number.

    holding: a file that their process has open.
    """
    pid = guest.call(guest_side.start_with, holding, ["work", *threads])
    for thread in threads:
        name = thread.partition(":")[0]
        assert guest.call(guest_side.until_named, pid, name, 60.0), f"no thread {name}"
    return pid


def nice(guest: Guest, tid: int) -> int:
    """Return a thread's nice value."""
    return int(guest.call(guest_side.text, f"/proc/{tid}/stat").rpartition(")")[2].split()[16])
