"""Fake accelerators and the programs that use them, compiled from tests/slicing/native: no device is needed."""

from __future__ import annotations

import importlib.util
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata.slicing.build import compile_library, sources

NATIVE = Path(__file__).parent / "native"
MIB = 1 << 20
GIB = 1 << 30

_STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")
_FAKE = (*_STRICT, "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic")
_CUDA = ("fake.c", "descriptors.c", "cuda_context.c", "cuda_linear.c", "cuda_lookup.c")
_CUDA_NEW = ("cuda_pool.c", "cuda_virtual.c", "cuda_array.c", "cuda_graph.c", "cuda_launch.c")
_STATE = "8q8q8q8q4q"


def of_nvidias_wheels(pattern: str) -> list[Path]:
    """Return files of the wheels nvidia-cuda-runtime (13, which torch brings) and nvidia-cuda-runtime-cu12."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return sorted(path for folder in folders for path in Path(folder).glob(pattern) if path.is_file())


def find_cudarts() -> list[Path] | None:
    """Return NVIDIA's own run-time libraries, shared and static, if those of CUDA 12 and 13 are both here."""
    found = of_nvidias_wheels("*/lib/libcudart*")
    is_both = {f"libcudart.so.{major}" for major in (12, 13)} <= {path.name for path in found}
    return found if is_both else None


def find_compiler() -> str | None:
    """Return the C compiler's path."""
    return shutil.which("cc")


@dataclass(frozen=True)
class Accelerators:
    """folder: drivers (see `environment` for those in folders), programs, and the quota library."""

    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "libstrata_quota.so"

    def environment(
        self, *, ledger: Path | None = None, driver: str = "", preload: str | None = None, **more: str
    ) -> dict[str, str]:
        """Return a whole environment: drivers on the path, the library preloaded (or what preload says).

        driver: "old", without the newer functions; "other-addresses", whose cuGetProcAddress has its own.
        """
        drivers = [str(self.folder / driver)] if driver else []
        env = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": ":".join([*drivers, str(self.folder)]),
            "LD_PRELOAD": str(self.library) if preload is None else preload,
            "STRATA_CONTEXT_BYTES": "0",
            **more,
        }
        if ledger is not None:
            env["STRATA_LEDGER"] = str(ledger)
        return {name: value for name, value in env.items() if value}

    def run(
        self, program: str, *words: str, env: dict[str, str], timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(
            [self.folder / program, *words], env=env, capture_output=True, text=True, timeout=timeout_s
        )

    def start(self, program: str, *words: str, env: dict[str, str]) -> subprocess.Popen[str]:
        """Start a program, its output in pipes."""
        return subprocess.Popen(
            [self.folder / program, *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@dataclass(frozen=True)
class DeviceState:
    """What all processes together hold of the fake device, by device: now, and the most at one instant."""

    held: tuple[int, ...]
    peak: tuple[int, ...]
    busy_us: tuple[int, ...]
    launches: int
    refused: int


def read_state(path: Path) -> DeviceState:
    """Read struct State of fakes/fake.h."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        words = struct.unpack_from(_STATE, memory)
    return DeviceState(words[0:8], words[8:16], words[16:24], words[32], words[33])


def build(folder: Path, *, more: Sequence[str] = ()) -> Accelerators:
    """Compile everything into a folder. more: flags for drivers and programs."""
    for name in ("old", "other-addresses"):
        (folder / name).mkdir(exist_ok=True)
    drivers = [
        (_CUDA + _CUDA_NEW, "libcuda.so.1", folder, ()),
        (_CUDA, "libcuda.so.1", folder / "old", ("-DOLD_DRIVER",)),
        (_CUDA + _CUDA_NEW, "libcuda.so.1", folder / "other-addresses", ("-DOTHER_ADDRESSES",)),
        (("fake.c", "descriptors.c", "nvml.c"), "libnvidia-ml.so.1", folder, ()),
        (("fake.c", "descriptors.c", "runtime.c"), "libruntime.so", folder, ()),
        (("ascendcl.c",), "libascendcl.so", folder, ("-L", str(folder), "-lruntime")),
    ]
    for parts, name, where, flags in drivers:
        names = [str(NATIVE / "fakes" / part) for part in parts]
        _cc(*_FAKE, *more, f"-Wl,-soname,{name}", "-o", str(where / name), *names, *flags)
    cuda = ("-L", str(folder), "-Wl,--no-as-needed", "-l:libcuda.so.1")
    npu = ("-L", str(folder), "-lascendcl", "-lruntime")
    programs: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("calls", ("calls.c", "driver.c"), ()),
        ("calls-linked", ("calls.c", "driver.c"), ("-DLINKED", *cuda)),
        ("calls-wrapped", ("calls.c", "driver.c", "wrapper.c"), ("-rdynamic",)),
        ("race", ("race.c", "driver.c"), ()),
        ("churn", ("churn.c", "driver.c"), ()),
        ("forks", ("forks.c", "driver.c"), ()),
        ("orphans", ("orphans.c", "driver.c"), ()),
        ("together", ("together.c", "driver.c"), ()),
        ("doors", ("doors.c",), cuda),
        ("step", ("step.c", "driver.c"), ()),
        ("reopen", ("reopen.c",), ()),
        ("npu", ("npu.c",), ()),
        ("npu-linked", ("npu.c",), ("-DLINKED", *npu)),
    ]
    for name, parts, flags in programs:
        names = [str(NATIVE / "programs" / part) for part in parts]
        _cc(*_STRICT, *more, "-o", str(folder / name), *names, *flags, "-ldl")
    for name in ("other", "shim"):
        _cc(
            *_STRICT,
            "-fPIC",
            "-shared",
            "-o",
            str(folder / f"lib{name}.so"),
            str(NATIVE / "programs" / f"{name}.c"),
        )
    compile_library(folder / "libstrata_quota.so", ["cc"], more=("-Werror",))
    return Accelerators(folder)


def sanitize_library(accelerators: Accelerators, sanitizer: str) -> None:
    """Compile the library once more, with a sanitizer; drivers and programs need its flag too.

    What stands behind dlsym is left out: sanitizers call that before they are ready themselves.
    """
    objects = []
    for path in (path for path in sources() if path.suffix == ".c"):
        is_early = path.stem in ("config", "interposition", "log", "table")
        flags = [] if is_early else [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"]
        objects.append(str(accelerators.folder / f"{path.stem}.o"))
        _cc("-std=c11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", *flags, "-c", str(path), "-o", objects[-1])
    scripts = [f"-Wl,--version-script={path}" for path in sources() if path.suffix == ".map"]
    shared = ["-shared", f"-fsanitize={sanitizer}", "-pthread", *scripts, "-o", str(accelerators.library)]
    _cc(*shared, *objects, "-ldl")


def _cc(*words: str) -> None:
    done = subprocess.run(["cc", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
