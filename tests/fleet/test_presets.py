from __future__ import annotations

import pytest

from strata.decision import Trust
from strata.errors import UsageError
from strata.files import bundled_names
from strata.fleet import schema
from strata.fleet.schema import load_dynamics, load_fleet

NAMES = ["aws10", "hub", "seed"]


@pytest.mark.parametrize("name", NAMES)
def test_every_bundled_fleet_is_complete_and_assumed(name):
    fleet = load_fleet(name)
    names = [domain.name for domain in fleet.domains]
    assert set(fleet.links) == {(a, b) for a in names for b in names if a != b}
    assert {link.trust for link in fleet.links.values()} == {Trust.ASSUMED}


def test_the_names_are_those_of_the_docs():
    assert bundled_names(schema.BUNDLED_FLEETS) == NAMES


def test_the_seed_preset_is_three_domains_of_eight():
    fleet = load_fleet("seed")
    assert [domain.num_devices for domain in fleet.domains] == [8, 8, 8]
    links = [("East", "Central", 5, 0.030), ("Central", "West", 3, 0.050), ("East", "West", 2, 0.080)]
    for source, dest, gbps, latency_s in links:
        link = fleet.link(f"{source}_DataCenter", f"{dest}_DataCenter")
        assert (link.bandwidth_bytes_per_s * 8e-9, link.latency_s) == pytest.approx((gbps, latency_s))
    assert load_dynamics("seed")[0].half_width == 0.3


def test_the_hub_preset_lies_between_the_stated_bounds():
    fleet = load_fleet("hub")
    assert len(fleet.domains) == 8
    assert all(64 <= domain.num_devices <= 512 for domain in fleet.domains)
    assert all(10e9 <= link.bandwidth_bytes_per_s * 8 <= 100e9 for link in fleet.links.values())
    assert all(5e-3 <= link.latency_s <= 20e-3 for link in fleet.links.values())


def test_the_aws_preset_halves_round_trips_and_bills_the_sender():
    fleet = load_fleet("aws10")
    assert len(fleet.links) == 90
    link = fleet.link("Oregon", "Virginia")
    assert (link.bandwidth_bytes_per_s * 8e-9, link.latency_s) == pytest.approx((0.79, 0.0335))
    there, back = fleet.link("Tokyo", "Virginia"), fleet.link("Virginia", "Tokyo")
    assert (there.price_usd_per_byte, back.price_usd_per_byte) == pytest.approx((0.09e-9, 0.02e-9))
    assert there.latency_s == back.latency_s
    assert fleet.link("Virginia", "Ohio").price_usd_per_byte == pytest.approx(0.01e-9)


def test_an_unknown_name_lists_the_presets_and_the_nearest():
    with pytest.raises(UsageError, match=r"aws10, hub, seed") as caught:
        load_fleet("sed")
    assert "seed" in caught.value.hint


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub").write_text(
        "apiVersion: strata/v1alpha1\nkind: Fleet\nname: mine\n"
        "domains: [{name: a, accelerator: A100-SXM4-80GB, num_gpus: 1}]\n"
    )
    assert load_fleet("hub").name == "mine"
