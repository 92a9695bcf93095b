"""`strata serve gateway`: route OpenAI-compatible requests onto the nodes that join."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.parameters import PORT, POSITIVE, Finite, choice
from strata.errors import UsageError, need


@click.command()
@click.option("--host", default="127.0.0.1", help="Address to listen at.")
@click.option("--port", type=PORT, default=8000, help="Port to listen at; 0 picks a free one.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="URL[,model=NAME][,slots=N]",
    help="A whole engine (vLLM, SGLang, any OpenAI-compatible server); may be repeated.",
)
@click.option("--layers", type=POSITIVE, default=12, help="Layers of the workers' model.")
@click.option("--hidden", type=POSITIVE, default=128, help="Hidden size of that model.")
@click.option("--seed", type=click.IntRange(0, 10**9), default=0, help="Random seed of its weights.")
@click.option(
    "--allocation",
    type=choice("auto", "dp", "greedy"),
    default="auto",
    help="How layers go onto nodes: search, dynamic programming or sorted greedy.",
)
@click.option(
    "--routing",
    type=choice("auto", "dp", "rr"),
    default="auto",
    help="How requests go onto pipelines: least work, least latency over all paths, or round robin.",
)
@click.option(
    "--heartbeat-timeout",
    type=Finite(min=0.1),
    default=60.0,
    help="Seconds of silence after which a node is out; heartbeats come twelve times as often.",
)
@click.option("--queue", type=POSITIVE, default=10_000, help="Most requests that may wait.")
@click.option(
    "--drain", type=Finite(min=0), default=30.0, help="Seconds that running requests have after SIGTERM."
)
@click.option(
    "--token-file", type=click.Path(), help="File with the token that clients must send; or set STRATA_TOKEN."
)
@click.option(
    "--node-token",
    envvar="STRATA_NODE_TOKEN",
    default="",
    show_default=False,
    help="Token that nodes must send, and are sent.",
)
def gateway(**options: Any) -> None:
    """Serve /v1/chat/completions, /v1/completions and /v1/models on the nodes that join.

    Workers (`strata serve worker`) join over HTTP and must be given the same --layers, --hidden and --seed; their
    model is called `tiny`. /decisions/ID says why a request went where; /metrics is for Prometheus, /healthz for
    load balancers, /status for people. STRATA_BACKEND_TOKEN is shown to engines. SIGTERM lets running requests
    finish and exits with 0. Where clients need a token and --node-token is not given, nodes need the same one.

    \b
    strata serve gateway --port 8000
    """
    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    _serve(options)


def _serve(options: dict[str, Any]) -> None:
    import logging
    import os

    from strata.cli.tokens import read_token
    from strata.net.server import listen, serve
    from strata.serving.gateway.build import GatewaySettings, build
    from strata.serving.gateway.discovery import read_backend
    from strata.serving.live.config import SchedulerConfig
    from strata.serving.tokens import ByteTokenizer
    from strata.serving.worker.shape import Shape

    model = Shape(num_layers=options["layers"], hidden_size=options["hidden"], seed=options["seed"]).hosted
    token = read_token(options["token_file"]) or os.environ.get("STRATA_TOKEN", "")
    config = SchedulerConfig(
        allocation_strategy=options["allocation"],
        routing_strategy=options["routing"],
        heartbeat_timeout=options["heartbeat_timeout"],
        heartbeat_interval_s=options["heartbeat_timeout"] / 12,
        queue_limit=options["queue"],
    )
    settings = GatewaySettings(
        config,
        (model, ByteTokenizer()),
        backends=tuple(read_backend(text) for text in options["backends"]),
        token=token,
        node_token=options["node_token"] or token,
        backend_token=os.environ.get("STRATA_BACKEND_TOKEN", ""),
    )
    clash = next((backend for backend in settings.backends if backend.model == model.name), None)
    if clash:
        raise UsageError(
            f"{clash.url}: the name {clash.model!r} is taken by the workers' model", hint="another model=NAME"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    host = options["host"]
    with listen(host, options["port"]) as listener:
        if not token and host not in ("127.0.0.1", "::1", "localhost"):
            click.echo("warning: clients need no token; set one with --token-file or STRATA_TOKEN", err=True)
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"gateway listens at http://{shown}:{listener.getsockname()[1]}")
        serve(build(settings)[1], listener, drain_s=options["drain"])
