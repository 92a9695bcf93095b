"""Processes and threads that race for one slice, die in it, fork in it: what they hold never passes the limit."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.slicing.fake_accelerators import GIB, MIB, read_state
from tests.slicing.ledger_builders import lock, started
from tests.support.deaths import killed

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
        said = [process.communicate(timeout=300) for process in running]
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


@pytest.mark.real("cc")
def test_nor_in_any_of_100_races(accelerators, ledger, tmp_path):
    peaks = []
    for number in range(100):
        state = tmp_path / f"state-{number}"
        granted = race(accelerators, ledger.with_name(f"{number}.ledger"), state, "64M", "mixed")
        peaks.append(read_state(state).peak[0])
        assert granted == peaks[-1]
    assert LIMIT - 64 * MIB < min(peaks) <= max(peaks) <= LIMIT


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
    out, error = process.communicate(timeout=300)
    assert error == ""
    assert process.returncode == -9, out


def wait_us(span_us: int) -> None:
    until = time.perf_counter() + span_us / 1e6
    while time.perf_counter() < until:
        pass


@pytest.mark.long("starts and kills a hundred processes")
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


def test_processes_that_take_and_give_back_at_the_limit_never_pass_it(accelerators, ledger, tmp_path):
    state = tmp_path / "state"
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB), FAKE_STATE=str(state))
    with ExitStack() as stack:
        running = [
            stack.enter_context(accelerators.start("churn", "gpa:0", str(seed), "300", "2", env=env))
            for seed in range(4)
        ]
        said = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    told = read_state(state)
    assert GIB - 128 * MIB < told.peak[0] <= GIB
    assert told.held[0] == 0


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


def orphaned(accelerators, ledger, tmp_path, *parent):
    """Return what a newcomer gets of 1 GiB beside a killed process's child, and after it."""
    env = accelerators.environment(
        ledger=ledger,
        STRATA_MEMORY_LIMIT=str(GIB),
        FAKE_STATE=str(tmp_path / "state"),
        FAKE_DESCRIPTORS="1",
    )
    with accelerators.start("calls", "dlsym", *parent, "wait", env=env) as holder:
        said = [holder.stdout.readline().split() for _ in parent]
        child = next(int(words[0]) for words in said if "childwait" in words)
        holder.kill()
        holder.wait()
        beside = accelerators.run("calls", "dlsym", "alloc:600M", "held:0", env=env).stdout
        killed(child)
        after = accelerators.run("calls", "dlsym", "alloc:1000M", env=env).stdout
    assert read_state(tmp_path / "state").peak[0] <= GIB
    return beside, after


def test_a_child_that_outlives_its_parent_keeps_the_share_the_driver_keeps(accelerators, ledger, tmp_path):
    # A DataLoader's workers inherit the device's descriptors, and it frees at the last of them (Megatron-LM#3684).
    beside, after = orphaned(accelerators, ledger, tmp_path, "alloc:600M", "childwait")
    assert beside == f"alloc 2\nbytes {600 * MIB} held 0\n"
    assert after == "alloc 0\n"


def test_also_a_child_that_was_forked_before_the_first_allocation(accelerators, ledger, tmp_path):
    beside, after = orphaned(accelerators, ledger, tmp_path, "childwait", "alloc:600M")
    assert beside == f"alloc 2\nbytes {600 * MIB} held 0\n"
    assert after == "alloc 0\n"


@pytest.mark.parametrize(
    "steps",
    [
        20_000,
        pytest.param(1_000_000, marks=[pytest.mark.real("cc")]),
        pytest.param(10_000_000, marks=[pytest.mark.real("cc"), pytest.mark.full("minutes of random steps")]),
    ],
)
def test_forks_and_kills_at_random_never_pass_the_limit(accelerators, ledger, tmp_path, steps):
    env = accelerators.environment(
        ledger=ledger,
        STRATA_MEMORY_LIMIT=str(GIB),
        FAKE_STATE=str(tmp_path / "state"),
        FAKE_DESCRIPTORS="1",
    )
    words = ("gpa:0", "7", str(steps), "6")
    done = accelerators.run("orphans", *words, env=env, timeout_s=3600)
    peak = read_state(tmp_path / "state").peak[0]
    # All of it, whichever fails: who is killed when is the machine's doing, and may not come again.
    said = f"orphans {' '.join(words)}: {done.returncode}, {done.stdout!r}, {done.stderr!r}, peak {peak / MIB} MiB"
    assert (done.returncode, done.stderr) == (0, ""), said
    made, kills, refused, held = (int(word) for word in done.stdout.split()[1::2])
    assert made >= steps, said
    assert kills > 3, said
    assert refused > steps / 100, said
    assert GIB - 256 * MIB < peak <= GIB, said
    assert held == 0, said
    assert held_of(accelerators, ledger, limit=GIB) == 0, said


