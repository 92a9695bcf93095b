"""Containers of a pod share a slice and number their processes alike: a pid says nothing across them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slicing.fake_accelerators import GIB, MIB, read_state
from tests.support.deaths import killed_with_children


def why_none() -> str:
    if shutil.which("unshare") is None:
        return "needs unshare"
    done = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "needs the right to make pid namespaces"


pytestmark = pytest.mark.skipif(bool(why_none()), reason=why_none() or "there are some")
OWN_PROC = ("unshare", "-pf", "--mount-proc", "--kill-child")
OUTER_PROC = ("unshare", "-pf", "--kill-child")


@pytest.fixture
def start(accelerators, ledger):
    """Start `calls` in a pid namespace of its own (or in ours), with a limit of 1 GiB, and end it at the end."""
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB), FAKE_STATE=str(ledger) + ".state")
    # unshare itself runs without the library: it is the container's run time, not its program.
    preload, paths = env.pop("LD_PRELOAD"), env.pop("LD_LIBRARY_PATH")
    started = []

    def begin(*words, inside=OWN_PROC, program="calls"):
        set_up = ["env", f"LD_PRELOAD={preload}", f"LD_LIBRARY_PATH={paths}"]
        command = [*inside, *set_up, str(accelerators.folder / program), "dlsym", *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=env, text=True, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def says(start):
    def say(*words, inside=OWN_PROC):
        out, error = start(*words, inside=inside).communicate(timeout=300)
        assert error == ""
        return out.splitlines()

    return say


@pytest.mark.parametrize(
    ("holder", "other"),
    [(OWN_PROC, OWN_PROC), (OWN_PROC, ()), ((), OWN_PROC), (OUTER_PROC, OUTER_PROC), (OUTER_PROC, OWN_PROC)],
    ids=["two containers", "seen from the host", "of the host", "the host's /proc", "one with its own"],
)
def test_what_a_process_of_another_pid_namespace_holds_stays_held(start, says, holder, other):
    first = start("alloc:600M", "wait", inside=holder)
    assert first.stdout.readline() == "alloc 0\n"
    assert says("alloc:600M", "info", inside=other) == ["alloc 2", f"free {424 * MIB} total {GIB} info 0"]
    killed_with_children(first)
    assert says("alloc:600M", inside=other) == ["alloc 0"]


def test_eight_containers_that_race_never_hold_more_than_the_limit(start, ledger):
    running = [start("8", "2", "64M", "mixed", program="race") for _ in range(8)]
    said = [process.communicate(timeout=300) for process in running]
    assert [error for _, error in said] == [""] * 8
    granted, peak = sum(int(out) for out, _ in said), read_state(Path(f"{ledger}.state")).peak[0]
    # Pools leave the last 64 MiB to be tried in, and a request is 64 MiB.
    assert GIB - 128 * MIB <= granted == peak <= GIB


def storm(start, says, count):
    """Kill holders in containers at random, each replaced by another, and look that the living stay charged."""
    rng = random.Random(5)
    holders = []
    for _ in range(count):
        if len(holders) == 4:
            killed_with_children(holders.pop(rng.randrange(4)))
        holders.append(start("alloc:200M", "wait", inside=rng.choice([OWN_PROC, OUTER_PROC, ()])))
        assert holders[-1].stdout.readline() == "alloc 0\n"
    free = GIB - 800 * MIB
    assert says("alloc:300M", "info", inside=()) == ["alloc 2", f"free {free} total {GIB} info 0"]


def test_containers_that_are_killed_take_their_own_share_with_them_and_no_other(start, says):
    storm(start, says, 12)


@pytest.mark.real("cc")
def test_containers_that_are_killed_200_times(start, says):
    storm(start, says, 200)
