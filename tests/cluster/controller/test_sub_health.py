"""Which devices are slow, by the probes of their nodes."""

from __future__ import annotations

import random
from dataclasses import replace

from strata.cluster.agent.daemon import Agent
from strata.cluster.controller.sub_health import SubHealthReport, Window
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import DeviceLoad, Fingerprint, Probe
from strata.fleet.health import DeviceReading
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


def at_work(
    clocks: dict[str, float], gangs: dict[int, str], *, times: int = 11, again: bool = False
) -> SubHealthReport:
    """Nodes of four busy devices each, of which the last has its own clock."""
    window = Window()
    for i in range(times):
        for name, last in clocks.items():
            found = node_state(name, count=4).fingerprint
            shares = (0.9, 0.91, 0.89, last)
            devices = tuple(
                replace(device, load=DeviceLoad(1 if again else i + 1, sm_clock_share=share))
                for device, share in zip(found.devices, shares, strict=True)
            )
            window.add(replace(found, devices=devices), T0 + i * 30.0, gangs)
    return window.look(T0 + (times - 1) * 30.0)


def test_the_device_of_a_gang_with_a_lower_clock_at_work_is_slow() -> None:
    together = dict.fromkeys(range(4), "Job/default/train")
    report = at_work({"n1": 0.9, "n2": 0.6}, together)
    assert [(each.uuid, each.what) for each in report.slow] == [("n2-3", "clock")]
    assert report.slow[0].share < 0.7
    assert "n1-0" in report.judged


def test_clocks_of_different_work_are_not_compared_nor_those_of_nobodys_devices() -> None:
    alone = {0: "Job/a/one", 1: "Job/a/one", 2: "Job/a/one", 3: "Job/a/other"}
    assert at_work({"n1": 0.6}, alone).slow == ()
    assert at_work({"n1": 0.9, "n2": 0.6}, {}) == SubHealthReport()


def test_a_load_published_again_is_no_new_sample() -> None:
    together = dict.fromkeys(range(4), "Job/default/train")
    assert at_work({"n1": 0.9, "n2": 0.6}, together, again=True) == SubHealthReport()


def test_a_device_with_a_lower_clock_is_found_by_what_agents_publish_and_stays_found() -> None:
    """At the agents' own pace, readings every ten seconds: the first ten minutes are for evidence."""
    window, agents = Window(), [Agent(rng=random.Random(i)) for i in range(4)]
    for at_s in range(0, 3600, 10):
        for i, agent in enumerate(agents):
            clock = 0.5 if i == 0 else 0.9 + at_s % 50 / 1000
            reading = DeviceReading(float(at_s), utilisation=1.0, sm_clock_share=clock)
            fingerprint = node_state(f"n{i}", count=1).fingerprint
            agent.collected(Collected(fingerprint, {fingerprint.devices[0].uuid: reading}))
            if (told := agent.take(float(at_s))) is not None:
                agent.published(float(at_s))
                window.add(told, float(at_s), {0: "Job/default/train"})
        slow = window.look(float(at_s)).slow
        assert not slow or at_s >= 300
        assert [(each.uuid, each.what) for each in slow] == [("n0-0", "clock")] or at_s <= 660


def test_what_a_device_did_for_another_gang_is_not_held_against_it() -> None:
    window, name = Window(), "n1"
    found = node_state(name, count=5).fingerprint
    for i in range(30):
        shares = (0.9, 0.91, 0.89, 0.92, 0.4)
        devices = tuple(
            replace(device, load=DeviceLoad(i + 1, share, share))
            for device, share in zip(found.devices, shares, strict=True)
        )
        gangs = dict.fromkeys(range(5), "Job/a/new" if i >= 20 else "Job/a/old")
        window.add(replace(found, devices=devices), T0 + i * 30.0, gangs)
        report = window.look(T0 + i * 30.0)
        assert [each.uuid for each in report.slow] == (["n1-4"] if 10 <= i < 20 else [])
