"""`strata fleet discover` and `probe`: what there is, and what the links between it carry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import PATH
from strata.errors import UsageError
from strata.tables import Shown, printable, rows

if TYPE_CHECKING:
    from strata.cluster.api.client import Api
    from strata.cluster.api.kinds import Object, ObjectKind
    from strata.fleet.discovery.fleet_file import FoundDomain


@click.command()
@click.option("--local", "is_local", is_flag=True, help="This machine: its cards, else its CPU cores.")
@click.option("--slurm", "is_slurm", is_flag=True, help="The Slurm cluster whose slurm.conf the tools here find.")
@click.option("--conf", "confs", multiple=True, type=click.Path(), help="A Slurm cluster's slurm.conf; or more.")
@click.option("--kube", "contexts", multiple=True, help="A context of the kubeconfig; or more.")
@click.option("--kubeconfig", type=click.Path(), help="Else KUBECONFIG, ~/.kube/config, or our pod's own.")
@click.option("--name", default="discovered", help="Of the fleet.")
def discover(
    is_local: bool,
    is_slurm: bool,
    confs: tuple[str, ...],
    contexts: tuple[str, ...],
    kubeconfig: str | None,
    name: str,
) -> None:  # fmt: skip
    """Print a fleet file of what is found; each figure says who told it and how far it can be trusted.

    \b
    strata fleet discover --local > fleet.yaml
    strata fleet discover --conf /etc/slurm-a/slurm.conf --conf /etc/slurm-b/slurm.conf > fleet.yaml
    strata fleet discover --kube west --kube east > fleet.yaml

    A machine without accelerators is a domain of its cores, whose rates are measured (2 s). Links between domains
    are assumed: `strata fleet probe` measures them.
    """
    from datetime import UTC, datetime

    from strata.fleet.discovery.fleet_file import fleet_text

    usual = [None] if is_slurm and not confs else []
    places = [*usual, *(Path(conf).absolute() for conf in confs)]
    if not (is_local or places or contexts):
        raise UsageError("nothing to ask", hint="any of --local, --slurm [--conf FILE], --kube CONTEXT")
    domains = _here() if is_local else []
    for conf in places:
        domains += _of_slurm(conf)
    owners: dict[str, str] = {}
    for context in contexts:
        domains += _of_kube(kubeconfig, context, owners)
    for doubt in (f"{domain.name}: {doubt}" for domain in domains for doubt in domain.doubts):
        click.echo(printable(f"warning: {doubt}"), err=True)
    flags = [flag for flag, given in (("--local", is_local), ("--slurm", places), ("--kube", contexts)) if given]
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    click.echo(fleet_text(name, domains, command=f"strata fleet discover {' '.join(flags)}", at=at), nl=False)


@click.command()
@click.argument("fleet", type=PATH)
@output_option
def probe(fleet: Path, output: str) -> None:
    """Measure the links between the domains of FLEET, both ways, and write what was measured, and when, into it.

    Domains that have a network of their own are measured: namespaces of this machine, and Slurm clusters, where a
    job of one task stands for the domain. All other links stay as they are. Each takes a few seconds.

    \b
    strata fleet probe fleet.yaml
    """
    import time
    from dataclasses import asdict

    from strata.control.probing import measure, write_links

    measured = measure(fleet, now=time.time)
    write_links(fleet, measured)
    data = [asdict(seen) for seen in measured]
    emit(data, output, _table(data))


def _table(data: list[dict[str, Any]]) -> Shown:
    from strata.units import show_bandwidth, show_time

    body = [
        (
            f"{link['source']} > {link['dest']}",
            show_bandwidth(link["bandwidth_bytes_per_s"]) if link["bandwidth_bytes_per_s"] else "nothing came",
            "" if link["latency_s"] is None else show_time(link["latency_s"]),
        )
        for link in data
    ]
    yield rows(("link", "bandwidth", "latency"), body, right=(1, 2))


def _here() -> list[FoundDomain]:
    import socket
    import time

    from strata.control.discovery.here import core_rates, domains_here
    from strata.fleet.discovery.collect import collect

    node = socket.gethostname()
    collected = collect(node, now_s=time.time())
    for note in collected.fingerprint.notes:
        click.echo(f"warning: {note}", err=True)
    return domains_here(node, collected, core_rates)


def _of_slurm(conf: Path | None) -> list[FoundDomain]:
    from strata.control.discovery.slurm import domains_of_slurm
    from strata.control.drivers.slurm_tools import SlurmCluster

    cluster = SlurmCluster(conf)
    cluster.check()
    domains = domains_of_slurm(cluster.name(), cluster.nodes(None), conf)
    if not domains:
        click.echo("warning: sinfo: no node of this Slurm cluster has a gres named gpu", err=True)
    return domains


def _of_kube(kubeconfig: str | None, context: str, owners: dict[str, str]) -> list[FoundDomain]:
    """Return the domains of a cluster. owners: the context that each node, by its uid, was first seen in."""
    from contextlib import closing

    from strata.cluster.api.client import connect
    from strata.cluster.api.kinds import COMPUTE_NODE, NODE, POD, meta, name_of
    from strata.cluster.cache.gather import listed
    from strata.control.discovery.kube import domains_of_kube

    with closing(connect(kubeconfig=kubeconfig, context=context)) as api:
        nodes = listed(api, NODE)
        agents = _allowed(api, COMPUTE_NODE, f"warning: --kube {context}: labels are believed")
        pods = _allowed(api, POD, f"warning: --kube {context}: what is free is not said")
    known = next((node for node in nodes if meta(node).get("uid") in owners), None)
    if known is not None:
        first = owners[meta(known)["uid"]]
        problem = f"--kube {context}: the cluster of --kube {first}, too: {name_of(known)} is in both"
        raise UsageError(problem, hint=f"leave out --kube {context}: its devices would count twice")
    owners.update((meta(node)["uid"], context) for node in nodes)
    return domains_of_kube(context, nodes, agents or (), pods)


def _allowed(api: Api, kind: ObjectKind, without: str) -> Sequence[Object] | None:
    """Return all objects of a kind; None, and a warning, where we may not see them."""
    from strata.cluster.api.errors import ApiFailed
    from strata.cluster.cache.gather import listed

    try:
        return listed(api, kind)
    except ApiFailed as failed:
        if not failed.is_forbidden:
            raise
        click.echo(printable(f"{without}: {failed}"), err=True)
        return None
