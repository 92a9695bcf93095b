"""Which devices are slow, by the probes of their nodes."""

from __future__ import annotations

from dataclasses import replace

from strata.cluster.controller.sub_health import SubHealthReport, Window
from strata.fleet.fingerprint import Fingerprint, Probe
from tests.cluster.builders import node as node_state
from tests.cluster.controller.healed_cluster import T0

WELL = {f"n{i}": (300e12 + i * 1e12, 400.0) for i in range(7)}


def probed(name: str, rate: float, power_w: float | None, said_s: float) -> Fingerprint:
    found = node_state(name, count=1).fingerprint
    return replace(found, devices=(replace(found.devices[0], probe=Probe(said_s, rate, power_w)),))


def watched(rates: dict[str, tuple[float, float]], *, skew_s: float = 0.0, times: int = 11) -> SubHealthReport:
    window = Window()
    for i in range(times):
        for name, (rate, power_w) in rates.items():
            window.add(probed(name, rate, power_w, said_s=i * 30.0 - skew_s), T0 + i * 30.0)
    return window.look(T0 + (times - 1) * 30.0)


def test_fewer_flops_or_fewer_flops_per_watt_than_the_cohort_is_slow() -> None:
    assert [one.what for one in watched(WELL | {"x": (150e12, 200.0)}).slow] == ["rate"]
    assert [one.what for one in watched(WELL | {"x": (300e12, 800.0)}).slow] == ["rate-per-watt"]


def test_a_cohort_that_is_slow_as_a_whole_loses_nobody() -> None:
    assert watched(WELL).slow == ()
    assert watched({name: (rate / 3, power_w) for name, (rate, power_w) in WELL.items()}).slow == ()


def test_a_clock_that_is_off_by_days_changes_nothing() -> None:
    rates = WELL | {"x": (150e12, 200.0)}
    assert watched(rates, skew_s=3 * 86400.0) == watched(rates, skew_s=-3 * 86400.0) == watched(rates)


def test_a_probe_published_again_is_no_new_sample() -> None:
    window = Window()
    for i in range(30):
        for name, (rate, power_w) in (WELL | {"x": (1e12, 400.0)}).items():
            window.add(probed(name, rate, power_w, said_s=7.0), T0 + i * 10.0)
    assert window.look(T0 + 290.0) == SubHealthReport()


def test_one_slow_moment_is_not_enough() -> None:
    window = Window()
    for i in range(11):
        for name, (rate, power_w) in (WELL | {"x": (300e12 if i != 5 else 1e12, 400.0)}).items():
            window.add(probed(name, rate, power_w, said_s=i * 30.0), T0 + i * 30.0)
    assert window.look(T0 + 300.0).slow == ()
