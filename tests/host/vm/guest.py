"""A virtual machine with Debian's newest Linux and scx_layered; its other files are this machine's, strata's too.

with Guest(image(find(), folder, {}), cpus=2) as guest:  # booted in half a minute; tools/vm/build makes the parts
    guest.strata("host", "layers", "-o", "json")["out"]  # also "code", "err"; so does `guest.run(program, ...)`
    guest.call(guest_side.waits, tid, seconds=4.0)  # any function of a module in tests/: JSON in, JSON out
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from packaging.requirements import Requirement

from tests import ROOT
from tests.cluster.integration.control_plane import _die_with_parent as die_with_parent
from tests.host.vm import guest_side

BUILD = ROOT / "tools/vm/build"
LIBRARIES = ("array-api-compat", "click", "numpy", "prometheus_client", "pydantic", "PyYAML", "rich")
LIBRARIES += ("httptools", "jinja2", "starlette", "uvicorn")
UNUSED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "dist-packages",
}
BOOT_S, CALL_S = 300.0, 300.0
"""For a loaded machine; a boot takes half a minute."""


class GuestFailed(AssertionError):
    """What went wrong in the guest, with the end of its console."""


def find() -> Path | None:
    """Return the folder with the guest's parts; None where `make vm-test` has not made them."""
    version = re.search(r"^scx=(\S+)$", BUILD.read_text(), re.MULTILINE)
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strata/vm" / version[1]
    parts = (cache / "vmlinuz", cache / "config", cache / "release", cache / "bin/scx_layered")
    return cache if all(part.exists() for part in parts) else None


