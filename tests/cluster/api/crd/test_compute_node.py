from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.agent.benchmark import Timing, measured_card
from strata.cluster.api.crd.compute_node import compute_node, fingerprint_of
from strata.cluster.api.crd.manifests import crds
from strata.decision import Trust
from strata.errors import BadFile
from strata.fleet.acu import acu
from strata.fleet.catalogue import accelerator
from strata.fleet.discovery.observation import die_of
from strata.fleet.fingerprint import Device, DeviceLoad, Fingerprint, Probe
from strata.fleet.rdma import RdmaPort
from tests.cluster.api.crd.rules import object_faults
from tests.cluster.builders import A100, B3, DIE, node
from tests.support.laws import examples

NOW = "2026-11-21T20:00:00Z"
SCHEMA = crds()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def written(fingerprint, **more):
    """What a controller reads of what an agent wrote, through JSON."""
    obj = compute_node(fingerprint, at=NOW)
    return json.loads(json.dumps({**obj, "status": {**obj["status"], **more}}, allow_nan=False))


def back(fingerprint):
    return fingerprint_of(written(fingerprint))


def changed(obj, *path, value):
    obj = copy.deepcopy(obj)
    inner = obj
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return obj


def faults(obj):
    with pytest.raises(BadFile) as caught:
        fingerprint_of(obj)
    return {fault.where: fault.message for fault in caught.value.faults}


GIB = 2**30
WORDS = st.text("abcxyz-0189", max_size=12)
NUMBERS = st.floats(0, 1e6)


@st.composite
def devices(draw, place):
    model = draw(st.sampled_from([A100, B3, DIE, "MLU370-X8-die", "XPU-9000"]))
    if model == "XPU-9000":
        card = None
    else:
        card = die_of(accelerator("MLU370-X8")) if model == "MLU370-X8-die" else accelerator(model)
    if draw(st.booleans()):
        card = None  # a slice: it has the card's name, and nobody knows its rates
    return Device(
        draw(st.integers(-1, 100)),
        f"{place}-{draw(WORDS)}",
        model,
        draw(WORDS),
        float(draw(st.integers(0, 2**40))),
        card,
        memory_used_bytes=draw(st.none() | st.integers(0, 2**40).map(float)),
        bus_id=draw(WORDS),
        board=draw(WORDS),
        numa_node=draw(st.none() | st.integers(0, 7)),
        utilisation=draw(st.none() | st.floats(0, 1)),
        temperature_c=draw(st.none() | st.floats(-40, 200)),
        power_w=draw(st.none() | NUMBERS),
        health=draw(st.floats(0, 1)),
        faults=tuple(draw(st.lists(WORDS, max_size=2))),
        load=draw(st.none() | loads()),
    )


SHARES = st.none() | st.floats(0, 2)


def loads():
    # A median below what the card reaches makes its figures others: that has a test of its own.
    return st.builds(
        DeviceLoad,
        st.integers(1, 10**9),
        SHARES,
        st.none() | st.floats(1, 2),
        SHARES,
        SHARES,
        st.none() | NUMBERS,
        st.none() | NUMBERS,
        st.lists(WORDS, max_size=2).map(tuple),
    )


@st.composite
def fingerprints(draw):
    found = tuple(draw(devices(place)) for place in range(draw(st.integers(0, 4))))
    pairs = [(i, j) for j in range(len(found)) for i in range(j)]
    some = st.sets(st.sampled_from(pairs)) if pairs else st.just(set())
    return Fingerprint(
        draw(WORDS) or "n",
        found,
        {pair: draw(st.sampled_from(["nvlink", "sys", "odd"])) for pair in draw(some)},
        {pair: draw(st.floats(1, 1e12)) for pair in draw(some)},
        can_p2p=draw(st.booleans()),
        driver=draw(WORDS),
        tool=draw(WORDS),
        trust=draw(st.sampled_from(Trust)),
        notes=tuple(draw(st.lists(WORDS, max_size=3))),
    )


@given(fingerprints())
@examples(60)
def test_a_fingerprint_comes_back_as_it_was(fingerprint):
    assert back(fingerprint) == fingerprint
    assert list(object_faults(SCHEMA, written(fingerprint))) == []


@pytest.mark.parametrize(("share", "fp16"), [(0.9, None), (0.62, 0.62 * 312e12), (0.35, 0.35 * 312e12)])
def test_a_card_that_keeps_a_lower_clock_at_work_is_worth_less(share, fp16):
    before = node("a", count=1).fingerprint
    load = DeviceLoad(9, sm_clock_share=0.2, median_sm_clock_share=share)
    (device,) = back(replace(before, devices=(replace(before.devices[0], load=load),))).devices
    assert device.load == load
    assert device.card.fp16_flops_measured == (None if fp16 is None else pytest.approx(fp16))
    assert device.card.memory_bandwidth_bytes_per_s == before.devices[0].card.memory_bandwidth_bytes_per_s


