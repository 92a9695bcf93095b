# ruff: noqa: T201
"""Shares of a real device's time: mixed kernels, two tenants. The law itself is `strata bench slicing`."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys

import pytest

from tests.slicing.gpu.machine import PROGRAMS, environment, run, why_no_gpu

pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
SECONDS = 10
POINTS = 5.0
MIXED = ("10", "100", "1000", "10000", "40000")
HOST_BOUND = ("40x10", "8x30", "2x150", "+15")


@pytest.fixture(scope="module")
def speed() -> tuple[str, str]:
    """Return the turns that the device makes in a microsecond, and what a kernel takes beside its turns [us]."""
    told = run("spin.py", "0", env=environment(None))
    print(f"\na launch that the device waits for is measured {told['marks_us']:.1f} us too long")
    return str(told["per_us"]), str(told["start_us"])


@functools.cache
def alone(speed: tuple[str, str], *spans: str) -> float:
    """Return the share of the time that kernels keep the device at work where nobody limits them."""
    return float(run("spin.py", *speed, str(SECONDS), *spans, env=environment(None))["share"])


def cores(ledger, percent: int) -> dict[str, str]:
    return environment(ledger, STRATA_CORES_LIMIT=str(percent))


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param(("20x100",), id="20 x 0.1 ms"),
        pytest.param(("999x20", "200000"), id="999 x 20 us, 200 ms"),
        pytest.param(MIXED, id="10 us to 40 ms"),
        pytest.param(HOST_BOUND, id="host-bound"),
    ],
)
@pytest.mark.parametrize("percent", [10, 30, 70])
def test_a_share_is_kept_within_5_points_over_10_seconds(ledger, speed, percent, spans):
    most = 100 * alone(speed, *spans)
    told = run("spin.py", *speed, str(SECONDS), *spans, env=cores(ledger, percent))
    print(f"\nasked for {percent} %, got {100 * told['share']:.1f} % (alone {most:.1f} %)")
    assert 100 * told["share"] == pytest.approx(min(percent, most), abs=POINTS)
    assert told["longest_launch_s"] <= 0.25 + max(int(span.rpartition("x")[2]) for span in spans) / 1e6


def test_what_measuring_costs_a_program_within_its_share(tmp_path, speed):
    """In turns, since two runs without the library differ by some percent, too."""
    got: dict[bool, list[float]] = {False: [], True: []}
    for number in range(5):
        for with_it in (True, False) if number % 2 else (False, True):
            env = cores(tmp_path / f"{number}.ledger", 90) if with_it else environment(None)
            got[with_it].append(run("spin.py", *speed, "2", *HOST_BOUND, env=env)["share"])
    ratio = statistics.median(got[True]) / statistics.median(got[False])
    print(f"\nat work with a share of 90 % and without, the medians of 5 runs' ratio: {ratio:.3f}")
    assert ratio >= 0.9


def test_the_device_gives_two_processes_turns(speed):
    """What the virtual device of `strata bench slicing` has been given: an H200 had turns of 2.07 ms."""
    command = [sys.executable, str(PROGRAMS / "turns.py"), speed[0], "3", "0"]
    both = [subprocess.Popen(command, env=environment(None), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [json.loads(process.communicate(timeout=300)[0]) for process in both]
    print("\n", *map(json.dumps, told), sep="\n")
    assert [one["share"] for one in told] == [pytest.approx(0.47, abs=0.05)] * 2
    assert all(0.5 <= one["own_turn_ms"][2] <= 10 for one in told)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((30, "20x100"), (60, "20x100"), id="20 x 0.1 ms beside the same"),
        pytest.param((50, "23x100"), (30, *MIXED), id="23 x 0.1 ms beside 10 us to 40 ms"),
        pytest.param((30, "44x100"), (60, *MIXED), id="44 x 0.1 ms beside 10 us to 40 ms"),
        pytest.param((40, "23x100"), (40, "3x5000"), id="23 x 0.1 ms beside 3 x 5 ms"),
        pytest.param((30, "999x20", "200000"), (50, "20x100"), id="999 x 20 us, 200 ms beside 20 x 0.1 ms"),
    ],
)
def test_two_tenants_get_their_shares(tmp_path, speed, first, second):
    # In one folder, where they see each other on the device's board.
    tenants = [
        subprocess.Popen(
            [sys.executable, str(PROGRAMS / "spin.py"), *speed, str(SECONDS), *spans],
            env=cores(tmp_path / f"{percent}-{at}.ledger", percent),
            stdout=subprocess.PIPE,
            text=True,
        )
        for at, (percent, *spans) in enumerate((first, second))
    ]
    got = [100 * json.loads(tenant.communicate(timeout=300)[0])["share"] for tenant in tenants]
    print(f"\nasked for {first[0]} and {second[0]} %, got {got}")
    assert got == [pytest.approx(percent, abs=POINTS) for percent in (first[0], second[0])]
