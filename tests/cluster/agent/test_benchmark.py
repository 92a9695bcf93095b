"""The micro-benchmark: arithmetic on timings; and once in earnest, on the CPU."""

from __future__ import annotations

import math

import pytest

from strata.cluster.agent import benchmark
from strata.cluster.agent.benchmark import Timing, is_idle, link_rates, measured_card
from strata.decision import Trust
from strata.errors import StrataError
from strata.fleet.acu import acu, deliverable
from strata.fleet.catalogue import accelerator
from strata.fleet.fingerprint import Device


def device(name: str = "H100-SXM5-80GB", **more: object) -> Device:
    card = accelerator(name)
    return Device(0, "u", card.name, card.vendor, card.memory_bytes, card=card, **more)  # type: ignore[arg-type]


def unknown() -> Device:
    return Device(0, "u", "Unheard Of", "Somebody", 64 * 2**30)


def test_a_rate_is_by_the_median_time() -> None:
    assert Timing("fp16", 100.0, (1.0, 2.0, 50.0)).rate() == 50.0


@pytest.mark.parametrize("seconds", [(), (0.0, 1.0), (-1.0,), (math.nan,), (math.inf,)])
def test_times_that_cannot_be_give_no_rate(seconds: tuple[float, ...]) -> None:
    with pytest.raises(StrataError, match="not all positive"):
        Timing("fp16", 100.0, seconds).rate()


def test_a_measured_figure_makes_a_nominal_acu_measured() -> None:
    nominal = deliverable(accelerator("H100-SXM5-80GB"), "fp16")
    assert nominal is not None
    assert nominal[1] is Trust.ASSUMED
    card = measured_card(device(), [Timing("fp16", 700e12, (1.0,)), Timing("memory_bandwidth", 2.9e12, (1.0,))])
    assert deliverable(card, "fp16") == (700e12, Trust.MEASURED)
    assert deliverable(card, "memory_bandwidth") == (2.9e12, Trust.MEASURED)
    assert acu(card).trust["fp16"] is Trust.MEASURED
    assert acu(card).fp16 == pytest.approx(100 * 700 / 251.5)
    assert card.fp32_flops_measured is None


def test_a_card_nobody_knows_becomes_known_by_measurement_alone() -> None:
    card = measured_card(unknown(), [Timing("fp16", 50e12, (1.0,)), Timing("fp32", 10e12, (1.0,))])
    assert (card.name, card.fp16_flops, card.fp16_flops_measured) == ("Unheard Of", None, 50e12)
    assert acu(card).fp16 == pytest.approx(100 * 50 / 251.5)
    assert acu(card).memory_bandwidth is None


def test_a_figure_above_the_nominal_is_refused() -> None:
    with pytest.raises(StrataError, match=r"fp16 of H100-SXM5-80GB came out at 2.0 times its nominal rate"):
        measured_card(device(), [Timing("fp16", 1978e12, (1.0,))])


def test_a_link_is_as_good_as_its_slower_direction() -> None:
    there, back = Timing("link", 10.0, (1.0,), (0, 1)), Timing("link", 10.0, (2.0,), (1, 0))
    assert link_rates([there, back]) == {(0, 1): 5.0}
    assert link_rates([Timing("fp16", 1.0, (1.0,)), Timing("link", 1.0, (1.0,), (2, 2))]) == {}


def test_only_a_device_known_to_be_idle_is_idle() -> None:
    assert is_idle(device(utilisation=0.0, memory_used_bytes=2.0**30))
    assert not is_idle(device(utilisation=0.5, memory_used_bytes=2.0**30))
    assert not is_idle(device(utilisation=0.0, memory_used_bytes=60 * 2.0**30))
    assert not is_idle(device(utilisation=0.0))
    assert not is_idle(device(memory_used_bytes=0.0))
    assert not is_idle(device(utilisation=0.0, memory_used_bytes=0.0, health=0.0))


@pytest.mark.real("torch")
def test_a_cpu_can_be_timed_like_any_device() -> None:
    timings = benchmark.time_device("cpu", size=32, copy_bytes=4096, repeats=2)
    assert [one.what for one in timings] == ["fp16", "fp32", "memory_bandwidth"]
    assert [one.work for one in timings] == [2 * 32**3, 2 * 32**3, 2 * 4096]
    card = measured_card(unknown(), timings)
    assert {one.what: one.rate() for one in timings}["fp32"] == card.fp32_flops_measured


@pytest.mark.real("torch")
def test_the_clock_is_asked_around_whole_batches() -> None:
    ticks = iter(range(1000))
    (there, back) = benchmark.time_links(["cpu", "cpu"], copy_bytes=64, repeats=3, clock=lambda: next(ticks))
    assert there.seconds == (1 / benchmark.BATCH,) * 3
    assert (there.pair, back.pair) == ((0, 1), (1, 0))
    assert link_rates([there, back]) == {(0, 1): 64.0 * benchmark.BATCH}


@pytest.mark.real("torch")
def test_a_device_torch_does_not_have_is_named() -> None:
    with pytest.raises(StrataError, match="benchmark: teapot:0: "):
        benchmark.time_device("teapot:0", size=8, copy_bytes=8)
