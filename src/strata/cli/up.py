"""`strata up`: the scheduler that runs, its API on localhost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strata.cli.gateway_source import gateway_of, gateway_options
from strata.cli.parameters import PORT, TIME, choice
from strata.errors import UsageError, need


@click.command()
@click.argument("fleet", type=click.Path())
@click.option("--store", type=click.Path(), help="SQLite file of jobs and decisions; default: FLEET with .db.")
@click.option("--host", default="127.0.0.1", help="Address to listen at; any but localhost needs a token.")
@click.option("--port", type=PORT, default=8470, help="Port to listen at; 0 picks a free one.")
@click.option("--token-file", type=click.Path(), help="File with the token clients must send; or STRATA_TOKEN.")
@click.option(
    "--policy", type=choice("hi-ppo", "exact", "hysteresis", "never"), default="hi-ppo", help="Who decides."
)
@click.option("--interval", type=TIME, default="300s", help="From one decision on a running job to the next.")
@click.option(
    "--probe-every", type=TIME, default="60s", help="How often each link is measured, with 1 % of it at most."
)
@gateway_options
def up(**options: Any) -> None:
    """Run jobs on the domains of FLEET that have a driver, until SIGTERM.

    \b
    strata up fleet.yaml &
    strata submit job.yaml
    strata up fleet.yaml --gateway http://127.0.0.1:8000

    What was started runs on when this ends, and is taken up again by the next start on the same store. Checkpoints
    and logs lie in a folder beside the store. The dashboard is at /, the API at /v1 (/v1/openapi.json), metrics at
    /metrics. The dashboard also shows the clusters of domains whose driver is kubernetes, and the --gateway.
    SIGHUP has an edited FLEET read again; one without a domain that runs something is refused.
    """
    for module in ("starlette", "uvicorn"):
        need(module, extra="serve")
    _up(options)


def _up(options: dict[str, Any]) -> None:
    import logging
    import os
    import signal
    import threading

    from strata.cli.tokens import token_of
    from strata.control.api import build
    from strata.control.assembly import assembled
    from strata.control.client import Client
    from strata.control.policies import PolicyName
    from strata.fleet.schema import load_drivers
    from strata.history import default_path
    from strata.net.browser import hosts_of
    from strata.net.server import listen, serve
    from strata.web.app import routes
    from strata.web.cluster import looks_of
    from strata.web.sources import Sources

    token = token_of(options["token_file"])
    host = options["host"]
    if not token and host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(f"--host {host} lets others run commands here", hint="--token-file FILE, or STRATA_TOKEN")
    gateway = gateway_of(options["gateway"], options["gateway_token_file"])
    fleet = Path(options["fleet"])
    store = Path(options["store"] or fleet.with_suffix(".db"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with (
        assembled(
            fleet, store, policy=PolicyName(options["policy"]), interval_s=options["interval"],
            probe_every_s=options["probe_every"],
        ) as daemon,
        listen(host, options["port"]) as listener,
    ):  # fmt: skip
        faults: list[BaseException] = []

        def turn() -> None:
            try:
                daemon.run()
            except BaseException as fault:  # ours: an API without a loop behind it would only look alive
                faults.append(fault)
                os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGHUP, lambda *_: daemon.reload())
        loop = threading.Thread(target=turn, daemon=True, name="loop")
        loop.start()
        shown = f"[{host}]" if ":" in host else host
        own = Client(f"http://{shown}:{listener.getsockname()[1]}", token)
        clusters = looks_of(load_drivers(fleet), fleet.parent)
        sources = Sources(default_path(os.environ), own, str(fleet), gateway, clusters)
        pages = routes(sources, token=token)
        click.echo(f"strata runs at http://{shown}:{listener.getsockname()[1]}, store {store}")
        try:
            serve(
                build(daemon, token=token, hosts=hosts_of(host, token=token), pages=pages), listener, drain_s=2.0
            )
        finally:
            daemon.stop()
            loop.join()
    if faults:
        raise faults[0]
