"""`strata kube webhook`: what is injected into pods and jobs of ours as they are created."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.parameters import PATH, PORT, Finite, Whole
from strata.errors import need


@click.command()
@click.option("--host", default="0.0.0.0", help="Address to listen at.")
@click.option("--port", type=PORT, default=9443, help="0: any that is free.")
@click.option(
    "--cert-dir",
    type=PATH,
    help="Folder with tls.crt and tls.key, read again when they change; else it keeps certificates of its own.",
)
@click.option("--service", default="strata-webhook", help="By which API servers call it.")
@click.option("--namespace", default="strata-system", help="Of the service and its Secret.")
@click.option(
    "--server-minor",
    type=Whole(min=20),
    metavar="N",
    help="Take the API server for a 1.N; asked unless said. From 34 on image volumes are used.",
)
@click.option("--drain", type=Finite(min=0), default=10.0, help="Seconds that running reviews have after SIGTERM.")
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server; in a pod it is known.")
def webhook(**options: Any) -> None:
    """Answer the API server's questions about pods and jobs with the label ai.compute/managed.

    Jobs are held back until the controller has routed them; pods of routed jobs get everything their accelerator
    needs; a pod that comes alone is placed at once, from memory, or gated until there is room.

    Without --cert-dir it issues a certificate for the service, keeps it with its authority in the Secret
    strata-webhook-certs, renews both in time, and tells the API server whom to trust. /healthz, /readyz and
    /metrics are on the same port. SIGTERM lets running reviews finish and exits with 0.

    \b
    strata kube webhook --cert-dir /etc/strata/certs
    """
    for module in ("lightkube", "starlette", "uvicorn"):
        need(module, extra="cluster")
    if options["cert_dir"] is None:
        need("cryptography", extra="cluster")
    _serve(options)


def _serve(options: dict[str, Any]) -> None:
    import gc
    import logging
    import random
    import time
    from datetime import UTC, datetime

    from strata.cluster.admission.certs import CertificatePair
    from strata.cluster.admission.code import IMAGE_VOLUMES
    from strata.cluster.admission.keeper import Keeper, read_folder, server_context
    from strata.cluster.admission.server import make_frame
    from strata.cluster.admission.single_pod import reviewer
    from strata.cluster.api.client import connect
    from strata.cluster.api.profile_schema import bundled_profiles
    from strata.cluster.cache.cache import ClusterCache
    from strata.cluster.cache.informer import Informer
    from strata.net.server import listen, serve

    folder = options["cert_dir"]
    if folder is not None:
        read_folder(folder)
    api = connect(kubeconfig=options["kubeconfig"])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    minor = options["server_minor"]
    if minor is None:
        minor = api.minor_version()
        # In 1.34 image volumes are there but switched off; who switched them on says --server-minor 34.
        minor = IMAGE_VOLUMES - 1 if minor == IMAGE_VOLUMES else minor
    keeper = Keeper(api, service=options["service"], namespace=options["namespace"])
    informer = Informer(api, ClusterCache(bundled_profiles()), rng=random.Random())

    def look() -> CertificatePair:
        return keeper.look(datetime.now(UTC)) if folder is None else read_folder(folder)

    reviewed = reviewer(informer, server_minor=minor, clock=time.monotonic)
    tls = server_context()
    frame = make_frame(reviewed, unready=informer.unready, tls=tls, look=look)
    with listen(options["host"], options["port"]) as listener:
        click.echo(f"webhook answers at port {listener.getsockname()[1]}")
        # What is loaded stays: to go through all of it every 700 new objects is a third of what an answer costs.
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        informer.start(in_thread=True)
        try:
            serve(frame, listener, drain_s=options["drain"], tls=tls)
        finally:
            informer.stop()
