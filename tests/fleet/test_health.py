"""Health: faults between two readings; slow devices against their own cohort."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.fleet.health import (
    MIN_COHORT,
    WINDOW_S,
    DeviceReading,
    Health,
    Sample,
    of_faults,
    outliers,
    score,
    slow,
    weight,
)
from strata.fleet.local import Aer

RATES = st.lists(st.floats(1.0, 1.1), min_size=MIN_COHORT, max_size=16)


def window(rates: Mapping[str, float], *, model: str = "card", power_w: float | None = 300.0) -> list[Sample]:
    """Ten samples a device, evenly over the window that ends at WINDOW_S."""
    times = [WINDOW_S * (i + 1) / 10 for i in range(10)]
    return [Sample(at, uuid, model, rate, power_w) for uuid, rate in rates.items() for at in times]


def named(rates: list[float]) -> dict[str, float]:
    return {f"d{i}": rate for i, rate in enumerate(rates)}


def test_a_card_without_trouble_is_well() -> None:
    assert score(
        DeviceReading(10.0, ecc_corrected=3, temperature_c=60), DeviceReading(0.0, ecc_corrected=3)
    ) == Health(1.0, ())


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        (DeviceReading(3600.0, ecc_uncorrected=1), "ecc-uncorrected"),
        (DeviceReading(3600.0, aer=Aer(fatal=1)), "aer-fatal"),
        (DeviceReading(3600.0, has_remap_failed=True), "remap-failed"),
    ],
)
def test_what_needs_a_reset_makes_a_card_unusable(now: DeviceReading, fault: str) -> None:
    assert score(now, DeviceReading(0.0, ecc_uncorrected=0, aer=Aer())) == Health(0.0, (fault,))


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        (DeviceReading(3600.0, ecc_corrected=101), "ecc-corrected"),
        (DeviceReading(3600.0, pcie_replays=101), "pcie-replay"),
        (DeviceReading(3600.0, aer=Aer(correctable=101)), "aer-correctable"),
        (DeviceReading(3600.0, aer=Aer(nonfatal=1)), "aer-nonfatal"),
        (DeviceReading(3600.0, temperature_c=80.0), "heating"),
        (DeviceReading(3600.0, temperature_c=90.0), "hot"),
        (DeviceReading(3600.0, throttled=frozenset({"hw-thermal"})), "thermal"),
        (DeviceReading(3600.0, throttled=frozenset({"power-brake"})), "power-brake"),
        (DeviceReading(3600.0, throttled=frozenset({"hw-slowdown"})), "hw-slowdown"),
        (DeviceReading(3600.0, is_remap_pending=True), "remap-pending"),
        (DeviceReading(3600.0, nvlink_errors=101), "nvlink-errors"),
        (DeviceReading(3600.0, utilisation=0.9, pcie_share=0.5), "pcie-degraded"),
    ],
)
def test_what_foretells_worse_lowers_the_score_without_ending_it(now: DeviceReading, fault: str) -> None:
    before = DeviceReading(
        0.0,
        ecc_corrected=0,
        pcie_replays=0,
        aer=Aer(),
        temperature_c=60.0,
        nvlink_errors=0,
        utilisation=0.9,
        pcie_share=0.5,
    )
    health = score(now, before)
    assert 0 < health.score < 1
    assert fault in health.faults


@pytest.mark.parametrize("before", [DeviceReading(0.0), DeviceReading(0.0, utilisation=0.1, pcie_share=0.25)])
def test_a_link_that_was_slow_while_the_card_was_idle_is_no_fault(before: DeviceReading) -> None:
    assert score(DeviceReading(300.0, utilisation=0.9, pcie_share=0.5), before) == Health(1.0, ())


def test_cohorts_of_one_model_are_judged_apart() -> None:
    cohorts = {
        ("H100", "one"): {f"a{i}": 0.9 for i in range(5)},
        ("H100", "other"): {f"b{i}": 0.6 for i in range(4)},
    }
    assert outliers(cohorts, "clock") == []
    cohorts["H100", "one"]["a4"] = 0.5
    assert [(each.uuid, each.what) for each in outliers(cohorts, "clock")] == [("a4", "clock")]


def test_old_errors_of_a_first_reading_do_not_count() -> None:
    assert score(DeviceReading(0.0, ecc_uncorrected=7, ecc_corrected=9999, aer=Aer(9, 9, 9))).score == 1.0


def test_a_counter_that_fell_was_restarted() -> None:
    assert score(DeviceReading(60.0, ecc_uncorrected=1), DeviceReading(0.0, ecc_uncorrected=5)).faults == (
        "ecc-uncorrected",
    )
    assert score(DeviceReading(60.0, ecc_uncorrected=0), DeviceReading(0.0, ecc_uncorrected=5)).score == 1.0


def test_a_program_that_crashed_is_not_the_cards_fault() -> None:
    assert [weight(f"xid-{xid}") for xid in (13, 31, 43)] == [1.0, 1.0, 1.0]


def test_an_xid_costs_a_card_its_health_or_half_of_it() -> None:
    assert of_faults(["xid-63", "xid-79"]) == Health(0.0, ("xid-79", "xid-63"))
    assert of_faults(["xid-63"]) == Health(0.5, ("xid-63",))


def test_a_power_cap_and_a_job_that_starts_are_no_faults() -> None:
    now = DeviceReading(60.0, throttled=frozenset({"power-cap"}), temperature_c=70.0)
    assert score(now, DeviceReading(0.0, temperature_c=35.0)) == Health(1.0, ())


def test_readings_out_of_order_are_not_compared() -> None:
    assert score(DeviceReading(0.0, ecc_uncorrected=9), DeviceReading(60.0, ecc_uncorrected=0)).score == 1.0


@given(RATES, st.floats(0.01, 100.0))
def test_a_cohort_that_is_slow_as_a_whole_isolates_nobody(rates: list[float], factor: float) -> None:
    assert slow(window(named([rate * factor for rate in rates])), WINDOW_S) == ()


@given(RATES, st.floats(0.0, 0.6), st.data())
def test_one_outlier_is_found_and_nobody_else(rates: list[float], share: float, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rates) - 1))
    rates = [*rates, 1.05]
    rates[index] *= share
    found = slow(window(named(rates)), WINDOW_S)
    assert [one.uuid for one in found] == [f"d{index}"]
    assert found[0].share < 0.7


@given(RATES, st.floats(0.1, 2.0), st.integers(-20, 20), st.integers(-3, 3))
def test_units_do_not_matter(rates: list[float], share: float, exponent: int, watts: int) -> None:
    # Powers of two: any other factor may move the last bit of a rate that lies exactly on the bound.
    rates = [rates[0] * share, *rates[1:]]
    scaled = [rate * 2.0**exponent for rate in rates]
    assert slow(window(named(rates)), WINDOW_S) == slow(
        window(named(scaled), power_w=300.0 * 2.0**watts), WINDOW_S
    )


def test_a_card_that_takes_more_watts_for_the_same_work_is_slow() -> None:
    samples = [*window(named([1.0] * 7)), *window({"hungry": 1.0}, power_w=500.0)]
    (found,) = slow(samples, WINDOW_S)
    assert (found.uuid, found.what) == ("hungry", "rate-per-watt")
    assert found.share == pytest.approx(0.6)


def test_a_card_that_hangs_is_slow() -> None:
    (found,) = slow(window({**named([1.0] * 7), "dead": 0.0}), WINDOW_S)
    assert (found.uuid, found.share) == ("dead", 0.0)


def test_models_are_judged_by_themselves() -> None:
    assert slow([*window(named([10.0] * 8)), *window({"old": 1.0}, model="older card")], WINDOW_S) == ()


def test_a_moment_is_not_a_window() -> None:
    rates = {**named([1.0] * 7), "late": 0.3}
    samples = [one for one in window(rates) if one.uuid != "late" or one.at_s > WINDOW_S / 2]
    assert slow(samples, WINDOW_S) == ()


def test_samples_outside_of_the_window_do_not_count() -> None:
    samples = window({**named([1.0] * 7), "was slow": 0.3})
    assert slow(samples, WINDOW_S * 2.5) == ()
    assert slow(samples, -1.0) == ()


def test_three_cards_are_too_few_to_say_who_is_slow() -> None:
    assert slow(window({"a": 1.0, "b": 1.0, "c": 0.1}), WINDOW_S) == ()


def test_a_very_even_cohort_does_not_lose_its_last() -> None:
    assert slow(window({**named([1.0] * 7), "last": 0.95}), WINDOW_S) == ()


def test_samples_that_are_no_numbers_are_left_out() -> None:
    samples = window({**named([1.0] * 7), "nan": math.nan, "inf": math.inf, "less": -1.0})
    assert slow(samples, WINDOW_S) == ()
    assert slow(window(named([1.0] * 7), power_w=0.0), WINDOW_S) == ()
