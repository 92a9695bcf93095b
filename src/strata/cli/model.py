"""`strata model`: what a model's shape means in parameters, memory and FLOPs."""

from __future__ import annotations

from typing import Any, Final

import click

from strata import units
from strata.cli.output import emit, output_option
from strata.cli.parameters import Whole
from strata.errors import UsageError
from strata.tables import Line, Shown, rows
from strata.workload.huggingface import model as read_model
from strata.workload.huggingface import model_names
from strata.workload.job import OPTIMIZER_BYTES
from strata.workload.layer_kinds import is_linear
from strata.workload.layer_table import layer_table
from strata.workload.model import ModelSpec
from strata.workload.precision import ELEMENT_BYTES

_SEQUENCE_LENGTH: Final = 4096
"""Shown where none is asked for; shorter where the model's positions end earlier."""

_BF16, _FP32 = ELEMENT_BYTES["bf16"], ELEMENT_BYTES["fp32"]


@click.command()
@click.argument("config", required=False)
@click.option("--sequence", type=Whole(1, 10**8), help="Tokens of one sample.  [default: 4096]")
@output_option
def model(config: str | None, sequence: int | None, output: str) -> None:
    """Show parameters, memory and FLOPs of CONFIG: a config.json, a folder with one, or a shipped name.

    \b
    strata model
    strata model llama-3.1-8b --sequence 8192
    strata model ./my-model/config.json -o json
    """
    if config is None:
        specs = [read_model(name) for name in model_names()]
        emit([_summary(spec) for spec in specs], output, _show_all(specs))
        return
    spec = read_model(config)
    data = _data(spec, _sequence_length(spec, sequence))
    emit(data, output, _show_one(spec, data))


def _sequence_length(spec: ModelSpec, sequence: int | None) -> int:
    longest = spec.max_sequence_length
    if sequence is None:
        return min(_SEQUENCE_LENGTH, longest or _SEQUENCE_LENGTH)
    if longest is not None and sequence > longest:
        raise UsageError(
            f"{spec.name} has learned positions for {longest} tokens only", hint=f"--sequence {longest}"
        )
    return sequence


def _summary(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "model_type": spec.model_type,
        "attention": spec.attention,
        "num_params": spec.num_params,
        "num_active_params": spec.num_active_params,
        "weights_bf16_bytes": spec.num_params * _BF16,
        "kv_bytes_per_token": spec.kv_bytes_per_token(_BF16),
        "state_bytes_per_sequence": spec.state_bytes(_BF16),
        "trust": spec.trust.value,
        "notes": list(spec.notes),
    }


def _data(spec: ModelSpec, sequence_length: int) -> dict[str, Any]:
    table = layer_table(spec, sequence_length, _BF16)
    same = [(kind, 0 if is_linear(kind) else spec.window(layer)) for layer, kind in enumerate(spec.kinds)]
    layers = [
        {
            "kind": kind,
            "count": same.count((kind, window)),
            "window_tokens": window or None,
            "num_params": spec.params_per_layer[first],
            "num_active_params": spec.active_params_per_layer[first],
            "forward_flop_per_sample": float(table.forward_flops[first]),
            "activation_bytes_per_sample": float(table.activation_bytes[first]),
            "checkpoint_bytes_per_sample": float(table.checkpoint_bytes[first]),
        }
        for kind, window in dict.fromkeys(same)
        for first in [same.index((kind, window))]
    ]
    optimizer_bytes = spec.num_params * OPTIMIZER_BYTES["adamw"]
    return {
        **_summary(spec),
        "weights_fp32_bytes": spec.num_params * _FP32,
        "adam_bytes": optimizer_bytes,
        "training_state_bytes": spec.num_params * 2 * _BF16 + optimizer_bytes,
        "sequence_tokens": sequence_length,
        "forward_flop_per_token": float(table.forward_flops.sum()) / sequence_length,
        "activation_bytes_per_sample": float(table.activation_bytes.sum()),
        "layers": layers,
    }


def _show_all(specs: list[ModelSpec]) -> Shown:
    body = [
        (
            spec.name,
            spec.attention,
            units.show_count(spec.num_params),
            units.show_count(spec.num_active_params),
            units.show_bytes(spec.num_params * _BF16),
            units.show_bytes(spec.kv_bytes_per_token(_BF16)),
        )
        for spec in specs
    ]
    headers = ("name", "attention", "parameters", "active", "bf16 weights", "KV/token")
    yield rows(headers, body, right=(2, 3, 4, 5))
    yield "\n`strata model NAME` shows one in full; a Hugging Face config.json works too."


def _show_one(spec: ModelSpec, data: dict[str, Any]) -> Shown:
    sequence_length = data["sequence_tokens"]
    yield Line(f"{spec.name} ({spec.model_type}, {spec.attention}), figures {spec.trust.value}", style="bold")
    facts = (
        ("parameters", f"{spec.num_params:,}"),
        ("active per token", f"{spec.num_active_params:,}"),
        ("weights", f"{units.show_bytes(data['weights_bf16_bytes'])} bf16, "
                    f"{units.show_bytes(data['weights_fp32_bytes'])} fp32"),
        ("Adam, fp32 master", units.show_bytes(data["adam_bytes"])),
        ("training state", f"{units.show_bytes(data['training_state_bytes'])} (weights, gradients in bf16; Adam)"),
        ("KV cache per token", f"{units.show_bytes(data['kv_bytes_per_token'])} bf16"),
        ("forward per token", f"{data['forward_flop_per_token'] / 1e9:,.4g} GFLOP")
    )  # fmt: skip
    for label, value in facts:
        yield f"{label:<19}{value}"
    if data["state_bytes_per_sequence"]:
        yield f"{'linear attention':<19}{units.show_bytes(data['state_bytes_per_sequence'])} a sequence, bf16"
    body = [
        (
            layer["kind"] + (f", window {layer['window_tokens']}" if layer["window_tokens"] else ""),
            str(layer["count"]),
            units.show_count(layer["num_params"]),
            f"{layer['count'] * layer['num_params'] / spec.num_params:.1%}",
            f"{layer['forward_flop_per_sample'] / 1e12:,.4g}",
            units.show_bytes(layer["activation_bytes_per_sample"]),
        )
        for layer in data["layers"]
    ]
    headers = ("layer", "count", "params each", "of all", "forward TFLOP", "activations")
    yield f"\nEach layer, one sample of {sequence_length:,} tokens:"
    yield rows(headers, body, right=(1, 2, 3, 4, 5))
    for note in spec.notes:
        yield Line(f"\nnote: {note}", is_whole=True)
