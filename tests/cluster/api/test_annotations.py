from __future__ import annotations

import pytest

from strata.cluster.api.annotations import KEYS, has_claim, read_claim
from strata.errors import BadFile


def claim(**asked):
    return read_claim({f"ai.compute/{k.replace('_', '-')}": v for k, v in asked.items()}, name="job")


def faults(**asked):
    with pytest.raises(BadFile) as caught:
        claim(**asked)
    return {fault.where.removeprefix("ai.compute/"): fault.message for fault in caught.value.faults}


def test_amounts_are_read_into_si_units():
    asked = claim(vram="16Gi", acu="40", gang_size="4", within="rdma", substitution="ask", norm="all")
    assert asked.need.amounts["memory"] == 16 * 2**30
    assert asked.need.amounts["fp16"] == pytest.approx(40 * 2.515e12)
    assert (asked.pods, asked.group_level, asked.substitution, asked.norm) == (4, "rdma", "ask", "all")
    assert asked.devices is None
    assert not asked.is_fractional


def test_a_fraction_is_of_one_device():
    asked = claim(vram="16Gi", cores="30")
    assert (asked.is_fractional, asked.memory_bytes, asked.cores_share) == (True, 16 * 2**30, 0.3)
    assert not asked.need.amounts
    assert claim(vram="16Gi", fractional="true", acu="20").need.amounts.keys() == {"fp16"}


def test_cards_are_found_by_any_of_their_names():
    assert claim(accelerator="910B3", devices="2").accelerator == "Ascend910B3"


def test_acu_and_tflops_may_say_the_same():
    assert claim(acu="40", tflops_fp16="100.6").need.amounts["fp16"] == pytest.approx(100.6e12)


@pytest.mark.parametrize(
    ("asked", "key", "text"),
    [
        ({"vram": "16Gi", "fractional": "true", "devices": "2"}, "devices", "one device"),
        ({"acu": "40", "tflops_fp16": "312"}, "acu", "100.6 TFLOPS"),
        ({"fractional": "true"}, "fractional", "needs ai.compute/vram"),
        ({"vram": "1Gi", "cores": "30", "acu": "10"}, "cores", "give one of them"),
        ({"cores": "30", "fractional": "false"}, "cores", "is for fractions"),
        ({"accelerator": "A100-SXM4-80GB", "devices": "1", "vram": "200Gi"}, "vram", "give one of them"),
        ({"accelerator": "A100-SXM4-80GB", "devices": "1", "acu": "300"}, "acu", "give one of them"),
        ({"topology": "require"}, "topology", "within"),
        ({"topology": "none", "within": "rack"}, "within", "contradicts"),
        ({"cores": "130", "vram": "1Gi"}, "cores", "100 percent"),
    ],
)
def test_contradictions_are_refused_with_a_reason(asked, key, text):
    assert text in faults(**asked)[key]


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"norm": "speed"}, "ai.compute/norm: compute"),
        ({"gang_size": "0", "norm": "speed"}, 'ai.compute/gang-size: "4"'),
        ({"nrom": "all"}, "ai.compute/norm: compute"),
        ({"elephant": "1"}, "ai.compute/vram: 16Gi"),
        ({"fractional": "true"}, "ai.compute/vram: 16Gi"),
        ({"topology": "require"}, "ai.compute/within: rdma"),
        ({"cores": "30", "fractional": "false"}, 'ai.compute/fractional: "true"'),
    ],
)
def test_what_is_advised_mends_the_first_fault(asked, hint):
    """`ai.compute/vram: 16Gi` was advised, whatever was wrong."""
    with pytest.raises(BadFile) as caught:
        claim(**asked)
    assert caught.value.hint == hint


def test_what_is_advised_can_be_read():
    of_part = {"fractional", "cores"}
    for keys in (KEYS.keys() - of_part - {"tflops-fp16"}, {"vram", *of_part}, {"tflops-fp16"}):
        assert read_claim({f"ai.compute/{key}": KEYS[key].strip('"') for key in keys}, name="job")


def test_all_faults_are_told_at_once():
    found = faults(vram="16", acu="NaN", devices="0", substitution="maybe", gang_size="1e3", vrm="1Gi")
    assert set(found) == {"vram", "acu", "devices", "substitution", "gang-size", "vrm"}
    assert "did you mean ai.compute/vram?" in found["vrm"]


@pytest.mark.parametrize(
    "value", ["a/../../etc", "x;rm -rf /", "$(id)", "a\nLD_PRELOAD=x", "../p", "", "a" * 300, "é", "`id`"]
)
@pytest.mark.parametrize("key", ["profile", "accelerator", "framework", "vram", "within", "devices"])
def test_what_is_no_plain_value_is_refused(key, value):
    assert key in faults(**{key: value})


def test_a_malicious_key_is_shown_harmlessly():
    with pytest.raises(BadFile) as caught:
        read_claim({"ai.compute/x\n$(id)": "1"}, name="job")
    assert "\n" not in str(caught.value)


def test_values_that_are_no_text_are_refused():
    assert "quotes" in faults(devices=2)["devices"]


def test_other_annotations_are_not_ours():
    assert has_claim({"ai.compute/vram": "1Gi"})
    assert not has_claim({"ai.compute/placement": "{}", "example.com/vram": "1Gi"})
    assert read_claim({"example.com/vram": "x"}, name="job").devices is None