@given(st.floats(1e12, 300e12), st.floats(1e12, 20e12), st.floats(1e11, 2e12))
@examples(40)
def test_a_measured_card_comes_back_with_its_own_figures(fp16, fp32, memory):
    timings = [
        Timing("fp16", fp16, (1.0,)),
        Timing("fp32", fp32, (1.0,)),
        Timing("memory_bandwidth", memory, (1.0,)),
    ]
    before = node("a", count=2).fingerprint
    first, second = before.devices
    measured = replace(before, devices=(replace(first, card=measured_card(first, timings)), second))
    own, other = (device.card for device in back(measured).devices)
    assert own.fp16_flops_measured == pytest.approx(fp16, rel=1e-12)
    assert own.fp32_flops_measured == pytest.approx(fp32, rel=1e-12)
    assert own.memory_bandwidth_measured_bytes_per_s == pytest.approx(memory, rel=1e-12)
    assert acu(own).trust["fp16"] is Trust.MEASURED
    assert other == accelerator(A100)


def test_a_measurement_of_the_catalogue_stays_its_own():
    (card,) = {device.card for device in back(node("a", B3).fingerprint).devices}
    assert card is accelerator(B3)


def test_a_card_the_catalogue_has_not_keeps_what_was_measured_of_it():
    unknown = Device(0, "u", "XPU-9000", "Acme", 32.0 * GIB)
    card = measured_card(unknown, [Timing("fp16", 100e12, (1.0,))])
    measured = Fingerprint("a", (replace(unknown, card=card),))
    (device,) = back(measured).devices
    assert device.card.fp16_flops_measured == pytest.approx(100e12)
    assert (device.card.name, device.card.fp32_flops, device.card.memory_bytes) == ("XPU-9000", None, 32 * GIB)


def test_ports_come_back_and_nodes_of_one_subnet_share_a_group():
    port = RdmaPort(
        "mlx5_0", 1, "infiniband", is_active=True, rate_bytes_per_s=50e9, subnet="fe80:0000:0000:0000",
        bus_id="0000:04:00.0", numa_node=0, distance="pix",
    )  # fmt: skip
    fingerprint = replace(node("a", B3).fingerprint, ports=(port, RdmaPort("mlx5_1", 1, "roce-v2")))
    assert written(fingerprint)["status"]["rdmaGroup"] == "ib-fe80000000000000"
    assert back(fingerprint).ports == fingerprint.ports
    assert list(object_faults(SCHEMA, written(fingerprint))) == []


def test_the_object_shows_the_vector_with_its_trust_and_a_summary_for_lists():
    obj = written(node("a", B3).fingerprint, rdmaGroup="r1", rack="k2", agentVersion="0.6")
    status = obj["status"]
    assert status["devices"][0]["acu"]["fp16"] == {
        "value": acu(accelerator(B3)).fp16,
        "trust": "measured",
    }
    assert status["summary"] == {
        "devices": 8,
        "model": B3,
        "acu": round(8 * acu(accelerator(B3)).fp16, 1),
        "health": 1.0,
    }
    assert (status["rdmaGroup"], status["rack"], status["agentVersion"]) == ("r1", "k2", "0.6")
    assert obj["metadata"] == {"name": "a"}


def test_the_sum_of_a_node_with_an_unknown_card_is_left_out():
    fingerprint = node("a", count=2).fingerprint
    one, other = fingerprint.devices
    assert (
        "acu" not in written(replace(fingerprint, devices=(one, replace(other, card=None))))["status"]["summary"]
    )


def test_a_node_without_devices_is_an_object_too():
    obj = written(Fingerprint("cpu-only"))
    assert fingerprint_of(obj) == Fingerprint("cpu-only")
    assert list(object_faults(SCHEMA, obj)) == []


def test_more_notes_than_the_object_holds_are_cut():
    fingerprint = Fingerprint("a", notes=tuple(f"{number} " + "x" * 5000 for number in range(100)))
    obj = written(fingerprint)
    assert list(object_faults(SCHEMA, obj)) == []
    assert len(fingerprint_of(obj).notes) == 64