class Guest:
    """A machine that runs until it is closed. log: its console.

    is_traced: one CPU is emulated at a time. Tracing, and sched_ext as it comes and goes, patch code that other
    CPUs run meanwhile, over which QEMU 7.2 stumbles now and then ("Oops: int3").
    """

    def __init__(
        self, image: Path, *, cpus: int = 2, nodes: int = 1, memory_mb: int = 2048, is_traced: bool = False
    ) -> None:
        folder = image.parent
        self.log = folder / f"console-{time.monotonic_ns()}.log"
        self._socket, theirs = socket.socketpair()
        accelerator = f"tcg,thread={'single' if is_traced else 'multi'}"
        command = ["qemu-system-x86_64", "-accel", accelerator, "-cpu", "max", "-nodefaults", "-display", "none"]
        command += ["-no-reboot", "-m", str(memory_mb), *_topology(cpus, nodes, memory_mb)]
        command += ["-kernel", str(folder / "vmlinuz"), "-initrd", str(image)]
        command += [
            "-append",
            "console=ttyS0 panic=-1 mitigations=off tsc=reliable loglevel=6",
            "-serial",
            "stdio",
        ]
        command += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=strata,fd={theirs.fileno()}"]
        command += ["-device", "virtserialport,chardev=strata,name=strata"]
        with theirs, self.log.open("wb") as log:
            self._qemu = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent,
            )
        self._answers = b""
        try:
            self._answer(BOOT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Switch it off."""
        self._qemu.kill()
        self._qemu.wait()
        self._socket.close()

    @property
    def console(self) -> str:
        """The end of what the kernel said."""
        return self.log.read_bytes()[-8000:].decode(errors="replace") if self.log.exists() else ""

    def call(self, function: Any, *args: Any, limit_s: float = CALL_S, **named: Any) -> Any:
        """Return what a function says there. Raises GuestFailed where it fails, or does not answer in time."""
        if self._qemu.poll() is not None:
            raise GuestFailed(f"the guest is off\n{self.console}")
        request = {"module": function.__module__, "name": function.__name__, "args": args, "named": named}
        self._socket.settimeout(limit_s)
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        answer = self._answer(limit_s, what=function.__name__)
        if "error" in answer:
            raise GuestFailed(f"{function.__name__}{args}: {answer['error']}")
        return answer["value"]

    def run(self, *command: object, limit_s: float = CALL_S) -> dict[str, Any]:
        """Run a command there to its end: its `code`, `out` and `err`."""
        words = [str(word) for word in command]
        done: dict[str, Any] = self.call(guest_side.run, words, limit_s=limit_s + 30, seconds=limit_s)
        return done

    def strata(self, *arguments: object, limit_s: float = CALL_S) -> dict[str, Any]:
        """Run strata there, as `run` does."""
        return self.run(STRATA, *arguments, limit_s=limit_s)

    def json(self, *arguments: object, limit_s: float = CALL_S) -> Any:
        """Return what strata says there with `-o json`; it has to succeed."""
        done = self.strata(*arguments, "-o", "json", limit_s=limit_s)
        assert done["code"] == 0, done["err"]
        return json.loads(done["out"])

    def _answer(self, limit_s: float, what: str = "the boot") -> dict[str, Any]:
        until_s = time.monotonic() + limit_s
        while b"\n" not in self._answers:
            self._socket.settimeout(max(0.1, until_s - time.monotonic()))
            try:
                more = self._socket.recv(2**20)
            except TimeoutError:
                self._qemu.kill()  # whoever asks next does not wait again
                raise GuestFailed(f"{what}: no answer within {limit_s:g} s\n{self.console}") from None
            if not more:
                raise GuestFailed(f"{what}: the guest ended\n{self.console}")
            self._answers += more
        line, _, self._answers = self._answers.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


INIT = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.host.vm import guest_side
guest_side.main()
"""
STRATA = Path(sys.executable).with_name("strata")


def _topology(cpus: int, nodes: int, memory_mb: int) -> Iterator[str]:
    yield from ("-smp", f"{cpus},sockets={nodes},cores={cpus // nodes},threads=1")
    for node in range(nodes if nodes > 1 else 0):
        first = node * cpus // nodes
        yield from ("-object", f"memory-backend-ram,id=m{node},size={memory_mb // nodes}M")
        yield from ("-numa", f"node,nodeid={node},cpus={first}-{first + cpus // nodes - 1},memdev=m{node}")
        for other in range(node):
            yield from ("-numa", f"dist,src={other},dst={node},val=21")


def image(parts: Path, target: Path, more: Mapping[str, Path]) -> Path:
    """Write the guest's files: Python with strata, where they are here; scx_layered; `more` (path there: here).

    target: a folder; kernel and files are then in it.
    """
    (target / "vmlinuz").symlink_to(parts / "vmlinuz")
    release = (parts / "release").read_text().strip()
    files = {str(path): path for path in _python()}
    files |= {"/usr/local/bin/scx_layered": parts / "bin/scx_layered", f"/boot/config-{release}": parts / "config"}
    files |= more
    programs = [path for path in files.values() if ".so" in path.name or os.access(path, os.X_OK)]
    files |= {str(path): path for path in _libraries(programs)}
    with (target / "guest.cpio").open("wb") as stream:
        archive = _Archive(stream)
        for there, path in sorted(files.items()):
            archive.copy(there, path)
        for link in Path(sys.executable).parent.glob("python*"):
            archive.link(str(link), os.path.realpath(link))
        archive.add("/init", INIT.encode(), mode=0o755)
        for folder in ("proc", "sys", "dev", "tmp", "run", "root", "var/run", "var/lib"):
            archive.folder(folder)
        archive.add("TRAILER!!!", b"", mode=0)
    return target / "guest.cpio"


def _python() -> Iterator[Path]:
    """Yield the files of the Python that runs here: its library, what strata needs, strata, the tests' modules."""
    yield Path(os.path.realpath(sys.executable))
    yield from (Path(sys.prefix) / "pyvenv.cfg", STRATA)
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        yield from (
            path for path in Path(folder).rglob("*") if path.is_file() and not _is_unused(path, Path(folder))
        )
    for name in sorted(_with_needs(LIBRARIES)):
        found = metadata.distribution(name)
        paths = [Path(str(found.locate_file(one))).resolve() for one in found.files or ()]
        yield from (path for path in paths if path.is_file() and not {"tests", "bin"} & {*path.parts[-4:]})
    yield from Path(sysconfig.get_path("purelib")).glob("*strata*.pth")
    yield from (path for path in (ROOT / "src").rglob("*") if path.is_file())
    yield ROOT / "tests/__init__.py"
    yield from Path(__file__).parent.glob("*.py")


def _is_unused(path: Path, folder: Path) -> bool:
    return bool(UNUSED & {*path.relative_to(folder).parts}) or path.suffix == ".a"


def _with_needs(names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            needs = [Requirement(one) for one in metadata.requires(name) or ()]
            left += [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def _libraries(programs: list[Path]) -> set[Path]:
    """Return the shared libraries that programs and libraries are linked with, the loader too."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


class _Archive:
    """A cpio archive in the form that the kernel unpacks; https://docs.kernel.org: initramfs buffer format."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._seen = stream, set[str]()

    def folder(self, path: str) -> None:
        path = path.strip("/")
        if path and path not in self._seen:
            self.folder(str(Path(path).parent) if "/" in path else "")
            self._seen.add(path)
            self._entry(path, stat.S_IFDIR | 0o755, b"")

    def link(self, path: str, to: str) -> None:
        self.folder(str(Path(path).parent))
        self._entry(path.strip("/"), stat.S_IFLNK | 0o777, to.encode())

    def add(self, path: str, data: bytes, *, mode: int, age: int = 0) -> None:
        self.folder(str(Path(path).parent).strip("."))
        self._entry(path.strip("/"), stat.S_IFREG | mode, data, age)

    def copy(self, path: str, here: Path) -> None:
        # Python's caches are valid for files of the same age only.
        found = here.stat()
        self.add(path, here.read_bytes(), mode=found.st_mode & 0o777, age=int(found.st_mtime))

    def _entry(self, path: str, mode: int, data: bytes, age: int = 0) -> None:
        name = path.encode() + b"\0"
        numbers = (0, mode, 0, 0, 1, age, len(data), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name
        self._stream.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))
