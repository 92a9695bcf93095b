"""Memory that runs out and disks that are slow, by the kernel's control groups; where they are not, tests skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.real_processes import until

GROUPS = Path("/sys/fs/cgroup")
ROOM_BYTES = 64 << 20
HOG = "blocks = []\nwhile True: blocks.append(b'x' * 2**20)"


class SmallMemory(ExitStack):
    """A group of processes that have little memory together."""

    def __init__(self):
        super().__init__()
        is_first = (GROUPS / "memory").is_dir()  # version 1 of control groups
        self._group = GROUPS / ("memory" if is_first else ".") / f"strata-test-{os.getpid()}"
        try:
            self._group.mkdir()
            self.callback(until, self._is_removed, lambda: f"{self._group} to be empty")
            (self._group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(ROOM_BYTES))
        except OSError as error:
            self.close()
            pytest.skip(f"limits the memory of a group of processes: {error}")

    def run_out(self, pid):
        """Have a process share memory with one that takes all of it, until the kernel kills both, it first."""
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        with subprocess.Popen([sys.executable, "-c", HOG]) as hog:
            for each in (pid, hog.pid):
                (self._group / "cgroup.procs").write_text(str(each))

    def _is_removed(self):
        try:
            self._group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class SlowDisk(ExitStack):
    """A copy of a folder on a disk that reads so many bytes a second, and has read nothing of it yet."""

    def __init__(self, folder, workspace, *, bytes_per_s):
        super().__init__()
        self.folder = workspace / "disk"
        limits = GROUPS / "blkio" / "blkio.throttle.read_bps_device"
        if not limits.exists() or shutil.which("mkfs.ext4") is None:
            pytest.skip("limits what a disk reads: needs the blkio control group and mkfs.ext4")
        image = workspace / "disk.img"
        _do("mkfs.ext4", "-q", "-d", str(folder), str(image), "64M")
        self.folder.mkdir()
        _do("mount", "-o", "loop,ro", str(image), str(self.folder))
        self.callback(_do, "umount", str(self.folder))
        device = os.stat(self.folder).st_dev
        self.number = f"{os.major(device)}:{os.minor(device)}"
        limits.write_text(f"{self.number} {bytes_per_s}")
        self.callback(limits.write_text, f"{self.number} 0")

    @property
    def read_bytes(self):
        """How many bytes were read under the limit."""
        served = (GROUPS / "blkio" / "blkio.throttle.io_service_bytes").read_text().split("\n")
        return sum(int(line.split()[2]) for line in served if line.startswith(f"{self.number} Read "))


def _do(*command):
    subprocess.run(command, check=True, capture_output=True)
