"""`strata kube acu`: what a cluster has, in total, in use and free, as one vector whatever the vendors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.kube_source import look, source_options
from strata.cli.output import emit, output_option
from strata.cli.parameters import choice
from strata.decision import Trust
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from strata.cluster.cache.capacity import DeviceCapacity, Summary

_NOTE: Final = "100 is one A100-80GB.  ~ partly assumed, not measured.  ? some devices unknown."


@click.command()
@click.option(
    "--by",
    "key",
    type=choice("domain", "vendor", "node"),
    default="domain",
    help="What the table has a row of; JSON has all three.",
)
@source_options
@output_option
def acu(key: str, snapshots: Sequence[str], kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show the accelerators of a cluster in abstract compute units, of all vendors together.

    A device in part use counts by the share of its cores, its memory by bytes. A domain is a node's label
    topology.kubernetes.io/region, else its zone. What is free of devices that are unwell, not offered by
    their device plugin, or on closed nodes is out: nobody can have it now.

    \b
    strata kube acu --by vendor
    strata kube acu --snapshot cluster.json -o json
    """
    from strata.cluster.cache.capacity import by, parts, summary

    cache, _ = look(snapshots, kubeconfig, context)
    devices = parts(cache.index.nodes)
    whole = summary("total", devices)
    data = _data(whole) | {
        "domains": [
            {
                "name": domain.name,
                **_data(domain),
                "vendors": _listed(devices, "vendor", domain.name),
                "nodes": _listed(devices, "node", domain.name),
            }
            for domain in by(devices, lambda part: part.domain)
        ]
    }
    emit(data, output, _show(key, by(devices, lambda part: getattr(part, key)), whole))


def _listed(devices: Sequence[DeviceCapacity], key: str, domain: str) -> list[dict[str, Any]]:
    from strata.cluster.cache.capacity import by

    here = [part for part in devices if part.domain == domain]
    return [{"name": summary.name, **_data(summary)} for summary in by(here, lambda part: getattr(part, key))]


def _data(summary: Summary) -> dict[str, Any]:
    return {
        "total": dict(summary.total),
        "used": dict(summary.used),
        "free": dict(summary.free),
        "out": dict(summary.out),
        "trust": {figure: trust.value for figure, trust in summary.trust.items()},
        "devices": summary.devices,
        "devices_unknown": dict(summary.unknown),
        "models": list(summary.models),
    }


def _show(key: str, groups: Sequence[Summary], whole: Summary) -> Shown:
    body = [
        (
            summary.name,
            str(summary.devices),
            _figure(summary, summary.total, "fp16"),
            _figure(summary, summary.used, "fp16"),
            _figure(summary, summary.free, "fp16"),
            _figure(summary, summary.out, "fp16"),
            _figure(summary, summary.total, "memory"),
            _figure(summary, summary.free, "memory"),
            _figure(summary, summary.total, "memory_bandwidth"),
        )
        for summary in (*groups, whole)
    ]
    headers = (key, "devices", "fp16", "used", "free", "out", "memory", "mem free", "mem bw")
    yield rows(headers, body, right=range(1, len(headers)))
    yield Line(f"\n{_NOTE}", is_whole=True)


def _figure(summary: Summary, amounts: Mapping[Any, float], figure: Any) -> str:
    trust = summary.trust.get(figure)
    if trust is None:
        return "-" if not summary.devices else "?"
    unknown = "?" if figure in summary.unknown else ""
    return f"{'~' if trust is Trust.ASSUMED else ''}{amounts[figure]:.0f}{unknown}"
