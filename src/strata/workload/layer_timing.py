"""Times of a model's layers, read off the devices they run on: the content of a profile file (`profile.py`).

Needs torch at import: `need("torch", extra="train")` first. Every kind of layer is made once, with random weights
of the model's own shapes, and trained alone: forward, backward, and one step of the optimizer on an fp32 copy.
Tensor ranks are processes, a device each, that cut blocks as Megatron does (arXiv 1909.08053, §3); embedding and
head are cut by vocabulary, their sums left out. Experts get equally many tokens, which is the best case.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional

from strata.errors import MissingPart, UsageError
from strata.workload.experts import Experts
from strata.workload.model import ModelSpec
from strata.workload.timed_attention import attention
from strata.workload.tiny import Enter, Leave, Shard, Tensor

WARM_UPS: Final = 2
"""Rounds that are not counted: libraries load, clocks rise."""
LEAST_S: Final = 0.2
"""Seconds that rounds of a layer take together: five of a small one fit into a time slice of a busy neighbour."""

_TYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """Seconds of one layer: forward and backward of a microbatch, and the optimizer's step."""

    forward_s: float
    backward_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """What layers are timed under. `device`: a torch device without its number: cpu or cuda."""

    sequence_length: int
    microbatch_sizes: tuple[int, ...] = (1,)
    tensor_parallel: int = 1
    precision: str = "bf16"
    device: str = "cpu"
    repeats: int = 5


def time_layers(spec: ModelSpec, conditions: Conditions) -> dict[int, dict[str, TimedLayer]]:
    """Return for each microbatch size the times of each kind of layer (embedding, dense or moe, head).

    They are medians of at least `repeats` rounds. Every round takes all sizes in turn, so that what else the
    machine does falls on all of them and their ratios hold.

    Raises UsageError for a shape that is not cut so or not timed, MissingPart where devices or memory are short.
    """
    _check(spec, conditions)
    ranks = conditions.tensor_parallel
    if ranks == 1:
        return _times(spec, conditions, Shard())
    with tempfile.TemporaryDirectory() as folder:
        answers = multiprocessing.get_context("spawn").SimpleQueue()
        multiprocessing.start_processes(_rank, (spec, conditions, folder, answers), ranks, start_method="spawn")
        each = [answers.get() for _ in range(ranks)]
    # All ranks wait for the slowest in every sum.
    return {
        size: {kind: _slowest([times[size][kind] for times in each]) for kind in each[0][size]} for size in each[0]
    }


def _slowest(ranks: Sequence[TimedLayer]) -> TimedLayer:
    return TimedLayer(*(max(getattr(times, name) for times in ranks) for name in TimedLayer.__slots__))


def _check(spec: ModelSpec, conditions: Conditions) -> None:
    ranks = conditions.tensor_parallel
    if not spec.can_be_profiled:
        message = f"{spec.name}: linear, indexed or uneven attention is not timed"
        raise UsageError(message, hint="strata calibrate LOG, of your runs")
    sizes = {"attention heads": spec.num_heads, "key-value heads": spec.num_kv_heads}
    if wrong := [f"{size} {what}" for what, size in sizes.items() if size % ranks]:
        raise UsageError(f"tensor parallel {ranks} does not divide the {' and '.join(wrong)} of {spec.name}")
    there = torch.cuda.device_count() if conditions.device == "cuda" else ranks
    if there < ranks:
        raise MissingPart(f"tensor parallel {ranks} needs {ranks} devices, and {there} are here")


def _rank(rank: int, spec: ModelSpec, conditions: Conditions, folder: str, answers: Any) -> None:
    if conditions.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // conditions.tensor_parallel))
    distributed.init_process_group(
        "nccl" if conditions.device == "cuda" else "gloo", init_method=f"file://{Path(folder) / 'store'}",
        rank=rank, world_size=conditions.tensor_parallel,
    )  # fmt: skip
    shard = Shard(rank, conditions.tensor_parallel, distributed.group.WORLD)
    answers.put(_times(spec, conditions, shard))
    distributed.destroy_process_group()


def _times(spec: ModelSpec, conditions: Conditions, shard: Shard) -> dict[int, dict[str, TimedLayer]]:
    try:
        kinds = {kind: _timed(spec, kind, conditions, shard) for kind in dict.fromkeys(spec.kinds)}
    except torch.OutOfMemoryError as error:
        message = f"a layer of {spec.name} does not fit this device's memory"
        raise MissingPart(message, hint="a smaller --microbatch, or a larger --tensor") from error
    return {size: {kind: times[size] for kind, times in kinds.items()} for size in conditions.microbatch_sizes}


def _timed(spec: ModelSpec, kind: str, conditions: Conditions, shard: Shard) -> dict[int, TimedLayer]:
    device, dtype = conditions.device, _TYPES[conditions.precision]
    with torch.device(device):
        layer = _layer(spec, kind, shard).to(dtype)
        masters = [nn.Parameter(weight.detach().float()) for weight in layer.parameters()]
    optimizer = torch.optim.AdamW(masters)
    inputs = {size: _inputs(spec, kind, size, conditions, shard) for size in conditions.microbatch_sizes}
    seconds: dict[int, list[tuple[float, float, float]]] = {size: [] for size in inputs}
    rounds, started = 0, time.perf_counter()
    while not _enough(rounds, time.perf_counter() - started, conditions, shard):
        for size, given in inputs.items():
            forward_s, out = _clocked(device, partial(layer, *given))
            backward_s, _ = _clocked(device, partial(out.backward, torch.ones_like(out)))
            update_s, _ = _clocked(device, lambda: _update(optimizer, masters, list(layer.parameters())))
            layer.zero_grad()
            seconds[size].append((forward_s, backward_s, update_s))
        rounds += 1
        if rounds == WARM_UPS:
            started = time.perf_counter()
    return {size: TimedLayer(*map(median, zip(*each[WARM_UPS:], strict=True))) for size, each in seconds.items()}


