"""`strata fleet show`: domains, links and ACU of a fleet."""

from __future__ import annotations

from typing import Any, Final

import click

from strata.cli.completing import FLEET
from strata.cli.output import emit, output_option
from strata.sentences import filled
from strata.tables import Shown, rows
from strata.units import show_bandwidth, show_bytes, show_time, show_usd

_MOST_LINKS: Final = 20


@click.command(name="show")
@click.argument("fleet", type=FLEET)
@output_option
def show_fleet(fleet: str, output: str) -> None:
    """Show what a FLEET is: a file, or the name of a bundled one.

    \b
    strata fleet show aws10
    strata fleet discover --local > fleet.yaml && strata fleet show fleet.yaml
    """
    from strata.api.fleets import fleet_data

    data = fleet_data(fleet)
    emit(data, output, _shown(data))


def _shown(data: dict[str, Any]) -> Shown:
    devices = sum(domain["num_devices"] for domain in data["domains"])
    acu = "ACU not known" if data["acu"] is None else f"{data['acu']:,.0f} ACU"
    counts = filled("{domains} domains, {devices} devices", {"domains": len(data["domains"]), "devices": devices})
    yield f"{data['name']}: {counts}, {acu}"
    body = [
        [
            domain["name"],
            domain["accelerator"],
            str(domain["num_devices"]),
            str(domain["devices_per_node"]),
            "-" if domain["num_free"] is None else str(domain["num_free"]),
            "-" if domain["acu"] is None else f"{domain['acu']:.0f}",
            show_bytes(domain["memory_bytes"]),
            _usd(domain["price_usd_per_device_hour"]),
        ]
        for domain in data["domains"]
    ]
    yield rows(["domain", "device", "devices", "node", "free", "ACU", "memory", "$/h"], body, right=range(2, 8))
    links = sorted(data["links"], key=lambda link: -link["bandwidth_bytes_per_s"])
    if links:
        yield ""
    body = [
        [
            f"{link['source']} > {link['dest']}",
            show_bandwidth(link["bandwidth_bytes_per_s"]),
            show_time(link["latency_s"]),
            _usd(link["price_usd_per_byte"] * 1e9),
            link["trust"],
        ]
        for link in links[:_MOST_LINKS]
    ]
    if body:
        yield rows(["link", "bandwidth", "one way", "$/GB", "trust"], body, right=[1, 2, 3])
    if len(links) > _MOST_LINKS:
        yield f"and {len(links) - _MOST_LINKS} slower links: -o json has all"
    for domain in data["domains"]:
        if (uplink := domain["uplink_bytes_per_s"]) is not None:
            yield f"all links of {domain['name']} together: {show_bandwidth(uplink)} (uplink)"


def _usd(amount: float | None) -> str:
    return "-" if amount is None else show_usd(amount)
