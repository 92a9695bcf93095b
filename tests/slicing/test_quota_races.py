"""Processes and threads that race for one slice, die in it, fork in it: what they hold never passes the limit."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

import pytest

from fake_accelerators import GIB, MIB, read_state

LIMIT = 4096 * MIB


def held_of(accelerators, ledger, *, limit=LIMIT) -> int:
    """Return what the slice says its processes hold, as a process that comes to it sees."""
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(limit))
    said = accelerators.run("calls", "dlsym", "info", env=env).stdout.split()
    return int(said[3]) - int(said[1])


def race(accelerators, ledger, state, *words, parties=8, threads=4, **more):
    env = accelerators.environment(
        ledger=ledger, STRATA_MEMORY_LIMIT=str(LIMIT), FAKE_STATE=str(state), FAKE_DELAY_US="100", **more
    )
    with ExitStack() as stack:
        running = [
            stack.enter_context(accelerators.start("race", "gpa:0", str(parties), str(threads), *words, env=env))
            for _ in range(parties)
        ]
        said = [process.communicate(timeout=120) for process in running]
    assert [error for _, error in said] == [""] * parties
    return sum(int(out) for out, _ in said)


@pytest.mark.parametrize("kind", ["mixed", "linear", "physical"])
def test_eight_processes_that_race_never_hold_more_than_the_limit_at_one_instant(
    accelerators, ledger, tmp_path, kind
):
    state = tmp_path / "state"
    granted = race(accelerators, ledger, state, "64M", kind)
    peak = read_state(state).peak[0]
    assert granted == peak <= LIMIT
    # Nobody was turned away while there was room for the smallest block, thrice in a row.
    assert peak > LIMIT - 64 * MIB
    assert held_of(accelerators, ledger) == 0


def test_without_the_library_they_hold_more(accelerators, ledger, tmp_path):
    # Or the test above proves nothing.
    state = tmp_path / "state"
    race(accelerators, ledger, state, "64M", parties=2, preload="", FAKE_BYTES=str(2 * LIMIT))
    assert read_state(state).peak[0] > LIMIT


def test_what_fits_exactly_is_refused_to_nobody(accelerators, ledger, tmp_path):
    state = tmp_path / "state"
    # One size for all: 2 MiB blocks until three in a row are refused leave nothing over.
    assert race(accelerators, ledger, state, "2M", "linear", threads=2) == LIMIT


def kills(accelerators, ledger, *, count, seed):
    rng = random.Random(seed)
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(LIMIT), FAKE_BYTES=str(1 << 50))
    at_once = 4
    alive: list = []
    try:
        for number in range(count):
            if len(alive) == at_once:
                end(alive.pop(rng.randrange(at_once)))
            process = accelerators.start("churn", "dlsym", str(seed + number), "0", str(1 + number % 3), env=env)
            alive.append(process)
            if number % 4:
                assert process.stdout.readline() == "ready\n"
                wait_us(rng.randrange(2000))
            else:
                wait_us(rng.randrange(6000))  # in the middle of its start, or not
    finally:
        for process in alive:
            end(process)


def end(process) -> None:
    process.kill()
    out, error = process.communicate(timeout=60)
    assert error == ""
    assert process.returncode == -9, out


def wait_us(span_us: int) -> None:
    until = time.perf_counter() + span_us / 1e6
    while time.perf_counter() < until:
        pass


def test_100_kills_at_random_leave_nothing_in_the_ledger(accelerators, ledger):
    kills(accelerators, ledger, count=100, seed=7)
    assert held_of(accelerators, ledger) == 0
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(LIMIT))
    assert accelerators.run("calls", "dlsym", "alloc:4096M", env=env).stdout == "alloc 0\n"


@pytest.mark.real("cc")
def test_1000_kills_at_random_leave_nothing_in_the_ledger(accelerators, ledger):
    kills(accelerators, ledger, count=1000, seed=11)
    assert held_of(accelerators, ledger) == 0


def churn(accelerators, ledger, *words, limit, **more):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(limit), **more)
    done = accelerators.run("churn", *words, env=env, timeout_s=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return [int(word) for word in done.stdout.split()[1::2]]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_allocator_agrees_with_an_oracle_over_200_000_operations(accelerators, ledger, seed):
    refusals, used, held = churn(accelerators, ledger, "dlsym", str(seed), "200000", limit=GIB)
    assert refusals > 10_000
    assert (used, held) == (0, 0)


@pytest.mark.real("cc")
def test_a_random_allocator_agrees_with_an_oracle_over_ten_million_operations(accelerators, ledger):
    refusals, used, held = churn(accelerators, ledger, "gpa:0", "3", "10000000", limit=GIB)
    assert refusals > 500_000
    assert (used, held) == (0, 0)


def test_threads_of_one_process_give_everything_back(accelerators, ledger, tmp_path):
    state = tmp_path / "state"
    refusals, used, held = churn(
        accelerators, ledger, "gpa:2", "5", "50000", "4", limit=GIB, FAKE_STATE=str(state)
    )
    assert refusals > 0
    # The default pool keeps up to a block more than is in use, and gives it back once the device is waited for.
    assert (used, held) == (0, 0)
    assert read_state(state).peak[0] <= GIB


def test_a_child_holds_nothing_of_its_parents_and_shares_the_slice(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    done = accelerators.run(
        "calls", "dlsym", "alloc:600M", "fork:3", "alloc:600M", "alloc:300M", "info", "info", "alloc:400M", env=env
    )
    assert done.stdout.splitlines() == [
        "alloc 0",
        # the child: what its parent holds is not its to take, and 300 MiB fit beside it
        "alloc 2",
        "alloc 0",
        f"free {124 * MIB} total {GIB} info 0",
        # the parent, after the child's end
        f"free {424 * MIB} total {GIB} info 0",
        "alloc 0",
    ]


def test_another_program_in_the_same_process_starts_with_nothing(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    done = accelerators.run("calls", "dlsym", "alloc:600M", "exec", "alloc:1000M", env=env)
    assert done.stdout.splitlines() == ["alloc 0", "alloc 0"]
    assert held_of(accelerators, ledger, limit=GIB) == 0


def test_a_driver_that_is_closed_and_opened_again(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    done = accelerators.run("reopen", env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("alloc")] == ["alloc 0 alloc 2 free 0"] * 3
