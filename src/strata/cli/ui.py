"""`strata ui`: the dashboard of this machine's plans and of a scheduler that runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from strata.cli.completing import FLEET
from strata.cli.gateway_source import gateway_of, gateway_options
from strata.cli.kube_source import source_options
from strata.cli.parameters import PORT
from strata.errors import UsageError, need

if TYPE_CHECKING:
    from strata.serving.gateway.client import GatewayClient
    from strata.web.cluster import Look


@click.command()
@click.argument("fleet", type=FLEET, required=False, default="")
@click.option("--server", envvar="STRATA_SERVER", default="http://127.0.0.1:8470", help="Address of `strata up`.")
@gateway_options
@click.option("--host", default="127.0.0.1", help="Address to listen at; any but localhost needs a token.")
@click.option("--port", type=PORT, default=8480, help="Port to listen at; 0 picks a free one.")
@click.option("--token-file", type=click.Path(), help="File with the token browsers must show; or STRATA_TOKEN.")
@source_options
def ui(
    fleet: str,
    server: str,
    gateway: str,
    gateway_token_file: str | None,
    host: str,
    port: int,
    token_file: str | None,
    snapshots: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show plans, a FLEET, jobs that run, what is served, slices and decisions in a browser, until Ctrl-C.

    \b
    strata ui
    strata ui fleet.yaml --port 8000
    strata ui --gateway http://127.0.0.1:8000
    strata ui --kubeconfig ~/.kube/config

    Reads this machine's history of plans and asks the scheduler at --server, which shows the same pages itself.
    The token is also what it is asked with. A cluster is asked only where one is named. Nothing is loaded from
    elsewhere.
    """
    for module in ("starlette", "uvicorn"):
        need(module, extra="serve")
    served = gateway_of(gateway, gateway_token_file)
    clusters = _clusters(snapshots, kubeconfig, context)
    _serve(fleet, server=server, gateway=served, clusters=clusters, host=host, port=port, token_file=token_file)


def _clusters(snapshots: Sequence[str], kubeconfig: str | None, context: str | None) -> dict[str, Look]:
    """Return what lists the cluster that was named; faults of files, a kubeconfig's too, are said at once."""
    from functools import partial

    from strata.cluster.cache.gather import from_files
    from strata.web.cluster import server_look

    if snapshots:
        from_files(snapshots)
        return {"": partial(from_files, snapshots)}
    return {"": server_look(kubeconfig, context)} if kubeconfig or context else {}


def _serve(
    fleet: str, *, server: str, gateway: GatewayClient | None, clusters: dict[str, Look], host: str, port: int,
    token_file: str | None,
) -> None:  # fmt: skip
    from starlette.applications import Starlette

    from strata.cli.tokens import token_of
    from strata.control.client import Client
    from strata.fleet.schema import load_fleet
    from strata.history import default_path
    from strata.net.browser import SameOrigin, hosts_of
    from strata.net.http import Frame, Limits, Realm
    from strata.net.metrics import Counter, Registry
    from strata.net.server import listen, serve
    from strata.web.app import missing, routes
    from strata.web.sources import Sources

    token = token_of(token_file)
    if not token and host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(f"--host {host} lets others see this", hint="--token-file FILE, or STRATA_TOKEN")
    if fleet:
        load_fleet(fleet)  # its faults are said here, not on a page
    sources = Sources(default_path(os.environ), Client(server.rstrip("/"), token), fleet, gateway, clusters)
    app: Any = Starlette(routes=routes(sources, token=token), exception_handlers={404: missing})
    requests = Counter("strata_http_requests", "Answers by status.", ["status"], registry=Registry())
    guarded = SameOrigin(app, hosts=hosts_of(host, token=token))
    realms = [Realm("/"), Realm("/events", drains=False)]
    with listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"strata ui at http://{shown}:{listener.getsockname()[1]} (Ctrl-C ends it)")
        serve(Frame(guarded, realms=realms, limits=Limits(), requests=requests), listener, drain_s=1.0)
