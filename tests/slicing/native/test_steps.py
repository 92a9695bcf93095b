"""A process killed between any two instructions of an allocation, a free or a sweep leaves nothing charged."""

from __future__ import annotations

import pytest

from tests.slicing.fake_accelerators import GIB

FORBIDDEN = "the child does not let itself be traced"


def step(accelerators, ledger, what: str, stride: int) -> int:
    """Return how many processes were killed, each some instructions further on."""
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    done = accelerators.run("step", what, str(stride), env=env, timeout_s=1500)
    if FORBIDDEN in done.stdout:
        pytest.skip("needs ptrace")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return int(done.stdout.split()[1])


LONG_WAY = pytest.mark.long("seconds of single steps")
MINUTES = pytest.mark.full("minutes of single steps: each of hundreds of processes goes some instructions further")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("first", marks=LONG_WAY),
        "alloc",
        "free",
        pytest.param("refused", marks=LONG_WAY),
        pytest.param("sweep", marks=LONG_WAY),
    ],
)
def test_killed_at_some_instructions(accelerators, ledger, what):
    assert step(accelerators, ledger, what, 211) > 3


@pytest.mark.real("cc")
@MINUTES
@pytest.mark.parametrize("what", ["alloc", "free"])
def test_killed_at_every_instruction(accelerators, ledger, what):
    assert step(accelerators, ledger, what, 1) > 500


@pytest.mark.real("cc")
@pytest.mark.parametrize("what", ["alloc", "free"])
def test_killed_at_every_29th_instruction(accelerators, ledger, what):
    assert step(accelerators, ledger, what, 29) > 15


@pytest.mark.real("cc")
@MINUTES
@pytest.mark.parametrize("what", ["first", "refused", "sweep"])
def test_killed_at_every_29th_instruction_of_long_ways(accelerators, ledger, what):
    assert step(accelerators, ledger, what, 29) > 50
