"""A small case file: two accelerator types, three zones in two regions, a model of a few layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strata.evaluation.published_benchmarks.case_file import CaseFile, read_cases

ZONES = ("east-a", "east-b", "west-a")
TYPES = {"fast": 1.0, "slow": 2.7}
"""Accelerators by how many times longer a layer takes."""


def case_data(quota: dict[str, dict[str, int]], *, layers: int = 6, **point: Any) -> dict[str, Any]:
    """Return the JSON of a case file with the one case `c` and its one point `p`."""
    return {
        "models": {"tiny": _model(layers)},
        "gpus": {
            "fast": {"memory_GiB": 16, "gpus_per_node": 2, "price_usd_per_hour": 4.0},
            "slow": {"memory_GiB": 6, "gpus_per_node": 2, "price_usd_per_hour": 1.5},
        },
        "network": {"inter_node": {a: _from_zone(a) for a in ZONES}},
        "prices": {"egress_usd_per_GB": {a: {b: _price(a, b) for b in ZONES} for a in ZONES}},
        "cases": [
            {
                "id": "c",
                "model": "tiny",
                "global_batch": 24,
                "points": [{"id": "p", "gpus_per_zone": quota, **point}],
            }
        ],
    }


def case_file(folder: Path, quota: dict[str, dict[str, int]], *, layers: int = 6, **point: Any) -> CaseFile:
    """Write and read that file."""
    path = folder / "cases.json"
    path.write_text(json.dumps(case_data(quota, layers=layers, **point)))
    return read_cases(path)


def _model(layers: int) -> dict[str, Any]:
    params = [40_000_000, *[12_000_000] * (layers - 2), 38_000_000]
    activations = [2_000_000, *[90_000_000] * (layers - 2), 150_000_000]
    return {
        "n_layers": layers,
        "params": {str(tp): [p // tp for p in params] for tp in (1, 2)},
        "act_mem_elems": {str(tp): [a // tp for a in activations] for tp in (1, 2)},
        "act_out_elems": [*[2_000_000] * (layers - 1), 9_000_000],
        "profile": {gpu: _profile(layers, slowness) for gpu, slowness in TYPES.items()},
    }


def _profile(layers: int, slowness: float) -> dict[str, Any]:
    times = {}
    for mbs in (1, 2):
        for tp in (1, 2):
            layer = slowness * (0.004 * mbs + 0.001) * (1 / tp + 0.15 * (tp - 1))
            row = [layer / 20, *[layer] * (layers - 2), layer * 1.4]
            times[f"{mbs},{tp}"] = {
                "fwd_s": [t / 3 for t in row],
                "bwd_s": [t * 2 / 3 for t in row],
                "update_s": [0.003 / tp] * layers,
            }
    return times


def _from_zone(zone: str) -> dict[str, Any]:
    return {gpu: {str(n): {b: _to_gpus(zone, b, gpu, n) for b in ZONES} for n in (1, 2)} for gpu in TYPES}


def _to_gpus(a: str, b: str, gpu: str, n: int) -> dict[str, Any]:
    reach = 1.0 if a == b else 0.9 if a[:4] == b[:4] else 0.2
    return {
        other: {
            str(m): {"coefs": [-0.002, 0.1 * reach, reach * min(n, m) * (1.0 if gpu == other else 0.7)]}
            for m in (1, 2)
        }
        for other in TYPES
    }


def _price(a: str, b: str) -> float:
    return 0.0 if a == b else 0.01 if a[:4] == b[:4] else 0.02