def _inputs(spec: ModelSpec, kind: str, size: int, conditions: Conditions, shard: Shard) -> tuple[Tensor, ...]:
    shape = (size, conditions.sequence_length)
    tokens = torch.randint(max(1, spec.vocab_size // shard.count), shape, device=conditions.device)
    if kind == "embedding":
        return (tokens,)
    dtype = _TYPES[conditions.precision]
    hidden = torch.randn(*shape, spec.hidden_size, dtype=dtype, device=conditions.device, requires_grad=True)
    return (hidden, tokens) if kind == "head" else (hidden,)


def _enough(rounds: int, spent_s: float, conditions: Conditions, shard: Shard) -> bool:
    """Return whether all ranks have enough rounds: each must stop after the same, others wait for its sums."""
    enough = rounds >= WARM_UPS + conditions.repeats and spent_s >= LEAST_S
    if shard.group is None:
        return enough
    votes = torch.tensor(float(enough), device=conditions.device)
    distributed.all_reduce(votes, distributed.ReduceOp.MIN, group=shard.group)
    return bool(votes.item())


def _clocked(device: str, work: Callable[[], Any]) -> tuple[float, Any]:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def _update(optimizer: Any, masters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for master, weight in zip(masters, weights, strict=True):
        master.grad = weight.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, weight in zip(masters, weights, strict=True):
            weight.copy_(master)


def _layer(spec: ModelSpec, kind: str, shard: Shard) -> nn.Module:
    if kind == "embedding":
        return nn.Embedding(max(1, spec.vocab_size // shard.count), spec.hidden_size)
    if kind == "head":
        return _Head(spec, shard)
    mlp: nn.Module = _Mlp(spec, spec.intermediate_size, shard)
    if kind == "moe" and spec.experts is not None:
        mlp = _Mixture(spec, spec.experts, shard)
    return _Block(spec, mlp, shard)


class _Head(nn.Module):  # type: ignore[misc]
    def __init__(self, spec: ModelSpec, shard: Shard) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(spec.hidden_size)
        self.logits = nn.Linear(spec.hidden_size, max(1, spec.vocab_size // shard.count), bias=False)

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        logits = self.logits(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, spec: ModelSpec, mlp: nn.Module, shard: Shard) -> None:
        super().__init__()
        self.group, self.mlp = shard.group, mlp
        self.norms = nn.ModuleList(nn.RMSNorm(spec.hidden_size) for _ in range(2))
        self.attention = attention(spec, shard)

    def forward(self, hidden: Tensor) -> Tensor:
        inside = Enter.apply(self.norms[0](hidden), self.group)
        hidden = hidden + Leave.apply(self.attention(inside), self.group)
        inside = Enter.apply(self.norms[1](hidden), self.group)
        return hidden + Leave.apply(self.mlp(inside), self.group)


class _Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self, spec: ModelSpec, width: int, shard: Shard) -> None:
        super().__init__()
        own = max(1, width // shard.count)
        self.gate = nn.Linear(spec.hidden_size, own, bias=False) if spec.gated_mlp else None
        self.up = nn.Linear(spec.hidden_size, own, bias=False)
        self.down = nn.Linear(own, spec.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        up = self.up(hidden)
        return self.down(functional.gelu(up) if self.gate is None else functional.silu(self.gate(hidden)) * up)


class _Mixture(nn.Module):  # type: ignore[misc]
    """Router and experts; every expert gets as many tokens, whatever the router says."""

    def __init__(self, spec: ModelSpec, experts: Experts, shard: Shard) -> None:
        super().__init__()
        own = max(1, experts.intermediate_size // shard.count)
        self.count, self.chosen = experts.num_experts, experts.experts_per_token
        self.router = nn.Linear(spec.hidden_size, experts.num_experts, bias=False)
        self.into = nn.Parameter(torch.randn(experts.num_experts, spec.hidden_size, 2 * own) * 0.02)
        self.down = nn.Parameter(torch.randn(experts.num_experts, own, spec.hidden_size) * 0.02)
        shared = experts.shared_intermediate_size
        self.shared = _Mlp(spec, shared, shard) if shared else None

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        weights = self.router(flat).softmax(-1).topk(self.chosen).values
        copies = flat.repeat_interleave(self.chosen, 0)
        short = -len(copies) % self.count
        each = functional.pad(copies, (0, 0, 0, short)).unflatten(0, (self.count, -1))
        gate, up = (each @ self.into).chunk(2, -1)
        done = ((functional.silu(gate) * up) @ self.down).flatten(0, 1)[: len(copies)]
        mixed = (done.unflatten(0, (-1, self.chosen)) * weights[..., None]).sum(1).view_as(hidden)
        return mixed if self.shared is None else mixed + self.shared(hidden)