@pytest.mark.real("cc")
def test_a_child_that_is_killed_with_its_parent_gives_the_share_back_when_it_has_let_go_of_the_device(
    accelerators, ledger, tmp_path
):
    """One may close the last copy of the device's descriptor, and the other that of the lock: 1536 of 1024 MiB."""
    env = accelerators.environment(
        ledger=ledger,
        STRATA_MEMORY_LIMIT=str(GIB),
        FAKE_STATE=str(tmp_path / "state"),
        FAKE_DESCRIPTORS="1",
    )
    done = accelerators.run("together", "gpa:0", "1000", env=env, timeout_s=900)
    assert (done.returncode, done.stdout, done.stderr) == (0, "got 1000\n", "")
    assert read_state(tmp_path / "state").peak[0] == 768 * MIB


def test_no_descriptor_that_children_copy_is_locked(accelerators, ledger):
    # A sweep's lock would last as long as they, when its process is killed in the middle of it.
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    with accelerators.start("calls", "dlsym", "alloc:600M", "wait", env=env) as holder:
        assert holder.stdout.readline() == "alloc 0\n"
        folder = Path(f"/proc/{holder.pid}")
        kept = [path.name for path in (folder / "fd").iterdir() if path.exists() and path.samefile(ledger)]
        assert kept
        assert not [name for name in kept if "lock:" in (folder / "fdinfo" / name).read_text()]
        assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 2\n"
        holder.kill()


