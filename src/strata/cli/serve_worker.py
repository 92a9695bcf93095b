"""`strata serve worker`: a node that hosts layers of a small real transformer."""

from __future__ import annotations

import ipaddress

import click

from strata.cli.parameters import POSITIVE, choice
from strata.errors import MissingPart, UsageError, need
from strata.units import parse


@click.command()
@click.option("--gateway", required=True, metavar="URL", help="Address of the gateway to join.")
@click.option("--id", "node_id", required=True, metavar="NAME", help="Name of this node, unique in the cluster.")
@click.option("--bind", default="127.0.0.1:0", help="Address that others reach it at; port 0 picks a free one.")
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
    "--node-token",
    envvar="STRATA_NODE_TOKEN",
    default="",
    show_default=False,
    help="Token that is sent to, and required of, all nodes.",
)
def worker(
    gateway: str,
    node_id: str,
    bind: str,
    memory: str | None,
    layers: int,
    hidden: int,
    seed: int,
    region: str,
    device: str,
    node_token: str,
) -> None:
    """Host the layers the gateway asks for, and pass activations on to the next worker.

    The model is made from its seed: gateway and workers must be given the same --layers, --hidden and --seed.
    SIGTERM leaves the cluster, finishes what runs here and exits with 0. Needs torch; exits with 5 without it.

    \b
    strata serve worker --gateway http://127.0.0.1:8000 --id a
    """
    import logging

    from strata.serving.worker.shape import Shape

    shape = Shape(num_layers=layers, hidden_size=hidden, seed=seed)
    memory_bytes = None if memory is None else _memory(memory)
    host, port = _address(bind)
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
        url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        hardware = measure(device, memory_bytes)
        click.echo(f"{node_id} listens at {url}")
        run(WorkerSettings(node_id, url, gateway, shape, hardware, device, node_token, region), listener)


def _memory(text: str) -> float:
    value = parse(text, "bytes")
    if value <= 0:
        raise click.BadParameter(f"{text} is not above 0", param_hint="--memory")
    return value


def _address(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--bind {bind} is not HOST:PORT", hint="--bind 127.0.0.1:0")
    try:
        is_all = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_all = False  # a name
    if is_all:
        raise UsageError(
            f"--bind {bind}: other nodes cannot reach this address", hint="the address of one interface"
        )
    return host, int(port)
