"""What the agent publishes and when, under virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.agent.benchmark import Timing
from strata.cluster.agent.daemon import JITTER, Agent, PublishInterval
from strata.cluster.agent.watch import DeviceFault
from strata.decision import Trust
from strata.errors import StrataError
from strata.fleet.acu import acu
from strata.fleet.catalogue import accelerator
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device, DeviceLoad, Fingerprint, Probe
from strata.fleet.health import DeviceReading

PACE = PublishInterval(heartbeat_s=150.0, probed_s=30.0, gap_s=0.25, backoff_s=0.5, hold_s=600.0)


def device(i: int, **more: Any) -> Device:
    card = accelerator("H100-SXM5-80GB")
    bus = f"0000:{0x10 + i:02x}:00.0"
    return replace(Device(i, f"GPU-{i}", card.name, "NVIDIA", card.memory_bytes, card, bus_id=bus), **more)


def ghost(i: int) -> Device:
    """What NVML leaves of a card that is off the bus."""
    return Device(i, f"n/nvidia-{i}", "unknown", "NVIDIA", 0.0, health=0.0, faults=("lost",))


def seen(*devices: Device, failed: Iterable[str] = (), without: Iterable[str] = (), **more: Any) -> Collected:
    """A collection by tools that all answer, but those of some vendors."""
    answered = {"NVIDIA", "Huawei"} - {*failed, *without}
    return Collected(Fingerprint("n", devices, **more), answered=frozenset(answered), failed=frozenset(failed))


def agent(*devices: Device) -> Agent:
    """An agent that has published these devices at 0 s."""
    made = Agent(PACE, rng=random.Random(0))
    made.collected(seen(*devices))
    assert made.take(0.0) is not None
    made.published(0.0)
    return made


def states(found: Fingerprint | None) -> list[tuple[str, float, tuple[str, ...]]]:
    assert found is not None
    return [(one.uuid, one.health, one.faults) for one in found.devices]


def test_nothing_is_published_before_the_first_collection() -> None:
    made = Agent(PACE, rng=random.Random(0))
    made.faulted(DeviceFault(0.0, "xid-79", "GPU-0"))
    assert made.due_s(0.0) == math.inf
    assert made.take(1e9) is None


def test_a_machine_without_devices_is_published_too() -> None:
    made = Agent(PACE, rng=random.Random(0))
    made.collected(seen())
    assert made.take(0.0) == Fingerprint("n")


@pytest.mark.parametrize("word", ["xid-79", "aer-fatal", "lost"])
@pytest.mark.parametrize("name", ["GPU-1", "0000:11:00.0"])
def test_a_fault_is_due_at_once_by_the_devices_uuid_or_its_place_on_the_bus(word: str, name: str) -> None:
    made = agent(device(0), device(1))
    assert made.due_s(10.0) > 10.0
    assert made.faulted(DeviceFault(10.0, word, name))
    assert states(made.take(10.0)) == [("GPU-0", 1.0, ()), ("GPU-1", 0.0, (word,))]


def test_a_program_that_crashed_publishes_nothing() -> None:
    made = agent(device(0))
    assert not made.faulted(DeviceFault(10.0, "xid-31", "GPU-0"))
    assert made.due_s(10.0) > 10.0


def test_a_fault_of_nobody_known_changes_nothing() -> None:
    made = agent(device(0, bus_id=""))
    assert not made.faulted(DeviceFault(10.0))
    assert made.faulted(DeviceFault(10.0, "xid-79", "GPU-9"))
    assert made.due_s(10.0) > 10.0


def test_a_storm_of_xids_is_published_four_times_a_second_at_most() -> None:
    made = agent(device(0))
    published = []
    for i in range(1000):
        now_s = 10.0 + i / 1000
        made.faulted(DeviceFault(now_s, f"xid-{100 + i % 50}", "GPU-0"))
        if made.take(now_s) is not None:
            published.append(now_s)
            made.published(now_s)
    assert 1 <= len(published) <= 4
    assert published[0] == 10.0


def test_a_fault_that_needs_a_reset_stays_and_another_is_forgiven() -> None:
    made = agent(device(0))
    made.faulted(DeviceFault(10.0, "xid-48", "GPU-0"))
    made.faulted(DeviceFault(10.0, "aer-nonfatal", "GPU-0"))
    assert states(made.now(609.0)) == [("GPU-0", 0.0, ("xid-48", "aer-nonfatal"))]
    assert states(made.now(610.0)) == [("GPU-0", 0.0, ("xid-48",))]
    assert states(made.now(1e9)) == [("GPU-0", 0.0, ("xid-48",))]


def test_what_changes_by_itself_waits_for_the_heartbeat() -> None:
    made = agent(device(0))
    made.collected(seen(device(0, temperature_c=70.0, power_w=300.0, utilisation=1.0, memory_used_bytes=1e9)))
    due_s = made.due_s(1.0)
    assert 150.0 * (1 - JITTER) <= due_s <= 150.0 * (1 + JITTER)
    assert made.take(due_s - 0.01) is None
    beat = made.take(due_s)
    assert beat is not None
    assert beat.devices[0].temperature_c == 70.0


@pytest.mark.parametrize(
    "change",
    [
        {"health": 0.5},
        {"faults": ("hot",)},
        {"memory_bytes": 1.0},
        {"numa_node": 1},
    ],
)
def test_what_counts_for_placing_is_published_at_once(change: dict[str, Any]) -> None:
    made = agent(device(0))
    made.collected(seen(device(0, **change)))
    assert made.take(1.0) is not None


def test_agents_of_many_nodes_do_not_beat_together() -> None:
    beats = set()
    for i in range(20):
        made = Agent(PACE, rng=random.Random(i))
        made.collected(seen(device(0)))
        made.take(0.0)
        made.published(0.0)
        beats.add(round(made.due_s(0.0), 3))
    assert len(beats) == 20


def test_an_api_server_that_is_away_is_told_the_newest_state_once() -> None:
    made = agent(device(0), device(1))
    attempts = []
    for now_s in range(10, 3610):
        made.collected(seen(device(0), device(1, health=0.5 + (now_s % 2) / 10)))
        if made.take(float(now_s)) is not None:
            attempts.append(now_s)
            made.failed(float(now_s))
    # Doubled up to 30 s, so an hour costs about 120 attempts and not 3600.
    assert 3600 / 30 * 0.8 <= len(attempts) <= 3600 / 30 * 1.2 + 8
    made.faulted(DeviceFault(3610.0, "lost", "GPU-0"))
    made.collected(seen(device(0), device(1, health=0.7)))
    assert [health for _, health, _ in states(made.take(made.due_s(3610.0)))] == [0.0, 0.7]
    made.published(3650.0)
    assert made.due_s(3650.0) > 3650.0 + 150.0 * (1 - JITTER) - 1e-9


def test_a_server_that_says_when_is_not_asked_before() -> None:
    made = agent(device(0))
    made.faulted(DeviceFault(10.0, "xid-79", "GPU-0"))
    made.take(10.0)
    made.failed(10.0, retry_after_s=7.0)
    assert made.due_s(10.0) == 17.0


def test_nothing_more_is_taken_while_one_is_on_its_way() -> None:
    made = agent(device(0))
    made.faulted(DeviceFault(10.0, "xid-79", "GPU-0"))
    assert made.take(10.0) is not None
    made.faulted(DeviceFault(10.1, "xid-48", "GPU-0"))
    assert made.take(11.0) is None
    made.published(11.0)
    assert states(made.take(11.25)) == [("GPU-0", 0.0, ("xid-48", "xid-79"))]


def test_a_card_that_dropped_off_stays_in_its_place_without_health() -> None:
    made = agent(device(0), device(1), device(2))
    made.collected(seen(device(0), device(2)))
    after = [("GPU-0", 1.0, ()), ("GPU-1", 0.0, ("lost",)), ("GPU-2", 1.0, ())]
    assert states(made.take(1.0)) == after
    made.published(1.0)
    # It is trusted again when the agent was started again, not because it answers.
    made.collected(seen(device(0), device(1), device(2)))
    assert states(made.now(1e6)) == after


def test_a_card_that_does_not_know_its_name_any_more_is_the_one_with_its_number() -> None:
    made = agent(device(0), device(1), device(2))
    made.collected(seen(device(0), ghost(1), device(2)))
    assert states(made.now(1.0)) == [("GPU-0", 1.0, ()), ("GPU-1", 0.0, ("lost",)), ("GPU-2", 1.0, ())]


def test_a_card_that_was_lost_when_the_agent_started_gets_its_name_in_its_place() -> None:
    made = agent(ghost(0), device(1))
    made.collected(seen(device(0), device(1)))
    assert states(made.now(1.0)) == [("GPU-0", 1.0, ()), ("GPU-1", 1.0, ())]


def test_devices_keep_their_places_and_links_when_a_tool_counts_them_otherwise() -> None:
    made = Agent(PACE, rng=random.Random(0))
    made.collected(seen(device(0), device(1), device(2), links={(0, 1): "nvlink", (1, 2): "pix"}))
    made.collected(seen(device(2), device(3), device(0), links={(0, 1): "phb", (0, 2): "sys"}))
    found = made.now(0.0)
    assert found is not None
    assert [one.uuid for one in found.devices] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert found.links == {(0, 1): "nvlink", (0, 2): "sys", (1, 2): "pix", (2, 3): "phb"}


def test_a_tool_that_gives_no_answer_costs_a_note_and_no_health() -> None:
    made = agent(device(0), device(1))
    for _ in range(5):
        made.collected(seen(failed=["NVIDIA"], notes=("NVML: no answer within 10 s",)))
    found = made.take(60.0)
    assert states(found) == [("GPU-0", 1.0, ()), ("GPU-1", 1.0, ())]
    assert found is not None
    assert found.notes == ("NVML: no answer within 10 s", "last seen earlier: GPU-0, GPU-1")
    made.published(60.0)
    made.collected(seen(device(0), device(1)))
    again = made.take(61.0)
    assert again is not None
    assert again.notes == ()


def test_only_the_devices_of_the_vendor_that_answers_can_drop_off() -> None:
    npu = Device(0, "n/huawei-0", "Ascend910B3", "Huawei", 64 * 2.0**30)
    made = agent(device(0), npu)
    made.collected(seen(failed=["Huawei"]))
    assert states(made.now(1.0)) == [("GPU-0", 0.0, ("lost",)), ("n/huawei-0", 1.0, ())]


def test_a_driver_that_is_gone_for_a_while_costs_the_health_for_that_while() -> None:
    made = agent(device(0), device(1))
    made.collected(seen(without=["NVIDIA"]))
    assert states(made.take(1.0)) == [("GPU-0", 0.0, ("no-driver",)), ("GPU-1", 0.0, ("no-driver",))]
    made.published(1.0)
    made.collected(seen(device(0), device(1)))
    assert states(made.take(60.0)) == [("GPU-0", 1.0, ()), ("GPU-1", 1.0, ())]


def test_a_health_that_is_no_number_is_none() -> None:
    made = agent(device(0, health=math.nan))
    assert states(made.now(0.0)) == [("GPU-0", 0.0, ())]


def test_a_benchmark_turns_a_nominal_acu_into_a_measured_one() -> None:
    made = agent(device(0), device(1))
    made.measured("GPU-1", [Timing("fp16", 7e14, (1.0,))])
    made.linked(["GPU-1", "GPU-0"], [Timing("link", 4e11, (1.0,), (0, 1)), Timing("link", 3e11, (1.0,), (1, 0))])
    found = made.take(1.0)
    assert found is not None
    nominal, measured = (one.card for one in found.devices)
    assert nominal is not None
    assert measured is not None
    assert acu(nominal).trust["fp16"] is not Trust.MEASURED
    assert acu(measured).fp16 == pytest.approx(100 * 7e14 / 251.5e12)
    assert acu(measured).trust["fp16"] is Trust.MEASURED
    assert found.measured == {(0, 1): 3e11}


def test_a_benchmark_that_cannot_be_true_is_not_kept() -> None:
    made = agent(device(0))
    with pytest.raises(StrataError, match="times its nominal rate"):
        made.measured("GPU-0", [Timing("fp16", 1e18, (1.0,))])
    assert made.due_s(1.0) > 1.0


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0])
def test_a_probe_that_cannot_be_is_refused(rate: float) -> None:
    made = agent(device(0))
    with pytest.raises(StrataError, match="cannot be"):
        made.probed("GPU-0", Probe(0.0, rate))
    found = made.now(0.0)
    assert found is not None
    assert found.devices[0].probe is None


def test_a_probe_does_not_wait_for_the_heartbeat() -> None:
    made = agent(device(0))
    made.probed("GPU-0", Probe(100.0, 7e14, 650.0))
    assert 30.0 * (1 - JITTER) <= made.due_s(1.0) <= 30.0 * (1 + JITTER)
    beat = made.take(made.due_s(1.0))
    assert beat is not None
    assert beat.devices[0].probe == Probe(100.0, 7e14, 650.0)


EVENTS = st.lists(
    st.one_of(
        st.sets(st.integers(0, 3)).map(lambda here: ("seen", here)),
        st.sampled_from(["xid-79", "xid-31", "aer-nonfatal", "lost"]).map(lambda word: ("fault", word)),
        st.sampled_from([("wait", 0.1), ("wait", 10.0), ("wait", 700.0), ("ok", 0), ("failed", 0)]),
    ),
    max_size=30,
)


@given(EVENTS)
def test_whatever_happens_the_newest_state_is_published_in_the_end(events: list[tuple[str, Any]]) -> None:
    made, now_s = Agent(PACE, rng=random.Random(0)), 0.0
    told: Fingerprint | None = None
    is_taken = False
    made.collected(seen(device(0)))
    for what, value in events:
        if what == "seen":
            made.collected(seen(*(device(i) for i in sorted(value))))
        elif what == "fault":
            made.faulted(DeviceFault(now_s, value, "GPU-0"))
        elif what == "wait":
            now_s += value
        elif is_taken:
            made.published(now_s) if what == "ok" else made.failed(now_s)
            is_taken = False
        if not is_taken and (taken := made.take(now_s)) is not None:
            told, is_taken = taken, True
    if is_taken:
        made.failed(now_s)
    now_s = max(now_s, made.due_s(now_s))
    told = made.take(now_s) or told
    current = made.now(now_s)
    assert current is not None
    assert states(told) == states(current)
    assert len({one.uuid for one in current.devices}) == len(current.devices)


def busy(at_s: float, clock: float | None = 0.9, **more: Any) -> DeviceReading:
    return DeviceReading(at_s, utilisation=1.0, sm_clock_share=clock, **more)


def test_what_a_device_showed_while_it_was_busy_stays_with_the_median_of_its_clock() -> None:
    made = agent(device(0))
    for i, clock in enumerate((0.9, 0.5, 0.8)):
        reading = busy(10.0 * i, clock, throttled=frozenset({"power-cap"}), pcie_share=1.0)
        made.collected(replace(seen(device(0)), readings={"GPU-0": reading}))
    made.collected(replace(seen(device(0)), readings={"GPU-0": DeviceReading(30.0, utilisation=0.0)}))
    expected = DeviceLoad(3, 0.8, 0.8, pcie_share=1.0, throttled=("power-cap",))
    assert made.now(30.0).devices[0].load == expected
    made.collected(replace(seen(device(0)), readings={"GPU-0": busy(400.0, 0.3)}))
    assert made.now(400.0).devices[0].load == DeviceLoad(4, 0.3, 0.3), "older clocks count no more"
    made.collected(replace(seen(device(0)), readings={"GPU-0": busy(800.0, 0.31)}))
    assert made.now(800.0).devices[0].load == DeviceLoad(5, 0.31, 0.3), "it wavers"


def test_a_node_at_work_asks_the_api_server_less_than_every_two_minutes() -> None:
    made, told = agent(device(0)), 0
    for at_s in range(10, 3610):
        readings = {"GPU-0": busy(float(at_s), 0.5 + at_s % 2 / 10)}
        made.collected(replace(seen(device(0, temperature_c=at_s % 7, power_w=at_s % 11)), readings=readings))
        if made.take(float(at_s)) is not None:
            made.published(float(at_s))
            told += 1
    assert told <= 3600 / 130


def test_nvlinks_that_are_fewer_than_they_were_are_a_fault_until_they_are_back() -> None:
    made = agent(device(0))
    for count, faults in ((18, ()), (17, ("nvlink-down",)), (None, ("nvlink-down",)), (18, ())):
        made.collected(replace(seen(device(0)), readings={"GPU-0": DeviceReading(1.0, nvlinks=count)}))
        assert made.now(1000.0).devices[0].faults == faults
