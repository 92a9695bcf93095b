"""`strata kube controller`: routes suspended jobs and lets them go, and takes broken nodes out."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.parameters import PATH, PORT, Finite, choice
from strata.errors import need


@click.command()
@click.option("--host", default="0.0.0.0", help="Address of /metrics, /healthz and /readyz.")
@click.option("--port", type=PORT, default=9102, help="0: any that is free.")
@click.option("--namespace", default="strata-system", help="Of the Lease that says who leads.")
@click.option("--identity", help="Who holds the Lease.  [default: the host's name and a random word]")
@click.option(
    "--drain",
    type=choice("never", "faults", "all"),
    default="faults",
    help="Jobs that are moved: none, those on broken devices, or those on slow ones too.",
)
@click.option(
    "--isolate-at-most",
    type=Finite(0, 1),
    default=0.1,
    help="Share of the nodes that may be out at a time; one always may.",
)
@click.option(
    "--slow-window",
    type=Finite(1, 86400),
    default=300.0,
    metavar="SECONDS",
    help="How long a device must lag behind its own kind to count as slow.",
)
@click.option(
    "--checkpoints",
    type=PATH,
    help="Folder below which jobs' ai.compute/checkpoint-dir are, mounted here as in their pods.",
)
@click.option(
    "--defragment",
    is_flag=True,
    help="Move jobs that allow it (ai.compute/preemptible) from their checkpoints, where another fits then.",
)
@click.option("--kueue", is_flag=True, help="Answer Kueue's AdmissionChecks; needs deploy/components/kueue.")
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server; in a pod it is known.")
def controller(**options: Any) -> None:
    """Route suspended jobs of ours and let them go; taint nodes with broken or slow devices and move their jobs.

    Run two or more: one leads, by a Lease, and another takes over when it is gone. SIGTERM ends it with 0.

    \b
    strata kube controller --kubeconfig ~/.kube/config --port 0
    """
    for module in ("lightkube", "starlette", "uvicorn"):
        need(module, extra="cluster")
    import gc
    import logging

    from strata.cluster.controller.process import connect_clients, run
    from strata.net.server import listen

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    clients = connect_clients(options.pop("kubeconfig"))
    with listen(options.pop("host"), options.pop("port")) as listener:
        click.echo(f"controller answers at port {listener.getsockname()[1]}")
        # What is loaded stays: it is not gone through again every 700 new objects.
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        run(listener, clients, **options)
