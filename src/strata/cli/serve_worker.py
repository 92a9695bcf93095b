"""`strata serve worker`: a node that hosts layers of a small real transformer."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import click

from strata.cli.parameters import PATH, POSITIVE, choice
from strata.errors import MissingPart, UsageError, need
from strata.units import parse


@click.command()
@click.option("--gateway", required=True, metavar="URL", help="Address of the gateway to join.")
@click.option("--id", "node_id", required=True, metavar="NAME", help="Name of this node, unique in the cluster.")
@click.option("--bind", default="127.0.0.1:0", help="Address to listen at; port 0 picks a free one.")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Address that others reach it at, where that is another one: behind NAT, or by a certificate's name.",
)
@click.option(
    "--memory", metavar="SIZE", help="Memory for weights, keys and values; half of what is free by default."
)
@click.option("--layers", type=POSITIVE, default=12, help="Layers of the whole model.")
@click.option("--hidden", type=POSITIVE, default=128, help="Hidden size of that model.")
@click.option("--seed", type=click.IntRange(0, 10**9), default=0, help="Random seed of its weights.")
@click.option(
    "--region",
    default="",
    show_default=False,
    help="Region of this node; nodes of one region are close to each other.",
)
@click.option("--device", type=choice("cpu", "cuda"), default="cpu", help="Device that runs the layers.")
@click.option(
    "--node-token-file",
    type=click.Path(),
    help="File with the token that is sent to, and required of, all nodes; or set STRATA_NODE_TOKEN.",
)
@click.option("--tls-cert", type=PATH, help="Certificate to show, with its chain, PEM.")
@click.option("--tls-key", type=PATH, help="Its key, PEM.")
@click.option("--ca", type=PATH, help="Certificates to trust in gateway and nodes, besides the system's, PEM.")
def worker(
    gateway: str,
    node_id: str,
    bind: str,
    advertise: str | None,
    memory: str | None,
    layers: int,
    hidden: int,
    seed: int,
    region: str,
    device: str,
    node_token_file: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    ca: Path | None,
) -> None:
    """Host the layers the gateway asks for, and pass activations on to the next worker.

    The model is made from its seed: gateway and workers must be given the same --layers, --hidden and --seed.
    SIGTERM leaves the cluster, finishes what runs here and exits with 0. Needs torch; exits with 5 without it.

    \b
    strata serve worker --gateway http://127.0.0.1:8000 --id a
    """
    import logging
    import os

    from strata.cli.serve_limits import read_tls
    from strata.cli.tokens import read_token
    from strata.serving.worker.shape import Shape

    shape = Shape(num_layers=layers, hidden_size=hidden, seed=seed)
    memory_bytes = None if memory is None else _memory(memory)
    host, port = _address(bind, "--bind")
    shown, shown_port = _address(advertise, "--advertise", default_port=0) if advertise else (host, 0)
    if _is_unspecified(shown):
        hint = "--advertise with the address of one interface"
        raise UsageError(f"--bind {bind}: other nodes cannot reach this address", hint=hint)
    node_token = read_token(node_token_file) or os.environ.get("STRATA_NODE_TOKEN", "")
    tls = read_tls(tls_cert, tls_key)
    if not gateway.startswith(("http://", "https://")):
        raise UsageError(f"--gateway {gateway} is not a URL", hint="--gateway http://127.0.0.1:8000")
    torch = need("torch", extra="train")
    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingPart("torch sees no CUDA device", hint="--device cpu")
    from strata.net.server import listen
    from strata.serving.worker.hardware import measure
    from strata.serving.worker.run import WorkerSettings, run

    logging.basicConfig(level=logging.WARNING, format=f"{node_id}: %(message)s")
    with listen(host, port) as listener:
        scheme, name = "https" if tls else "http", f"[{shown}]" if ":" in shown else shown
        url = f"{scheme}://{name}:{shown_port or listener.getsockname()[1]}"
        hardware = measure(device, memory_bytes)
        click.echo(f"{node_id} listens at {url}")
        run(WorkerSettings(node_id, url, gateway, shape, hardware, device, node_token, region, tls, ca), listener)


def _memory(text: str) -> float:
    value = parse(text, "bytes")
    if value <= 0:
        raise click.BadParameter(f"{text} is not above 0", param_hint="--memory")
    return value


def _address(text: str, option: str, *, default_port: int | None = None) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    is_bare = not colon or text.endswith("]") or (":" in host and "]" not in host)
    if default_port is not None and is_bare:
        host, port = text, str(default_port)
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {text} is not HOST:PORT", hint=f"{option} 127.0.0.1:0")
    return host, int(port)


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name
