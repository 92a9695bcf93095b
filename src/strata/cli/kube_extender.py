"""`strata kube extender`: the router behind kube-scheduler's and Volcano's HTTP extenders."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.parameters import PORT
from strata.errors import need

SWITCH_S: Final = 0.0005
"""How long an answer waits for threads that read watches; Python's own 5 ms are as long as one may take."""


@click.command()
@click.option("--host", default="127.0.0.1", help="Address to listen at.")
@click.option("--port", type=PORT, default=8900, help="0: any that is free.")
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server; in a pod it is known.")
def extender(host: str, port: int, kubeconfig: str | None) -> None:
    """Filter and score nodes for kube-scheduler (/v1/) and Volcano (/volcano/); nothing is written.

    deploy/scheduler/config.yaml is a KubeSchedulerConfiguration that asks it. SIGTERM ends it with 0.

    \b
    strata kube extender --kubeconfig ~/.kube/config
    """
    for module in ("lightkube", "starlette", "uvicorn"):
        need(module, extra="cluster")
    import gc
    import logging
    import random
    import sys

    from strata.cluster.api.client import connect
    from strata.cluster.api.profile_schema import bundled_profiles
    from strata.cluster.cache.cache import ClusterCache
    from strata.cluster.cache.informer import Informer
    from strata.cluster.extender.app import make_frame
    from strata.cluster.scheduling.index import Index
    from strata.cluster.scheduling.profile import RuntimeProfile
    from strata.net.server import listen, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    informer = Informer(connect(kubeconfig=kubeconfig), ClusterCache(bundled_profiles()), rng=random.Random())

    def index() -> Index:
        with informer.lock:
            return informer.cache.index

    def profiles() -> tuple[RuntimeProfile, ...]:
        with informer.lock:
            return informer.cache.profiles

    is_settled = False

    def unready() -> str:
        nonlocal is_settled
        why = informer.unready()
        if not why and not is_settled:
            # What was listed stays: looking through it for cycles again and again would cost answers milliseconds.
            gc.collect()
            gc.freeze()
            is_settled = True
        return why

    sys.setswitchinterval(SWITCH_S)
    with listen(host, port) as listener:
        click.echo(f"extender answers at port {listener.getsockname()[1]}")
        informer.start(in_thread=True)
        try:
            serve(make_frame(index, profiles, unready=unready), listener, drain_s=5.0)
        finally:
            informer.stop()
