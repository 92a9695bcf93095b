from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet.acu import FIGURES, Need, acu, cards, deliverable, exchange, parse_need, rank
from strata.fleet.catalogue import accelerator, accelerators

UNIT = accelerator("A100-SXM4-80GB")
MEASURED = accelerator("A100-SXM4-40GB")
ASCEND = accelerator("Ascend910B3")
UNKNOWN = accelerator("MLU590-M9")

KNOWN = [card for card in accelerators() if all(deliverable(card, figure) for figure in ("fp16", "memory"))]


def test_the_unit_card_is_100_of_everything():
    vector = acu(UNIT)
    assert [getattr(vector, figure) for figure in FIGURES] == pytest.approx([100] * 5)


def test_one_acu_is_one_percent_of_the_measured_fp16_rate():
    assert deliverable(UNIT, "fp16")[0] == pytest.approx(251.5e12)
    assert acu(replace(MEASURED, fp16_flops_measured=2.515e12)).fp16 == pytest.approx(1.0)


def test_measured_figures_are_compared_with_measured_ones():
    vector = acu(ASCEND)
    assert vector.fp16 == pytest.approx(100 * 313.2 / 251.5)
    assert vector.fp32 == pytest.approx(100 * 82.9 / 19.05)
    assert vector.trust["fp16"] is Trust.MEASURED


def test_a_nominal_rate_is_derated_as_an_a100_and_marked_assumed():
    value, trust = deliverable(accelerator("H100"), "fp16")
    assert value == pytest.approx(989e12 * 251.5 / 312)
    assert trust is Trust.ASSUMED


def test_memory_is_not_derated():
    assert deliverable(accelerator("H100"), "memory") == (80 * 2**30, Trust.ANALYTIC)


def test_what_is_unknown_stays_unknown_in_the_vector():
    vector = acu(UNKNOWN)
    assert vector.fp16 is None
    assert "fp16" not in vector.trust
    assert vector.memory == pytest.approx(120)
    assert acu(accelerator("P800")).memory is None


@pytest.mark.parametrize(
    ("norm", "count", "bound_by"),
    [("compute", 7, "fp16"), ("memory", 10, "memory"), ("bandwidth", 11, "memory_bandwidth"),
     ("all", 11, "memory_bandwidth")],
)  # fmt: skip
def test_the_norm_decides_how_many_cards_replace_eight(norm, count, bound_by):
    answer = exchange(UNIT, ASCEND, count=8, norm=norm)
    assert (answer.count, answer.bound_by) == (count, bound_by)


def test_an_exchange_is_as_good_as_its_worst_figure():
    assert exchange(MEASURED, ASCEND).trust is Trust.MEASURED
    assert exchange(UNIT, ASCEND).trust is Trust.CALIBRATED
    assert exchange(UNIT, ASCEND, norm="all").trust is Trust.ASSUMED


@pytest.mark.parametrize(("have", "want"), [(UNKNOWN, ASCEND), (ASCEND, UNKNOWN)])
def test_an_exchange_with_an_unknown_figure_names_it(have, want):
    answer = exchange(have, want, count=2)
    assert answer.count is None
    assert answer.missing == ("MLU590-M9 fp16",)


@given(st.sampled_from(KNOWN), st.integers(1, 64))
def test_a_card_replaces_itself_one_for_one(card, count):
    assert exchange(card, card, count=count, norm="compute").count == count
    assert exchange(card, card, count=count, norm="memory").count == count


@given(st.sampled_from(KNOWN), st.sampled_from(KNOWN), st.integers(1, 64))
def test_changing_cards_there_and_back_never_loses_any(have, want, count):
    there = exchange(have, want, count=count)
    back = exchange(want, have, count=there.count)
    assert back.count >= count


@given(st.sampled_from(KNOWN), st.floats(1e9, 1e18), st.floats(1e6, 1e14))
def test_the_count_is_the_smallest_that_covers_every_figure(card, flops, memory_bytes):
    answer = cards(Need({"fp16": flops, "memory": memory_bytes}), card)
    have = {figure: deliverable(card, figure)[0] for figure in ("fp16", "memory")}
    assert answer.count * have["fp16"] >= flops * (1 - 1e-8)
    assert answer.count * have["memory"] >= memory_bytes * (1 - 1e-8)
    fewer = answer.count - 1
    assert fewer == 0 or fewer * have["fp16"] < flops or fewer * have["memory"] < memory_bytes
    assert 0 <= min(answer.spare.values()) < 1


def test_spare_is_what_the_last_card_leaves_over():
    answer = cards(parse_need("100Gi memory"), UNIT)
    assert answer.count == 2
    assert answer.spare == {"memory": pytest.approx(1 - 100 / 160)}


def test_a_need_is_read_as_people_write_it():
    need = parse_need("100 TFLOPS fp16, 160GB memory, 2TB/s bandwidth,1.5TB/s link bandwidth, 9TFLOPS fp32")
    assert need.amounts == {
        "fp16": 100e12,
        "memory": 160e9,
        "memory_bandwidth": 2e12,
        "link_bandwidth": 1.5e12,
        "fp32": 9e12,
    }
    assert parse_need("2TB/s memory bandwidth") == parse_need("2TB/s bandwidth")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''"),
        ("100TFLOPS", "cannot read '100TFLOPS'"),
        ("100TFLOPS fp8", "cannot read '100TFLOPS fp8'"),
        ("16Gi memory,", "cannot read ''"),
        ("80GB fp16", "unit 'GB'"),
        ("100Gb memory", "bits"),
        ("16 memory", "no unit"),
        ("0GB memory", "not a positive amount"),
        ("-1GB memory", "not a positive amount"),
        ("1GB memory, 2GB memory", "given twice"),
        ("1TFLOPS fp16, 1TFLOPS bf16", "given twice"),
    ],
)
def test_a_need_that_cannot_be_meant_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_need(text)


def test_ranking_puts_each_vendors_best_first_and_unknown_cards_last():
    need = parse_need("100TFLOPS fp16, 160GB memory")
    answers = rank(need, accelerators())
    assert len(answers) == len(accelerators())
    counts = [answer.count for answer in answers]
    known = counts[: counts.index(None)]
    assert all(count is None for count in counts[len(known) :])
    of_huawei = [a.count for a in answers if a.accelerator.vendor == "Huawei" and a.count is not None]
    assert of_huawei == sorted(of_huawei)
    missing = {a.accelerator.name: a.missing for a in answers if a.count is None}
    assert missing["Kunlun-P800"] == ("Kunlun-P800 memory",)


def test_of_equal_counts_the_card_with_least_left_over_is_best():
    answers = rank(
        parse_need("20Gi memory"), [accelerator("A100-80GB"), accelerator("RTX4090"), accelerator("L40S")]
    )
    assert [answer.accelerator.name for answer in answers] == ["RTX4090", "L40S", "A100-SXM4-80GB"]
