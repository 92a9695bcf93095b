import csv

import pytest

from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet.catalogue import accelerator, accelerators
from strata.fleet.vendor_resources import is_accelerator, vendor_of
from tests import SHARED

FACT_SHEETS = SHARED / "data" / "accelerators.csv"
DROPPED = str.maketrans("", "", " -_")


@pytest.mark.skipif(not FACT_SHEETS.exists(), reason="the project's fact sheets (../shared/data) are not here")
def test_every_row_of_the_fact_sheet_is_here_with_the_same_figures():
    def figure(text, scale):
        return float(text) * scale if text else None

    with FACT_SHEETS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ours = {card.name: card for card in accelerators()}
    assert rows
    for row in rows:
        card = ours[row["name"]]
        assert card.vendor == row["vendor"]
        assert card.interconnect == row["interconnect"]
        assert card.fp16_flops == figure(row["fp16_tflops"], 1e12)
        assert card.fp32_flops == figure(row["fp32_tflops"], 1e12)
        assert card.memory_bytes == (figure(row["mem_gib"], 2**30) or 0)
        assert card.memory_bandwidth_bytes_per_s == figure(row["mem_bw_gbps"], 1e9)
        assert card.interconnect_bytes_per_s == figure(row["interconnect_gbps"], 1e9)
        if "[C" in row["source"]:
            assert card.trust is Trust.ASSUMED


def test_a_name_or_alias_belongs_to_one_card():
    owners = {}
    for card in accelerators():
        for spelling in (card.name, *card.aliases):
            owners.setdefault(spelling.casefold().translate(DROPPED), set()).add(card.name)
    assert {spelling: names for spelling, names in owners.items() if len(names) > 1} == {}


def test_every_card_says_where_its_figures_are_from():
    assert [card.name for card in accelerators() if not card.source] == []


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("nvidia-tesla-v100", "V100-SXM2-16GB"),
        ("nvidia-tesla-t4", "T4"),
        ("Tesla T4", "T4"),
        ("nvidia-l4", "L4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("nvidia-h100-mega-80gb", "H100-SXM5-80GB"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"),
        ("AMD Instinct MI250X", "MI250X-die"),
        ("h100_sxm", "H100-SXM5-80GB"),
        ("A100-80GB", "A100-SXM4-80GB"),
        ("a100", "A100-SXM4-40GB"),
        ("910b4-1", "Ascend910B4-1"),
        ("Ascend910B3", "Ascend910B3"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("K100_AI", "Hygon-K100-AI"),
        ("A100-40", "A100-SXM4-40GB"),
        ("V100-16", "V100-SXM2-16GB"),
        ("GH-96", "GH200-96GB"),
        ("Titan-RTX", "Titan-RTX"),
        ("RTX-2080", "RTX2080Ti"),
        ("RTX-3090", "RTX3090"),
    ],
)
def test_a_card_is_found_under_the_names_tools_print(spelling, name):
    assert accelerator(spelling).name == name


@pytest.mark.parametrize("name", ["910B", "Ascend910B", "ascend_910b"])
def test_an_ascend_910b_without_its_sku_is_refused_with_its_candidates(name):
    with pytest.raises(UsageError, match="ambiguous") as refused:
        accelerator(name)
    for sku in ("Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"):
        assert sku in str(refused.value)
    assert "Ascend910C" not in str(refused.value)


def test_an_unknown_card_is_refused_with_the_nearest_name_and_the_way_out():
    with pytest.raises(UsageError, match="did you mean 'H100-SXM5-80GB'") as refused:
        accelerator("H1000")
    assert "trust: assumed" in refused.value.hint


def test_a_beginning_of_one_name_is_not_that_card():
    with pytest.raises(UsageError, match="no accelerator 'RTX409'"):
        accelerator("RTX409")


@pytest.mark.parametrize("name", ["", "  ", "NVIDIA"])
def test_an_empty_name_is_no_card(name):
    with pytest.raises(UsageError, match="no accelerator"):
        accelerator(name)


def test_disputed_figures_stay_unknown():
    assert accelerator("MLU590-M9").fp16_flops is None
    assert accelerator("Z100").fp16_flops is None
    assert accelerator("P800").memory_bytes == 0


def test_the_peak_is_that_of_the_precision_and_fp8_of_gpus_is_twice_16_bit_where_there_is_any():
    h100, a100 = accelerator("H100"), accelerator("A100")
    assert (h100.peak_flops("bf16"), h100.peak_flops("fp8"), h100.peak_flops("fp32")) == (989e12, 1979e12, 67e12)
    assert a100.peak_flops("fp8") is None
    for card in accelerators():
        if card.fp8_flops is not None and card.vendor != "Amazon":  # Trainium's first and third differ
            assert card.fp8_flops == pytest.approx(2 * card.fp16_flops, rel=0.02)


@pytest.mark.parametrize(
    ("resource", "vendor"),
    [
        ("amd.com/gpu", "AMD"),
        ("google.com/tpu", "Google"),
        ("aws.amazon.com/neuron", "Amazon"),
        ("aws.amazon.com/neuroncore", ""),
    ],
)
def test_a_vendors_resource_counts_its_whole_devices(resource, vendor):
    assert vendor_of(resource) == vendor
    assert is_accelerator(resource)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("tpu-v5-lite-podslice", "TPU-v5e"),
        ("tpu-v6e-slice", "TPU-v6e"),
        ("trn2", "Trainium2"),
        ("MI355X", "MI355X"),
    ],
)
def test_clouds_names_of_cards_are_known(label, name):
    """GKE's label cloud.google.com/gke-tpu-accelerator, EC2's family, ROCm's name."""
    assert accelerator(label).name == name


def test_measured_figures_stand_beside_the_nominal_ones():
    card = accelerator("A100-40GB")
    assert (card.fp16_flops, card.fp16_flops_measured) == (312e12, 251.5e12)
    assert (card.memory_bandwidth_bytes_per_s, card.memory_bandwidth_measured_bytes_per_s) == (1555e9, 1328e9)
