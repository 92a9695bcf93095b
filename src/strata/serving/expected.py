"""What nodes are expected to take: the roofline, and what was measured of their accelerators over it.

`strata serve calibrate` measures accelerators (`ServingJob.calibration`); single nodes measure themselves, and
correct these terms (`simulate/inference/calibration.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.serving.layout import StepCurve
from strata.serving.node import Node
from strata.serving.planning.allocation import Stage
from strata.simulate.inference.roofline import Rates, Terms, decode_s, decode_terms, parts_of, prefill_terms
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand, Derating, ServingRatios

CURVE: Final = tuple(2.0**i for i in range(10))
"""Sequences at which simulations know how long a step takes."""


def expected_terms(
    nodes: Sequence[Node], model: ModelInfo, demand: Demand, derating: Derating
) -> tuple[Terms, Terms]:
    """Return the terms of a decode step and of a prompt, as measured of accelerators, before nodes are."""
    rates = _rates(nodes, model, derating)
    decode = decode_terms(model, rates, batch=demand.batch, context=demand.context)
    prefill = prefill_terms(model, rates, tokens=demand.prompt_tokens)
    if not derating.ratios:
        return decode, prefill
    step, sequence, context, prompt, _ = _ratios(nodes, derating)
    alone = decode.fixed_s + decode.per_unit_s
    return (
        decode._replace(
            fixed_s=step * decode.fixed_s,
            per_unit_s=step * decode.per_unit_s + sequence * alone,
            per_unit_context_s=context * decode.per_unit_context_s,
        ),
        prefill._replace(
            fixed_s=step * prefill.fixed_s,
            per_unit_s=prompt * prefill.per_unit_s,
            per_unit_context_s=prompt * prefill.per_unit_context_s,
        ),
    )


def _ratios(nodes: Sequence[Node], derating: Derating) -> Floats:
    """Return what was measured of each node's accelerator over what is expected [5, N, 1]."""
    ratios = [derating.ratios.get(node.accelerator, ServingRatios()) for node in nodes]
    return np.array(ratios, dtype=float).T[..., np.newaxis]


def step_curves(nodes: Sequence[Node], model: ModelInfo, derating: Derating) -> Floats:
    """Return the seconds of decode steps at `CURVE` with nothing cached [C, N, L + 1]."""
    rates = _rates(nodes, model, derating)
    steps = np.array([decode_s(model, rates, batch=sequences, context=0.0) for sequences in CURVE])
    step, sequence, *_ = _ratios(nodes, derating)
    curves: Floats = step * steps + sequence * steps[0] * np.array(CURVE)[:, np.newaxis, np.newaxis]
    return curves


def curve_of(steps_s: Floats, terms: Terms, stage: Stage, num_layers: int) -> StepCurve:
    """Return the curve of a stage; terms: of its node, whose cached tokens a simulation goes by."""
    parts = parts_of(num_layers, stage.first, stage.end)
    return StepCurve(
        CURVE, tuple(steps_s[:, parts].sum(axis=1).tolist()), float(terms.per_unit_context_s[parts].sum())
    )


def _rates(nodes: Sequence[Node], model: ModelInfo, derating: Derating) -> Rates:
    flops = np.array([node.compute_capability for node in nodes], dtype=float)
    bandwidth = np.array([node.memory_bandwidth_bytes_per_s for node in nodes], dtype=float)
    stated, of_bandwidth = derating.flops_efficiency, derating.bandwidth_efficiency
    shares = [node.shares for node in nodes]
    matmul, narrow, attention, memory = (
        np.array([getattr(each, name) for each in shares], dtype=float)
        for name in ("matmul", "matmul_fp8", "attention", "memory")
    )
    if stated is not None:
        matmul = narrow = attention = np.full(len(nodes), stated)
    speedup = np.ones(len(nodes))
    if model.weights == "fp8":
        fp8 = narrow * np.array([node.fp8_capability for node in nodes], dtype=float)
        np.divide(fp8, matmul * flops, out=speedup, where=(fp8 > 0) & (flops > 0))
    return Rates(
        flops * matmul,
        bandwidth * (memory if of_bandwidth is None else of_bandwidth),
        speedup,
        attention / matmul,
        ranks=np.array([node.num_devices for node in nodes], dtype=int),
        intra_bandwidth_bytes_per_s=np.array([node.intra_bandwidth_bytes_per_s for node in nodes]),
        intra_latency_s=np.array([node.intra_latency_s for node in nodes]),
    )
