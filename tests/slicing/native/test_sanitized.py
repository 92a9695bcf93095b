"""The library under the address, undefined-behaviour and thread sanitizers: they end a program they object to."""

from __future__ import annotations

import subprocess

import pytest

from tests.slicing import fake_accelerators
from tests.slicing.fake_accelerators import GIB

pytestmark = pytest.mark.real("cc")

LOUD = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=0",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:abort_on_error=1",
}


def runtime_of(sanitizer: str) -> str:
    """Return the sanitizer's library, or "" where the compiler brought none."""
    name = f"lib{sanitizer[0] if sanitizer != 'undefined' else 'ub'}san.so"
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip() if found.stdout.startswith("/") else ""


@pytest.fixture(scope="module", params=["address", "undefined", "thread"])
def sanitized(request, tmp_path_factory):
    runtime = runtime_of(request.param)
    if not runtime:
        pytest.skip(f"needs the compiler's {request.param} sanitizer")
    folder = tmp_path_factory.mktemp(request.param)
    built = fake_accelerators.build(folder, more=(f"-fsanitize={request.param}",))
    fake_accelerators.sanitize_library(built, request.param)
    # The address sanitizer insists on being the first of all libraries.
    before = f"{runtime} " if request.param == "address" else ""
    return built, f"{before}{built.library}"


WORDS = [
    "alloc:600M alloc:600M free:0 freebad info total",
    "async:100M newpool pooled:64M freeasync:0 freeasync:1 sync endpool async:10M trimdefault:0 info",
    "create:64M map:0 retain:1 release:0 release:2 unmap:1 create:64M shareself:3 release:3 release:4 info",
    "array2:1024 array3:100 arraym:256 endarray:0 endarray:1 endmipmap:2 newcontext alloc:2M endcontext:3 reset",
    "graphalloc:64M graphnode:64M graphlaunch free:0 free:1 graphtrim graphdestroy launch:10 cooperate info",
    "alloc:64M ipcget:0 ipcopen ipcclose:1 fork:3 alloc:64M free:0 info exec alloc:64M device:1 alloc:2M info",
]


@pytest.mark.parametrize("words", WORDS, ids=[words.split(":")[0] for words in WORDS])
@pytest.mark.parametrize("door", ["dlsym", "gpa:2"])
def test_every_call_is_sound(sanitized, ledger, door, words):
    built, preload = sanitized
    env = built.environment(ledger=ledger, preload=preload, STRATA_MEMORY_LIMIT=str(GIB), **LOUD)
    done = built.run("calls", door, *words.split(), env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_threads_that_churn(sanitized, ledger):
    built, preload = sanitized
    env = built.environment(ledger=ledger, preload=preload, STRATA_MEMORY_LIMIT=str(GIB), **LOUD)
    done = built.run("churn", "gpa:0", "3", "3000", "4", env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("used 0 held 0\n")


@pytest.mark.parametrize(
    "words", ["malloc:1M rtmalloc:1M free:1 rtfree:0 physical:2M:1 endphysical:2 info rtinfo"]
)
def test_ascend_is_sound(sanitized, ledger, words):
    built, preload = sanitized
    env = built.environment(ledger=ledger, preload=preload, STRATA_MEMORY_LIMIT=str(GIB), **LOUD)
    done = built.run("npu", "dlsym", *words.split(), env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
