"""Small fleets and jobs in one line each, so that a scheduling test is data."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from strata.decision import Trust
from strata.fleet.accelerator import Accelerator
from strata.fleet.fleet import Domain, Fleet, Link
from strata.workload.job import Recompute, TrainingJob
from strata.workload.layers import LayerTable

GBPS = 1e9 / 8


def card(name: str = "card", *, tflops: float = 100.0, gib: float = 80.0) -> Accelerator:
    return Accelerator(
        name,
        "test",
        gib * 2**30,
        fp16_flops=tflops * 1e12,
        fp32_flops=tflops * 1e12 / 16,
        memory_bandwidth_bytes_per_s=2e12,
        trust=Trust.ANALYTIC,
    )


def domain(name: str, devices: int = 8, *, per_node: int = 8, price: float | None = 2.0, **more: Any) -> Domain:
    return Domain(
        name=name,
        accelerator=more.pop("accelerator", None) or card(),
        num_devices=devices,
        devices_per_node=min(per_node, max(devices, 1)),
        intra_bandwidth_bytes_per_s=300e9,
        intra_latency_s=5e-6,
        network_bandwidth_bytes_per_s=50e9,
        network_latency_s=10e-6,
        price_usd_per_device_hour=price,
        **more,
    )


def link(source: str, dest: str, gbps: float, ms: float, *, usd_per_gb: float = 0.02) -> list[Link]:
    return [
        Link(a, b, gbps * GBPS, ms / 1e3, usd_per_gb / 1e9, trust=Trust.ANALYTIC)
        for a, b in ((source, dest), (dest, source))
    ]


def fleet(*domains: Domain, links: list[Link] | None = None, gbps: float = 5.0, ms: float = 30.0) -> Fleet:
    """A fleet whose domains are all joined by like links, unless `links` names them."""
    if links is None:
        links = [one for a, b in combinations(domains, 2) for one in link(a.name, b.name, gbps, ms)]
    return Fleet("test", domains, {(one.source, one.dest): one for one in links})


def layers(
    count: int = 8, *, gflops: float = 4000.0, mparams: float = 100.0, hidden_mib: float = 32.0
) -> LayerTable:
    """An embedding, `count` like layers and a head; figures are per layer and sample."""
    ones = np.ones(count + 2)
    flops = ones * gflops * 1e9
    flops[0], flops[-1] = 0.0, gflops * 0.5e9
    return LayerTable(
        kinds=("embedding", *["dense"] * count, "head"),
        forward_flops=flops,
        params=ones * mparams * 1e6,
        activation_bytes=ones * hidden_mib * 2**20 * 17,
        checkpoint_bytes=ones * hidden_mib * 2**20,
        boundary_bytes=ones * hidden_mib * 2**20,
    )


def tied(table: LayerTable, params: float) -> LayerTable:
    """The same layers with a head tied to the embedding, whose table has so many parameters."""
    return replace(table, tied_params=np.append(np.zeros(len(table) - 1), params))


def job(table: LayerTable | None = None, *, batch: int = 64, **more: Any) -> TrainingJob:
    more.setdefault("recompute", (Recompute.NONE,))
    return TrainingJob(
        name="test",
        layers=table or layers(),
        sequence_length=4096,
        num_heads=32,
        global_batch=batch,
        **more,
    )