OBJECT = written(
    replace(node("a", count=3).fingerprint, measured={(0, 1): 2e11}),
    conditions=[
        {
            "type": "Ready",
            "status": "True",
            "reason": "Fine",
            "message": "",
            "lastTransitionTime": NOW,
            "observedGeneration": 1,
        }
    ],
)
DEVICE = ("status", "devices", 1)


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize(
    ("path", "where"),
    [
        ((*DEVICE, "memoryBytes"), "status.devices[1].memoryBytes"),
        ((*DEVICE, "memoryUsedBytes"), "status.devices[1].memoryUsedBytes"),
        ((*DEVICE, "health"), "status.devices[1].health"),
        ((*DEVICE, "powerW"), "status.devices[1].powerW"),
        ((*DEVICE, "utilisation"), "status.devices[1].utilisation"),
        ((*DEVICE, "acu", "fp16", "value"), "status.devices[1].acu.fp16.value"),
        (("status", "links", 0, "bytesPerS"), "status.links[0].bytesPerS"),
    ],
)
def test_a_figure_that_cannot_be_is_refused_by_its_field(path, where, figure):
    assert list(faults(changed(OBJECT, *path, value=figure))) == [where]


def test_a_figure_that_cannot_be_is_not_written():
    fingerprint = node("a", count=2).fingerprint
    bad = replace(fingerprint.devices[1], memory_bytes=math.nan, temperature_c=math.inf)
    with pytest.raises(BadFile) as caught:
        compute_node(replace(fingerprint, devices=(fingerprint.devices[0], bad)), at=NOW)
    assert [fault.where for fault in caught.value.faults] == [
        "status.devices[1].memoryBytes",
        "status.devices[1].temperatureC",
    ]


@pytest.mark.parametrize(
    ("path", "value", "where", "text"),
    [
        ((*DEVICE, "health"), 1.5, "status.devices[1].health", "less than or equal to 1"),
        ((*DEVICE, "uuid"), "a-0", "status.devices[1].uuid", "also that of status.devices[0]"),
        ((*DEVICE, "uuid"), "", "status.devices[1].uuid", "at least 1 character"),
        ((*DEVICE, "acu", "fp16"), {"value": 5000, "trust": "measured"}, "status.devices[1].acu", "nominal rate"),
        (
            (*DEVICE, "acu", "fp16"),
            {"value": 1e-9, "trust": "measured"},
            "status.devices[1].acu.fp16.value",
            "0.001",
        ),
        ((*DEVICE, "acu", "fp16", "trust"), "sure", "status.devices[1].acu.fp16.trust", "measured"),
        (("status", "links", 0), {"a": 1, "b": 0, "kind": "pix"}, "status.links[0]", "smaller comes first"),
        (("status", "links", 0), {"a": 0, "b": 3, "kind": "pix"}, "status.links[0]", "0 and 3 of 3 devices"),
        (("status", "devices"), "none", "status.devices", "should be a list"),
        (("status", "observedAt"), "yesterday", "status.observedAt", "pattern"),
        (("status",), None, "status", "mapping"),
        (("status", "conditions", 0, "status"), "Maybe", "status.conditions[0].status", "'True'"),
    ],
)
def test_an_object_that_cannot_be_is_refused_by_its_field(path, value, where, text):
    found = faults(changed(OBJECT, *path, value=value))
    assert text in found[where]


def test_every_fault_of_an_object_is_named_at_once():
    bad = changed(OBJECT, *DEVICE, "memoryBytes", value=-1)
    assert list(faults(changed(bad, *DEVICE, "health", value=math.nan))) == [
        "status.devices[1].memoryBytes",
        "status.devices[1].health",
    ]


def test_a_node_nobody_has_looked_at_yet_is_no_fingerprint():
    assert "required" in faults({"kind": "ComputeNode", "metadata": {"name": "a"}})["status"]


def test_what_a_newer_agent_says_is_left_out():
    obj = changed(OBJECT, *DEVICE, "colour", value="green")
    assert fingerprint_of(changed(obj, "status", "mood", value=3)) == fingerprint_of(OBJECT)


def test_a_probe_comes_back_and_one_without_power_too():
    probes = (Probe(1795284000.25, 7e14, 650.0), Probe(1795284001.0, 0.0))
    fingerprint = node("n", A100, 2).fingerprint
    devices = tuple(replace(one, probe=probe) for one, probe in zip(fingerprint.devices, probes, strict=True))
    fingerprint = replace(fingerprint, devices=devices)
    assert [one.probe for one in back(fingerprint).devices] == list(probes)
    assert list(object_faults(SCHEMA, written(fingerprint))) == []
    broken = changed(written(fingerprint), "status", "devices", 1, "probe", "at", value="2026-02-30T00:00:00Z")
    assert faults(broken) == {"status.devices[1].probe.at": "day is out of range for month"}
