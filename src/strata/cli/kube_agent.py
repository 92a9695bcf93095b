"""`strata kube agent`: this node's accelerators, once for people, or published for the cluster."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata import units
from strata.cli.output import emit, output_option
from strata.cli.parameters import PATH, PORT, TIME
from strata.errors import UsageError, need
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.cluster.agent.sources import Collect
    from strata.fleet.fingerprint import Device, Fingerprint


_IDENTITY: Final = ("index", "uuid", "model", "vendor", "memory_bytes", "memory_used_bytes")
_STATE: Final = ("health", "faults", "bus_id", "board", "numa_node", "utilisation", "temperature_c", "power_w")


@click.command()
@click.option("--once", is_flag=True, help="Print what is found here and end; no API server is needed.")
@output_option
@click.option("--node", help="Name of this node.  [default: $NODE_NAME, else the host's name]")
@click.option("--every", type=TIME, default="10s", help="How often the vendors' tools are asked.")
@click.option("--heartbeat", type=TIME, default="150s", help="How often it publishes when nothing changes.")
@click.option("--benchmark", is_flag=True, help="Measure idle devices first, by torch: seconds for each.")
@click.option("--probe-every", type=TIME, help="Measure idle devices shortly, again and again, to find slow ones.")
@click.option(
    "--dra", is_flag=True, help="Give devices out by DRA, in place of a device plugin: ResourceSlices and claims."
)
@click.option("--host", default="0.0.0.0", help="Address of /metrics and /healthz.")
@click.option("--port", type=PORT, default=9101, help="0: any that is free.")
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server; in a pod it is known.")
@click.option("--sys-root", type=PATH, default=Path("/sys"), hidden=True, help="For tests.")
@click.option("--kubelet-root", type=PATH, default=Path("/var/lib/kubelet"), hidden=True, help="For tests.")
@click.option("--cdi-root", type=PATH, default=Path("/var/run/cdi"), hidden=True, help="For tests.")
def agent(once: bool, output: str, node: str | None, **options: Any) -> None:
    """Find this node's accelerators and publish them as its ComputeNode.

    Vendors' tools that are missing, hang or babble leave a note. A fault (an XID, a PCIe error, a device off the
    bus) is published at once; one that needs a reset counts until the agent is started again. An API server that
    is away is told the newest state when it is back. SIGTERM ends it with 0.

    With --dra the devices are a ResourceSlice of the driver ai.compute as well, with what they are worth, and the
    kubelet asks here for claims on them (Kubernetes 1.34 or newer; NVIDIA, Ascend and Moore Threads, whose
    container runtimes go by a variable). Not beside a vendor's device plugin or DRA driver: both would give the
    same devices.

    \b
    strata kube agent --once
    strata kube agent --node "$NODE_NAME" --benchmark --probe-every 60s
    strata kube agent --node "$NODE_NAME" --dra
    """

    from strata.cluster.agent.pod_resources import PodResources
    from strata.fleet.discovery.collect import collect

    kubelet = PodResources(options["kubelet_root"])
    name = node or os.environ.get("NODE_NAME") or platform.node().lower()

    def look(now_s: float, before: Any) -> Any:
        return kubelet.joined(collect(name, now_s=now_s, before=before, root=options["sys_root"]))

    if once and options["dra"]:
        raise UsageError("--dra serves the kubelet, and --once serves nobody", hint="leave out one of them")
    if once:
        fingerprint = _once(look, with_benchmark=options["benchmark"])
        emit(_data(fingerprint), output, _show(fingerprint))
    else:
        _run(look, name, options)


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
            lambda event: event(known),
            at_start=True,
            probe_every_s=None,
            stopped=threading.Event(),
            wall_clock=lambda: 0.0,
        )
    fingerprint = known.now(0.0)
    assert fingerprint is not None, "it was just collected"
    return fingerprint


def _run(look: Collect, node: str, options: dict[str, Any]) -> None:
    for module in ("starlette", "uvicorn"):
        need(module, extra="cluster")
    import logging
    import random
    from contextlib import ExitStack

    from strata.cluster.agent.daemon import Agent, PublishInterval
    from strata.cluster.agent.publish import Publisher
    from strata.cluster.agent.run import run
    from strata.cluster.api.client import connect
    from strata.net.server import listen

    api = connect(kubeconfig=options["kubeconfig"], timeout_s=5.0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    known = Agent(PublishInterval(heartbeat_s=options["heartbeat"]), rng=random.Random())
    publisher, driver = Publisher(api), None
    if options["dra"]:
        need("grpc", extra="cluster")
        from strata.cluster.agent.dra_driver import DraDriver

        driver = DraDriver(api, node, root=options["kubelet_root"], cdi=options["cdi_root"])

    def publish(fingerprint: Fingerprint) -> None:
        uid = publisher(fingerprint)
        if driver is not None:
            driver.publish(fingerprint, uid)

    with listen(options["host"], options["port"]) as listener, ExitStack() as ended:
        if driver is not None:
            driver.start()
            ended.callback(driver.stop)
        click.echo(f"agent answers at port {listener.getsockname()[1]}")
        run(
            known,
            listener,
            collect=look,
            publish=publish,
            every_s=options["every"],
            at_start=options["benchmark"],
            probe_every_s=options["probe_every"],
            root=options["sys_root"],
        )


def _data(fingerprint: Fingerprint) -> dict[str, Any]:
    return {
        "node": fingerprint.node,
        "driver": fingerprint.driver,
        "tool": fingerprint.tool,
        "can_p2p": fingerprint.can_p2p,
        "devices": [_device_data(device) for device in fingerprint.devices],
        "links": [
            {
                "a": a,
                "b": b,
                "kind": fingerprint.links.get((a, b)),
                "bytes_per_s": fingerprint.measured.get((a, b)),
            }
            for a, b in sorted({*fingerprint.links, *fingerprint.measured})
        ],
        "notes": list(fingerprint.notes),
    }


def _device_data(device: Device) -> dict[str, Any]:
    from strata.fleet.acu import FIGURES, acu

    vector = acu(device.card) if device.card is not None else None
    return {
        **{key: getattr(device, key) for key in _IDENTITY},
        "acu": {figure: getattr(vector, figure, None) for figure in FIGURES},
        "acu_trust": {figure: trust.value for figure, trust in vector.trust.items()} if vector is not None else {},
        **{key: getattr(device, key) for key in _STATE},
    }


def _show(fingerprint: Fingerprint) -> Shown:
    devices = [_device_data(device) for device in fingerprint.devices]
    if not devices:
        yield f"{fingerprint.node}: no device"
        yield "none is found by NVML, nvidia-smi, npu-smi, cnmon, hy-smi or mthreads-gmi"
    else:
        yield f"{fingerprint.node}: {fingerprint.tool}, driver {fingerprint.driver or 'unknown'}"
        headers = ["#", "device", "memory", "ACU", "trust", "health", "faults", "NUMA"]
        body = [
            [
                str(i),
                device["model"],
                units.show_bytes(device["memory_bytes"]),
                "-" if device["acu"]["fp16"] is None else f"{device['acu']['fp16']:.0f}",
                device["acu_trust"].get("fp16", "-"),
                f"{device['health']:.2g}",
                ", ".join(device["faults"]) or "-",
                "-" if device["numa_node"] is None else str(device["numa_node"]),
            ]
            for i, device in enumerate(devices)
        ]
        yield rows(headers, body, right=(2, 3, 5, 7))
        kinds = dict.fromkeys(fingerprint.links.values())
        if kinds:
            yield "links: " + ", ".join(kinds) + ("" if fingerprint.can_p2p else "; no peer-to-peer")
    for note in fingerprint.notes:
        yield f"note: {note}"