def test_who_waits_long_for_a_cpu_between_its_lock_and_its_name_has_not_cut_the_ledger_short(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 0\n"
    poke(ledger, slot=0, owner=0, held=0)
    slow = lock(ledger, 0)
    with accelerators.start("calls", "dlsym", "alloc:600M", env=env) as process:
        time.sleep(0.5)
        os.close(slow)
        assert process.communicate(timeout=60) == ("alloc 0\n", "")


def test_children_forked_in_the_middle_of_other_threads_calls_find_no_lock_taken(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    done = accelerators.run("forks", "dlsym", "200", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "200\n", "")


def test_a_process_whose_first_thread_has_ended_still_holds_what_it_holds(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    with accelerators.start("calls", "dlsym", "alloc:600M", "leave", env=env) as holder:
        assert [holder.stdout.readline() for _ in range(2)] == ["alloc 0\n", "leave 0\n"]
        wait_until(holder.pid, "Z")
        assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 2\n"
        holder.kill()
    assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 0\n"


def test_a_process_that_is_dead_and_not_waited_for_holds_nothing(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    with accelerators.start("calls", "dlsym", "alloc:600M", "wait", env=env) as holder:
        assert holder.stdout.readline() == "alloc 0\n"
        holder.send_signal(signal.SIGKILL)
        wait_until(holder.pid, "Z")
        assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 0\n"


def wait_until(pid: int, state: str) -> None:
    while f"State:\t{state}" not in Path(f"/proc/{pid}/status").read_text():
        pass


def poke(ledger, *, slot: int, owner: int, held: int, namespace: int = 0) -> None:
    """Write a slot of the first device, as quota.h has it."""
    with ledger.open("r+b") as file:
        words = [
            (8192 + 8 * slot, "<Q", owner),
            (16384 + 8 * slot, "<Q", held),
            (540_672 + 4 * slot, "<I", namespace),
        ]
        for at, form, word in [*words, (20, "<I", max(slot + 1, 1))]:
            file.seek(at)
            file.write(struct.pack(form, word))


def owner_of_this_process() -> int:
    return 1 | os.getpid() << 2 | started(os.getpid()) << 24


@pytest.fixture
def slot_of(accelerators, ledger):
    """Give the first slot, and so much, to the process that runs the test: it lives there if it has it locked."""
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    files = []

    def take(held, *, lives):
        accelerators.run("calls", "dlsym", "alloc:1M", env=env)
        poke(ledger, slot=0, owner=owner_of_this_process(), held=held)
        if lives:
            files.append(lock(ledger, 0))
        return lambda word: accelerators.run("calls", "dlsym", word, env=env).stdout

    yield take
    for file in files:
        os.close(file)


@pytest.mark.parametrize(("lives", "code"), [(True, 2), (False, 0)], ids=["the same process", "another"])
def test_a_pid_that_is_used_again_does_not_hold_what_the_one_before_held(slot_of, lives, code):
    assert slot_of(600 * MIB, lives=lives)("alloc:600M") == f"alloc {code}\n"


@pytest.mark.parametrize("is_here", [True, False], ids=["of our containers", "of another container"])
def test_a_process_that_is_still_ending_has_its_memory_until_the_driver_has_it(accelerators, ledger, is_here):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    accelerators.run("calls", "dlsym", "alloc:1M", env=env)
    free = accelerators.environment(preload="")
    # Its first thread has ended and another has not, as when a driver takes long to let go; here nothing was held.
    with accelerators.start("calls", "dlsym", "leave", env=free) as ending:
        assert ending.stdout.readline() == "leave 0\n"
        wait_until(ending.pid, "Z")
        owner = 1 | ending.pid << 2 | started(ending.pid) << 24
        namespace = Path("/proc/self/ns/pid").stat().st_ino if is_here else 1
        poke(ledger, slot=0, owner=owner, held=600 * MIB, namespace=namespace)
        said = accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout
        ending.kill()
    assert said == ("alloc 2\n" if is_here else "alloc 0\n")
    assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 0\n"


def test_a_request_that_was_left_undecided_ends_with_its_process(slot_of):
    assert slot_of(600 * MIB | 3 << 52, lives=False)("alloc:1000M") == "alloc 0\n"


def test_a_request_that_is_never_decided_holds_nobody_up_for_long(slot_of):
    # Its process was stopped in the middle of it: after about 0.1 s a refusal stands.
    ask = slot_of(600 * MIB | 1 << 52, lives=True)
    assert ask("alloc:600M") == "alloc 2\n"
    assert ask("alloc:400M") == "alloc 0\n"


def test_a_context_that_takes_nothing_is_refused_to_nobody(slot_of):
    # Its request is one of no bytes, and others that are undecided are more than there is.
    assert slot_of(GIB + MIB | 1 << 52, lives=True)("alloc:2M") == "alloc 2\n"


def test_a_process_that_finds_no_slot_is_refused_with_a_word(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    accelerators.run("calls", "dlsym", "alloc:1M", env=env)
    for slot in range(1024):
        poke(ledger, slot=slot, owner=owner_of_this_process(), held=0)
    files = [lock(ledger, slot) for slot in range(1024)]
    done = accelerators.run("calls", "dlsym", "alloc:1M", env=env)
    for file in files:
        os.close(file)
    assert done.stdout == "alloc 2\n"
    assert done.stderr.count("\n") == 1
    assert "every slot is taken" in done.stderr
    assert accelerators.run("calls", "dlsym", "alloc:1000M", env=env).stdout == "alloc 0\n"


def test_a_ledger_that_was_replaced_says_nothing_of_who_lives_in_the_old_one(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    with ExitStack() as stack:
        holder, other = (
            stack.enter_context(accelerators.start("calls", "dlsym", *words, env=env))
            for words in (["alloc:600M", "wait"], ["alloc:1M", "stop", "alloc:600M"])
        )
        assert [holder.stdout.readline(), other.stdout.readline()] == ["alloc 0\n"] * 2
        ledger.rename(ledger.with_name("old"))
        ledger.touch()
        wait_until(other.pid, "T")
        other.send_signal(signal.SIGCONT)
        assert other.communicate(timeout=300)[0] == "stop 0\nalloc 2\n"
        holder.kill()


def test_one_devices_limit_is_found_under_the_number_that_a_child_gives_it(accelerators, ledger):
    # strata run --device 1, and a launcher that shows each rank one device, which is then number 0.
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT_1=str(GIB))
    uuid = "GPU-" + (b"FAKE-DEVICE-000" + b"\1").hex()
    said = {
        visible: accelerators.run(
            "calls", "dlsym", "alloc:2G", env=env | {"FAKE_VISIBLE": visible, "STRATA_DEVICE_UUID": uuid}
        ).stdout
        for visible in ("1", "0", "1,0", "0,1")
    }
    assert said == {"1": "alloc 2\n", "0": "alloc 0\n", "1,0": "alloc 2\n", "0,1": "alloc 0\n"}


def test_also_without_its_name_once_the_slice_knows_the_device(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT_1=str(GIB))
    with accelerators.start("calls", "dlsym", "device:1", "alloc:600M", "wait", env=env) as holder:
        assert [holder.stdout.readline() for _ in range(2)] == ["device 0\n", "alloc 0\n"]
        done = accelerators.run("calls", "dlsym", "alloc:600M", env={**env, "FAKE_VISIBLE": "1"})
        holder.kill()
    assert done.stdout == "alloc 2\n"


def test_one_that_comes_with_another_limit_gets_the_slices(accelerators, ledger):
    first = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    other = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(8 * GIB))
    with accelerators.start("calls", "dlsym", "alloc:600M", "wait", env=first) as holder:
        assert holder.stdout.readline() == "alloc 0\n"
        done = accelerators.run("calls", "dlsym", "alloc:600M", "info", env=other)
        holder.kill()
    assert done.stdout.splitlines() == ["alloc 2", f"free {424 * MIB} total {GIB} info 0"]
    assert done.stderr.count("\n") == 1
    # Nobody lives in the slice any more: it is as large as the next one says.
    assert accelerators.run("calls", "dlsym", "alloc:6000M", env=other).stdout == "alloc 0\n"


@pytest.mark.parametrize(("program", "refused"), [("calls", 2), ("npu", 207001)])
def test_processes_that_number_devices_differently_meet_at_the_device(accelerators, ledger, program, refused):
    take = "alloc:600M" if program == "calls" else "rtmalloc:600M"
    name = take.split(":")[0]
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    with accelerators.start(program, "dlsym", take, "wait", env={**env, "FAKE_VISIBLE": "1,0"}) as holder:
        assert holder.stdout.readline() == f"{name} 0\n"
        done = accelerators.run(program, "dlsym", take, "device:1", take, env=env)
        holder.kill()
    assert done.stdout.splitlines() == [f"{name} 0", "device 0", f"{name} {refused}"]


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
