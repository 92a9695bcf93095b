"""`strata slices export`: what the slices of a node hold, for Prometheus."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import click

from strata.cli.parameters import PORT, Finite
from strata.errors import need

PORT_USUAL: Final = 9103
_EVER: Final = 86_400.0


@click.command()
@click.option("--port", type=PORT, default=PORT_USUAL, show_default=True, help="Of /metrics and /healthz; 0: any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of /metrics and /healthz.")
@click.option(
    "--pods",
    type=click.Path(path_type=Path, file_okay=False, readable=False),  # without rights it is warned of
    default=Path("/var/lib/kubelet/pods"),
    show_default=True,
    help="Where the kubelet keeps the volumes of its pods.",
)
@click.option("--seconds", type=Finite(0.1), help="Stop after so long; without it, on Ctrl-C or SIGTERM.")
def export(port: int, host: str, pods: Path, seconds: float | None) -> None:
    """Export the slices of this node: pod, container, used, limit, requests refused.

    Reads the ledgers alone, when it is asked: no driver, no API server. Without rights to the kubelet's folder it
    shows the slices of `strata run` that you may see.

    \b
    strata slices export
    strata slices export --host 0.0.0.0 --port 9103
    """
    for module in ("starlette", "uvicorn", "prometheus_client"):
        need(module, extra="serve")
    from strata.host.manager.page import frame
    from strata.host.signals import stoppable
    from strata.net.server import listen, serving
    from strata.slicing.node_slices import NodeSliceMetrics

    metrics = NodeSliceMetrics(pods, user=os.geteuid())
    end_s = float("inf") if seconds is None else time.monotonic() + seconds
    with ExitStack() as open_things, suppress(KeyboardInterrupt):
        open_things.enter_context(stoppable())
        listener = listen(host, port)
        open_things.callback(listener.close)
        open_things.enter_context(serving(frame(metrics.registry, is_well=lambda: True), listener))
        try:
            next(pods.iterdir(), None)
        except OSError as error:
            click.echo(f"warning: no pod's slices are shown: {pods}: {error.strerror}", err=True)
        click.echo(f"metrics: http://{host}:{listener.getsockname()[1]}/metrics", err=True)
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _EVER))
