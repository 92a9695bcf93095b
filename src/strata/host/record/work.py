"""What a recording lasts for: a command, a process, or so many seconds."""

from __future__ import annotations

import os
import pwd
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from strata.errors import UsageError
from strata.host.machine import steal
from strata.host.machine.steal import Steal

LOOK_S: Final = 1.0
"""Into a recording: pools of threads are up, and a short command has not ended yet."""
AGAIN_S: Final = 5.0
"""Between later looks at what was started since; one costs some milliseconds."""
SAMPLE_S: Final = 0.02
"""Between samples, on average."""
GOLDEN: Final = 0.618034
"""Multiples of the golden ratio, without their whole parts, are spread evenly whatever their number."""


@dataclass(frozen=True, slots=True)
class User:
    """As whom a command runs: numbers, and the variables that name a user."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def behind_sudo(environment: Mapping[str, str], *, user: int) -> User | None:
    """Return who called sudo, so that root records and the job does not become root's; None without sudo."""
    uid, gid = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    if user != 0 or not uid.isdecimal() or not gid.isdecimal() or int(uid) == 0:
        return None
    try:
        entry = pwd.getpwuid(int(uid))
    except KeyError:  # a user of a directory service that is not asked here
        return User(int(uid), int(gid), (int(gid),))
    groups = tuple(os.getgrouplist(entry.pw_name, int(gid)))
    variables = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    return User(int(uid), int(gid), groups, variables)


@contextmanager
def acting_as(user: User | None) -> Iterator[None]:
    """Be a user meanwhile: what root writes for them is theirs, and only where they may. None changes nothing."""
    if user is None:
        yield
        return
    uid, gid, groups, variables = os.geteuid(), os.getegid(), os.getgroups(), dict(os.environ)
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    os.environ.update(user.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


class Witness:
    """Looks at the machine while work is recorded; this one does nothing.

    samples: whether `sample` is wanted. tell: called in the command's process, before it becomes the command.
    """

    samples = False
    tell: Callable[[], None] | None = None

    def begun(self) -> None:
        """It has begun."""

    def look(self) -> None:
        """Threads had time to be born; again every AGAIN_S."""

    def sample(self) -> None:
        """About every SAMPLE_S."""

    def ended(self) -> None:
        """It is over, however it ended."""


class RecordedCommand:
    """`start`, then `wait`; `exit_code` is the command's once it has ended, else None.

    `steal` is then what a hypervisor took from this machine meanwhile.
    """

    def __init__(
        self,
        *,
        seconds: float | None,
        command: Sequence[str] = (),
        pid: int | None = None,
        user: User | None = None,
    ) -> None:
        self.seconds = seconds
        self.user = user
        self.command = tuple(command)
        self.pid = pid
        self.process: subprocess.Popen[bytes] | None = None
        self.witness = Witness()
        self.steal: Steal | None = None
        self._turn = 0.0

    @property
    def exit_code(self) -> int | None:
        """Return the command's exit code, 128 and more for a signal."""
        code = self.process.poll() if self.process is not None else None
        return 128 - code if code is not None and code < 0 else code

    @property
    def root_pid(self) -> int | None:
        """Return the process it is all about: the command's, or the one that was named."""
        return self.process.pid if self.process is not None else self.pid

    def start(self) -> None:
        """Start the command, if there is one. Raises UsageError where it cannot be."""
        if not self.command:
            return
        try:
            if self.user is None:
                self.process = subprocess.Popen(self.command, preexec_fn=self.witness.tell)
            else:
                self.process = subprocess.Popen(
                    self.command,
                    user=self.user.uid,
                    group=self.user.gid,
                    extra_groups=self.user.groups,
                    env={**os.environ, **self.user.environment},
                    preexec_fn=self.witness.tell,
                )
        except OSError as error:
            raise UsageError(f"{self.command[0]}: cannot be started: {error.strerror}") from None

    def wait(self) -> None:
        """Return when the command or the process has ended, or the seconds are over. Ctrl-C ends it too."""
        before, began_s = steal.ticks(), time.monotonic()
        with suppress(KeyboardInterrupt):
            pause_s = LOOK_S if self.seconds is None else min(LOOK_S, self.seconds / 2)
            end_s = float("inf") if self.seconds is None else began_s + self.seconds
            self.witness.begun()
            has_ended = self._wait(pause_s)
            self.witness.look()
            while not has_ended and (left_s := end_s - time.monotonic()) > 0:
                if (has_ended := self._wait(min(AGAIN_S, left_s))) or left_s <= AGAIN_S:
                    break
                self.witness.look()
        self.witness.ended()
        self.steal = steal.between(before, steal.ticks(), seconds=time.monotonic() - began_s)

    def _wait(self, seconds: float) -> bool:
        """Wait so long, and sample meanwhile; returns whether the command or the process has ended."""
        if not self.witness.samples:
            return self._has_ended_in(seconds)
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.witness.sample()
            # Irregular, so that what a program does fifty times a second is not always met at the same point.
            self._turn = (self._turn + GOLDEN) % 1.0
            if self._has_ended_in(min(left_s, SAMPLE_S * (0.5 + self._turn))):
                return True
        return False

    def _has_ended_in(self, seconds: float) -> bool:
        pid = self.root_pid
        if pid is None:
            select.select([], [], [], seconds)
            return False
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            has_ended = bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)
        return has_ended if self.process is None else self.process.poll() is not None
