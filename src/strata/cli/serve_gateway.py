"""`strata serve gateway`: route OpenAI-compatible requests onto the nodes that join."""

from __future__ import annotations

from typing import Any, Final

import click

from strata.cli.parameters import PATH, PORT, POSITIVE, Finite, choice
from strata.cli.serve_model import hosted, model_options
from strata.errors import UsageError, need

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


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
@model_options
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
    "--keys",
    type=PATH,
    help="File of clients' keys with limits for each: NAME: {key_sha256, requests_per_minute, tokens_per_minute, "
    "at_once}. They open /v1/ alone; the token opens all else, too.",
)
@click.option(
    "--node-token-file",
    type=click.Path(),
    help="File with the token that nodes must send, and are sent; or set STRATA_NODE_TOKEN. Not the clients'.",
)
@click.option(
    "--node-network",
    "node_networks",
    multiple=True,
    metavar="CIDR",
    help="Network of nodes' addresses, for example 10.0.0.0/8; may be repeated. Else a node's address must be the "
    "one that it joins from.",
)
@click.option("--tls-cert", type=PATH, help="Certificate to show, with its chain, PEM.")
@click.option("--tls-key", type=PATH, help="Its key, PEM.")
@click.option("--ca", type=PATH, help="Certificates to trust in nodes and engines, besides the system's, PEM.")
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Web pages of this origin may ask, for example https://chat.example.org; * for all; may be repeated.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="A limit other than its default: body_bytes=64MB, answer_s=30min; `--limit help` lists all.",
)
def gateway(**options: Any) -> None:
    """Serve /v1/chat/completions, /v1/completions and /v1/models on the nodes that join.

    Workers (`strata serve worker`) join over HTTP and must be given the same --model, a folder of the same files;
    it is called by the folder's name. Without one they serve a small made-up model, `tiny`, and must be given the
    same --layers, --hidden and --seed. /decisions/ID says why a request went where; /metrics is for Prometheus,
    /healthz for load balancers, /status for people, /openapi.json for programs. STRATA_BACKEND_TOKEN is shown to
    engines. SIGTERM lets running requests finish and exits with 0.

    Nodes need a token of their own. Only a gateway on this machine's loopback that asks nobody for a token takes
    workers of this machine without one.

    \b
    strata serve gateway --model ./Qwen3-8B --port 8000
    """
    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    _serve(options)


def _serve(options: dict[str, Any]) -> None:
    import gc
    import logging
    import os
    import time

    from strata.cli.serve_limits import read_limits, read_tls
    from strata.cli.tokens import token_of
    from strata.net.server import listen, serve
    from strata.net.tls import client_context
    from strata.serving.gateway.access import NodeAccess, read_network
    from strata.serving.gateway.build import GatewaySettings, build
    from strata.serving.gateway.discovery import read_backend
    from strata.serving.gateway.keys import read_keys
    from strata.serving.live.config import SchedulerConfig
    from strata.serving.tokens import ByteTokenizer, Tokenizer
    from strata.serving.worker.shape import Shape

    source = hosted(options)
    tokenizer: Tokenizer = ByteTokenizer()
    if not isinstance(source, Shape):
        from strata.serving.pretrained.tokenizer import PretrainedTokenizer

        tokenizer = PretrainedTokenizer(source)
    model = source.hosted
    token = token_of(options["token_file"])
    node_token = token_of(options["node_token_file"], variable="STRATA_NODE_TOKEN")
    if token and token == node_token:
        problem = "clients and nodes have the same token: whoever may ask could join, and read what others ask"
        raise UsageError(problem, hint="--node-token-file with a token of its own")
    if options["keys"] and not token:
        problem = "--keys without a token leaves /status, /decisions and /metrics open"
        raise UsageError(problem, hint="--token-file FILE, or STRATA_TOKEN")
    host, is_open = options["host"], not (token or node_token)
    limits = read_limits(options["limits"])
    config = SchedulerConfig(
        allocation_strategy=options["allocation"],
        routing_strategy=options["routing"],
        heartbeat_timeout=options["heartbeat_timeout"],
        heartbeat_interval_s=options["heartbeat_timeout"] / 12,
        queue_limit=options["queue"],
        max_attempts=limits.max_attempts,
    )
    settings = GatewaySettings(
        config,
        (model, tokenizer),
        backends=tuple(read_backend(text) for text in options["backends"]),
        limits=limits.http,
        token=token,
        keys=read_keys(options["keys"], clock=time.monotonic) if options["keys"] else None,
        nodes=NodeAccess(
            node_token,
            is_local=is_open and host in LOOPBACK,
            networks=tuple(read_network(text) for text in options["node_networks"]),
        ),
        origins=options["origins"],
        authority=options["ca"],
        silence_s=limits.silence_s,
        backend_token=os.environ.get("STRATA_BACKEND_TOKEN", ""),
    )
    clash = next((backend for backend in settings.backends if backend.model == model.name), None)
    if clash:
        raise UsageError(
            f"{clash.url}: the name {clash.model!r} is taken by the workers' model", hint="another model=NAME"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    tls = read_tls(options["tls_cert"], options["tls_key"])
    client_context(options["ca"])  # refused here, and not once it listens
    with listen(host, options["port"]) as listener:
        if not token and host not in LOOPBACK:
            click.echo("warning: clients need no token; set one with --token-file or STRATA_TOKEN", err=True)
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"gateway listens at http{'s' if tls else ''}://{shown}:{listener.getsockname()[1]}")
        frame = build(settings)[1]
        # What is loaded stays: to go through all of it every 700 new objects is a tenth of what an answer costs.
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        serve(frame, listener, drain_s=options["drain"], tls=tls)
