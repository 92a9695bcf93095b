"""`strata serve worker`: a node that hosts layers of a model."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.parameters import PATH, SIZE, choice
from strata.cli.serve_model import hosted, model_options
from strata.errors import MissingPart, UsageError, need

if TYPE_CHECKING:
    from strata.serving.pretrained.folder import ModelFolder
    from strata.serving.worker.holder import StageMaker
    from strata.serving.worker.shape import Shape


@click.command()
@click.option("--gateway", required=True, metavar="URL", help="Address of the gateway to join.")
@click.option("--id", "node_id", required=True, metavar="NAME", help="Name of this node, unique in the cluster.")
@click.option("--bind", default="127.0.0.1:0", help="Address to listen at; port 0 picks a free one.")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Address that others reach it at, where that is another one: behind NAT, or by a certificate's name.",
)
@click.option("--memory", type=SIZE, help="Memory for weights, keys and values; half of what is free by default.")
@model_options
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
    gateway: str, node_id: str, bind: str, advertise: str | None, memory: float | None, region: str, device: str,
    node_token_file: str | None, tls_cert: Path | None, tls_key: Path | None, ca: Path | None, **model_said: Any,
) -> None:  # fmt: skip
    """Host the layers the gateway asks for, and pass activations on to the next worker.

    Gateway and workers must be given the same --model, a folder of the same files, of which a worker reads the
    layers it is asked for; without one, the same --layers, --hidden and --seed. SIGTERM leaves the cluster,
    finishes what runs here and exits with 0. Needs torch, and transformers for --model; exits with 5 without them.

    \b
    strata serve worker --model ./Qwen3-8B --gateway http://127.0.0.1:8000 --id a
    """
    import logging

    from strata.cli.serve_limits import read_tls
    from strata.cli.tokens import token_of

    host, port = _address(bind, "--bind")
    shown, shown_port = _address(advertise, "--advertise", default_port=0) if advertise else (host, 0)
    if _is_unspecified(shown):
        hint = "--advertise with the address of one interface"
        raise UsageError(f"--bind {bind}: other nodes cannot reach this address", hint=hint)
    node_token = token_of(node_token_file, variable="STRATA_NODE_TOKEN")
    tls = read_tls(tls_cert, tls_key)
    if not gateway.startswith(("http://", "https://")):
        raise UsageError(f"--gateway {gateway} is not a URL", hint="--gateway http://127.0.0.1:8000")
    source = hosted(model_said)
    torch = need("torch", extra="train")
    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingPart("torch sees no CUDA device", hint="--device cpu")
    from strata.net.server import listen
    from strata.serving.worker.hardware import measure
    from strata.serving.worker.layer_times import measure_block
    from strata.serving.worker.run import WorkerSettings, run

    maker, dtype, in_thread = _layers_of(source, device)
    logging.basicConfig(level=logging.WARNING, format=f"{node_id}: %(message)s")
    with listen(host, port) as listener:
        scheme, name = "https" if tls else "http", f"[{shown}]" if ":" in shown else shown
        url = f"{scheme}://{name}:{shown_port or listener.getsockname()[1]}"
        hardware = measure(device, memory, dtype=dtype)
        samples = measure_block(maker, source.hosted, memory_bytes=hardware.memory_bytes, in_thread=in_thread)
        click.echo(f"{node_id} listens at {url}")
        settings = WorkerSettings(
            node_id, url, gateway, source.hosted, maker, hardware, samples, in_thread, node_token, region,
            tls=tls, authority=ca, device=device,
        )  # fmt: skip
        run(settings, listener)


def _layers_of(source: ModelFolder | Shape, device: str) -> tuple[StageMaker, str, Callable[[], None]]:
    """Return what makes a model's layers, their precision, and what the thread that runs them does first."""
    from strata.serving.worker.shape import Shape

    if isinstance(source, Shape):
        from strata.serving.worker.model import LayerMaker, use_one_thread

        return LayerMaker(source, device), "float32", use_one_thread
    from strata.serving.pretrained.layers import PretrainedMaker

    return PretrainedMaker(source, device), source.dtype, lambda: None


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
