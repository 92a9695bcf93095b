"""`strata kube dispatch`: which worker clusters MultiKueue offers a workload to, and in which order."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.parameters import PORT
from strata.errors import need


@click.command()
@click.argument("fleet_file", metavar="FLEET")
@click.option("--kubeconfig", type=click.Path(), help="Of the manager cluster; in a pod it is known.")
@click.option("--context", help="Of the manager cluster.  [default: the current one]")
@click.option("--workers", type=click.Path(), help="Kubeconfig with the worker clusters' contexts.")
@click.option("--host", default="0.0.0.0", help="Address of /metrics, /healthz and /readyz.")
@click.option("--port", type=PORT, default=9105, help="0: any that is free.")
@click.option("--namespace", default="strata-system", help="Of the Lease that says who leads.")
@click.option("--identity", help="Who holds the Lease.  [default: the host's name and a random word]")
def dispatch(fleet_file: str, **options: Any) -> None:
    """Nominate worker clusters for the workloads of MultiKueue, with the reasons in a condition of each.

    FLEET says of each worker cluster what its devices cost and how fast data gets there: a domain whose driver is
    {kind: kubernetes, context: NAME}, NAME being that of the MultiKueueCluster. What is free there is asked of the
    cluster. Kueue needs multiKueue.dispatcherName: ai.compute/dispatcher in its configuration, and
    deploy/components/multikueue in the manager cluster.

    \b
    strata kube dispatch fleet.yaml --workers workers.kubeconfig --port 0
    """
    for module in ("lightkube", "starlette", "uvicorn"):
        need(module, extra="cluster")
    import logging

    from strata.cluster.api.client import connect
    from strata.cluster.multikueue.process import run
    from strata.cluster.multikueue.worker_clusters import worker_clusters_of
    from strata.fleet.schema import load_drivers, load_fleet
    from strata.net.server import listen

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    fleet, kubeconfig, context = load_fleet(fleet_file), options.pop("kubeconfig"), options.pop("context")
    known = worker_clusters_of(fleet, load_drivers(fleet_file))
    manager = connect(kubeconfig=kubeconfig, context=context)
    lease = connect(kubeconfig=kubeconfig, context=context, timeout_s=3.0)
    workers = options.pop("workers") or kubeconfig
    with listen(options.pop("host"), options.pop("port")) as listener:
        click.echo(f"dispatcher answers at port {listener.getsockname()[1]}")
        run(listener, manager, lease, fleet=fleet, known=known, workers_kubeconfig=workers, **options)
