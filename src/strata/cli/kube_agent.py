"""`strata kube agent`: this node's accelerators, once for people, or published for the cluster."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata import units
from strata.cli.output import emit, output_option, rows
from strata.errors import UsageError, need

if TYPE_CHECKING:
    from rich.console import Console

    from strata.cluster.agent.sources import Collect
    from strata.fleet.fingerprint import Device, Fingerprint


@click.command()
@click.option("--once", is_flag=True, help="Print what is found here and end; no API server is needed.")
@output_option
@click.option("--node", help="Name of this node.  [default: $NODE_NAME, else the host's name]")
@click.option("--every", default="10s", show_default=True, help="How often the vendors' tools are asked.")
@click.option("--heartbeat", default="30s", show_default=True, help="How often it publishes when nothing changes.")
@click.option("--benchmark", is_flag=True, help="Measure idle devices first, by torch: seconds for each.")
@click.option(
    "--probe-every", metavar="TIME", help="Measure idle devices shortly, again and again, to find slow ones."
)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address of /metrics and /healthz.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9101, show_default=True, help="0: any that is free."
)
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server; in a pod it is known.")
@click.option("--sys-root", type=click.Path(path_type=Path), default=Path("/sys"), hidden=True, help="For tests.")
def agent(once: bool, output: str, node: str | None, **told: Any) -> None:
    """Find this node's accelerators and publish them as its ComputeNode.

    Vendors' tools that are missing, hang or babble leave a note. A fault (an XID, a PCIe error, a device off the
    bus) is published at once; one that needs a reset counts until the agent is started again. An API server that
    is away is told the newest state when it is back. SIGTERM ends it with 0.

    \b
    strata kube agent --once
    strata kube agent --node "$NODE_NAME" --benchmark --probe-every 60s
    """
    from functools import partial

    from strata.cluster.agent.collect import collect

    name = node or os.environ.get("NODE_NAME") or platform.node().lower()
    told["every"] = _positive("--every", told["every"])
    told["heartbeat"] = _positive("--heartbeat", told["heartbeat"])
    told["probe_every"] = _positive("--probe-every", told["probe_every"]) if told["probe_every"] else None

    def look(now_s: float, before: Any) -> Any:
        return collect(name, now_s=now_s, before=before, root=told["sys_root"])

    if once:
        found = _once(look, with_benchmark=told["benchmark"])
        emit(_data(found), output, partial(_show, found))
    else:
        _run(look, told)


def _positive(option: str, text: str) -> float:
    seconds = units.parse(text, "time")
    if seconds <= 0:
        raise UsageError(f"{option} {text}: a time above zero is needed", hint=f"{option} 10s")
    return seconds


def _once(look: Collect, *, with_benchmark: bool) -> Fingerprint:
    import random
    import threading

    from strata.cluster.agent.daemon import Agent
    from strata.cluster.agent.sources import run_benchmarks

    known = Agent(rng=random.Random(0))
    known.collected(look(0.0, None))
    if with_benchmark:
        run_benchmarks(
            lambda: known.now(0.0),
            lambda told: told(known),
            at_start=True,
            probe_every_s=None,
            stopped=threading.Event(),
            wall_clock=lambda: 0.0,
        )
    found = known.now(0.0)
    assert found is not None, "it was just collected"
    return found


def _run(look: Collect, told: dict[str, Any]) -> None:
    for module in ("starlette", "uvicorn"):
        need(module, extra="cluster")
    import logging
    import random
    from functools import partial

    from strata.cluster.agent.daemon import Agent, Pace
    from strata.cluster.agent.publish import publish
    from strata.cluster.agent.run import run
    from strata.cluster.api.client import connect
    from strata.net.server import listen

    api = connect(kubeconfig=told["kubeconfig"], timeout_s=5.0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    known = Agent(Pace(heartbeat_s=told["heartbeat"]), rng=random.Random())
    with listen(told["host"], told["port"]) as listener:
        click.echo(f"agent answers at port {listener.getsockname()[1]}")
        run(
            known,
            listener,
            collect=look,
            publish=partial(publish, apply=api.apply),
            every_s=told["every"],
            at_start=told["benchmark"],
            probe_every_s=told["probe_every"],
            root=told["sys_root"],
        )


def _data(found: Fingerprint) -> dict[str, Any]:
    return {
        "node": found.node,
        "driver": found.driver,
        "tool": found.tool,
        "can_p2p": found.can_p2p,
        "devices": [_device_data(device) for device in found.devices],
        "links": [
            {"a": a, "b": b, "kind": found.links.get((a, b)), "bytes_per_s": found.measured.get((a, b))}
            for a, b in sorted({*found.links, *found.measured})
        ],
        "notes": list(found.notes),
    }


def _device_data(device: Device) -> dict[str, Any]:
    from strata.fleet.acu import FIGURES, acu

    vector = acu(device.card) if device.card is not None else None
    return {
        "index": device.index,
        "uuid": device.uuid,
        "model": device.model,
        "vendor": device.vendor,
        "memory_bytes": device.memory_bytes,
        "memory_used_bytes": device.memory_used_bytes,
        "acu": {figure: getattr(vector, figure, None) for figure in FIGURES},
        "acu_trust": {figure: trust.value for figure, trust in vector.trust.items()} if vector is not None else {},
        "health": device.health,
        "faults": list(device.faults),
        "bus_id": device.bus_id,
        "board": device.board,
        "numa_node": device.numa_node,
        "utilisation": device.utilisation,
        "temperature_c": device.temperature_c,
        "power_w": device.power_w,
    }


def _show(found: Fingerprint, console: Console) -> None:
    said = [_device_data(device) for device in found.devices]
    if not said:
        console.print(f"{found.node}: no device")
        console.print("none is found by NVML, nvidia-smi, npu-smi, cnmon, hy-smi or mthreads-gmi")
    else:
        console.print(f"{found.node}: {found.tool}, driver {found.driver or 'unknown'}")
        headers = ["#", "device", "memory", "ACU", "trust", "health", "faults", "NUMA"]
        body = [
            [
                str(i),
                one["model"],
                units.show_bytes(one["memory_bytes"]),
                "-" if one["acu"]["fp16"] is None else f"{one['acu']['fp16']:.0f}",
                one["acu_trust"].get("fp16", "-"),
                f"{one['health']:.2g}",
                ", ".join(one["faults"]) or "-",
                "-" if one["numa_node"] is None else str(one["numa_node"]),
            ]
            for i, one in enumerate(said)
        ]
        console.print(rows(headers, body, right=(2, 3, 5, 7)))
        kinds = dict.fromkeys(found.links.values())
        if kinds:
            console.print("links: " + ", ".join(kinds) + ("" if found.can_p2p else "; no peer-to-peer"))
    for note in found.notes:
        console.print(f"note: {note}")
