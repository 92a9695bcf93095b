"""Train a tiny transformer exactly as a plan says: its layers on its ranks, its schedule, its gradient sums.

Written into a launch folder by `strata export --to torchrun`; needs torch, and `ranks.json`, `tiny.py` and
`client.py` beside it. It does what `docs/training-program.md` asks of a program that the scheduler runs: reports
steps, saves on SIGTERM, and takes up the newest checkpoint whatever plan wrote it. Every process prints which part
of the plan it runs, so a launch can be compared with the plan before the real model goes in. NCCL where every
process has its own GPU, else gloo on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from strata.training.program.client import STOPPED, Attempt, num_samples, sample_range
from strata.workload.tiny import Shard, Size, build_layer

Tensor: TypeAlias = Any


class Stage:
    """The part of a plan that this process runs."""

    def __init__(self, launch: dict[str, Any], size: Size, device: Any) -> None:
        self.me = me = launch["ranks"][distributed.get_rank()]
        self.size, self.device = size, device
        self.launch, self.plan = launch, launch["plan"]
        self.pipeline = self.plan["pipelines"][me["pipeline"]]
        tensor_group = _groups(launch["tensor_groups"], me["rank"])
        count = self.pipeline["stages"][me["stage"]]["tensor_parallel"]
        shard = Shard(me["tensor_rank"], count, tensor_group[0][1] if tensor_group else None)
        self.shard = shard
        held = [range(first, last + 1) for first, last in me["chunks"]]
        self.layers = {n: build_layer(size, n, shard=shard).to(device) for chunk in held for n in chunk}
        self.chunks = [[self.layers[n] for n in chunk] for chunk in held]
        self.parameters = list(nn.ModuleList(self.layers.values()).parameters())
        self.moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters}
        self.data_groups = _groups([group["ranks"] for group in launch["data_groups"]], me["rank"])
        self.last_chunk = len(self.chunks) - 1
        self.turns = launch["turns"][me["pipeline"]][me["stage"]].split()
        self.has_weights_apart = any(turn.startswith("W") for turn in self.turns)
        forwards, backwards = _edges(launch["pipeline_groups"], is_ring=self.last_chunk > 0)
        # One group a direction: NCCL runs the messages of one group in order, and 1F1B crosses its directions.
        there, back = _groups(forwards, me["rank"]), _groups(backwards, me["rank"])
        self.previous, self.next = _ends(there, forwards, me["rank"])
        self.next_back, self.previous_back = _ends(back, backwards, me["rank"])
        self.is_first, self.is_last = me["stage"] == 0, me["stage"] == len(self.pipeline["stages"]) - 1
        self.sending: list[tuple[Any, Tensor]] = []

    def step(self, number: int) -> float:
        """Work through all microbatches in the plan's order and sum gradients; return this stage's loss."""
        running: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        loss = 0.0
        for turn in self.turns:
            microbatch, chunk = map(int, turn[1:].split("."))
            key = microbatch, chunk
            if turn.startswith("F"):
                running[key] = self._forward(number, microbatch, chunk)
                if self._is_end(chunk):
                    loss += float(running[key][1].detach())
            elif turn.startswith("W"):
                y, gradient = running.pop(key)
                parameters = [p for layer in self.chunks[chunk] for p in layer.parameters()]
                torch.autograd.backward(y, gradient, inputs=parameters)
            else:
                x, y = running.pop(key)
                gradient = self._backward(x, y, chunk)
                if self.has_weights_apart:
                    running[key] = y, gradient
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()
        self._sum_gradients()
        return loss

    def update(self, number: int, learning_rate: float) -> None:
        """Step Adam (arXiv 1412.6980, algorithm 1). By hand: torch.optim loads a compiler first, for seconds."""
        with torch.no_grad():
            for p, (mean, square) in self.moments.items():
                mean.lerp_(p.grad, 0.1)
                square.lerp_(p.grad**2, 0.001)
                root = (square / (1 - 0.999 ** (number + 1))).sqrt() + 1e-8
                p -= learning_rate / (1 - 0.9 ** (number + 1)) * mean / root
                p.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return weights and moments by name, the same names in every plan; parts of tensors as DTensors."""
        mesh = None
        if self.shard.group is not None:
            # torch.distributed.checkpoint cuts what these hold anew where another plan has other shards.
            mesh = distributed.device_mesh.DeviceMesh.from_group(self.shard.group, self.device.type)
        held = {}
        for n, layer in self.layers.items():
            for name, p in layer.named_parameters():
                for kind, x in zip(("weight", "mean", "square"), (p.data, *self.moments[p]), strict=True):
                    held[f"{n}.{name}.{kind}"] = _sharded(x, mesh) if mesh is not None and p.sharded else x
        return held

    @property
    def is_saved(self) -> bool:
        """Whether this rank writes its part of a checkpoint: all copies of a layer are alike."""
        return bool(self.me["pipeline"] == 0 and self.me["copy"] == 0)

    def _is_start(self, chunk: int) -> bool:
        return self.is_first and chunk == 0

    def _is_end(self, chunk: int) -> bool:
        return self.is_last and chunk == self.last_chunk

    def _forward(self, number: int, microbatch: int, chunk: int) -> tuple[Tensor, Tensor]:
        batch = self._tokens(number, microbatch)
        x = batch[:, :-1] if self._is_start(chunk) else self._receive(self.previous[0]).requires_grad_()
        y, some = x, self.pipeline["stages"][self.me["stage"]].get("recompute_layers")
        for at, layer in enumerate(self.chunks[chunk]):
            recompute = self.plan["recompute"] == "full" and y.requires_grad
            recompute &= some is None or (chunk == 0 and at < some)
            y = checkpoint(layer, y, use_reentrant=False) if recompute else layer(y)
        if self._is_end(chunk):
            losses = functional.cross_entropy(y.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
            real = losses.view(batch.shape[0], -1).mean(1)[: self._samples(microbatch)]
            return x, real.sum() / self._batch()
        for edge in self.next:
            self._send(y.detach(), edge)
        return x, y

    def _backward(self, x: Tensor, y: Tensor, chunk: int) -> Tensor:
        """Send the gradient of the input on; return that of the output."""
        gradient = None if self._is_end(chunk) else self._receive(self.next_back[0])
        if not self.has_weights_apart:
            y.backward(gradient)
        elif x.requires_grad:
            torch.autograd.backward(y, gradient, inputs=[x], retain_graph=True)
        if not self._is_start(chunk):
            for edge in self.previous_back:
                self._send(x.grad, edge)
        return gradient

    def _batch(self) -> int:
        return sum(num_samples(self.plan, p) for p in self.plan["pipelines"])

    def _samples(self, microbatch: int) -> int:
        """Return how many samples of a microbatch count: the rest of a short one is padding."""
        size: int = self.plan["microbatch_size"]
        return max(0, min(size, len(sample_range(self.launch, self.me["rank"])) - microbatch * size))

    def _tokens(self, number: int, microbatch: int) -> Tensor:
        """Return one microbatch [B, T + 1]: consecutive tokens from random starts, the same in any plan."""
        generator = torch.Generator().manual_seed(number)
        starts = torch.randint(self.size.vocab_size, (self._batch(), 1), generator=generator)
        size: int = self.plan["microbatch_size"]
        first = sample_range(self.launch, self.me["rank"]).start + microbatch * size
        start = functional.pad(starts[first : first + size], (0, 0, 0, max(0, first + size - len(starts))))
        return ((start + torch.arange(self.size.sequence_length + 1)) % self.size.vocab_size).to(self.device)

    def _receive(self, edge: tuple[int, Any]) -> Tensor:
        shape = (self.plan["microbatch_size"], self.size.sequence_length, self.size.hidden_size)
        x = torch.empty(shape, device=self.device)
        distributed.recv(x, edge[0], group=edge[1])
        return x

    def _send(self, x: Tensor, edge: tuple[int, Any]) -> None:
        x = x.contiguous()
        self.sending.append((distributed.isend(x, edge[0], group=edge[1]), x))

    def _sum_gradients(self) -> None:
        """Sum each shard of each layer over all ranks that hold it; tensors held whole count once a shard."""
        whole = {p: p.grad.clone() for p in self.parameters if not p.sharded}
        for index, group in self.data_groups:
            data = self.launch["data_groups"][index]
            layers = [self.layers[n] for n in range(data["first_layer"], data["last_layer"] + 1)]
            parameters = [p for layer in layers for p in layer.parameters()]
            parts = [self._part(p.grad, data) if p.sharded else p.grad for p in parameters]
            sources = [part if p.sharded else whole[p] for p, part in zip(parameters, parts, strict=True)]
            flat = torch.cat([source.flatten() for source in sources])
            distributed.all_reduce(flat, group=group)
            for part, summed in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(summed.view_as(part))

    def _part(self, gradient: Tensor, data: dict[str, Any]) -> Tensor:
        """Return the view of a sharded gradient that a data group sums."""
        held = data["num_shards"] // self.shard.count
        return gradient.chunk(held)[data["shard"] - self.shard.rank * held]


def _sharded(x: Tensor, mesh: Any) -> Tensor:
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(x, mesh, [Shard(0)])


def _save(attempt: Attempt, stage: Stage, step: int) -> None:
    from torch.distributed import checkpoint as shards

    shards.save(stage.state() if stage.is_saved else {}, checkpoint_id=attempt.begin(step))
    distributed.barrier()
    if attempt.rank == 0:
        attempt.finish(step)


def _load(attempt: Attempt, stage: Stage) -> int:
    """Take up the newest complete checkpoint; return how many steps are in it, 0 where there is none."""
    from torch.distributed import checkpoint as shards

    newest = attempt.newest()
    # Rank 0 says which: a folder that is being cleaned up may look different to the others.
    step = torch.tensor(newest.step if newest else 0, device=stage.device)
    distributed.broadcast(step, 0)
    if int(step):
        shards.load(stage.state(), checkpoint_id=attempt.path(int(step)))
    return int(step)


def _groups(all_ranks: list[list[int]], rank: int) -> list[tuple[int, Any]]:
    """Make all groups of more than one rank (every process must, in one order); return those of `rank`."""
    made = [(index, distributed.new_group(ranks)) for index, ranks in enumerate(all_ranks) if len(ranks) > 1]
    return [(index, group) for index, group in made if rank in all_ranks[index]]


def _edges(chains: list[list[int]], *, is_ring: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Return who sends to whom, [source, dest]: every stage rank hears from one rank each side.

    is_ring: stages interleave, so the last sends on to the first, too.
    """
    source: dict[int, int] = {}
    dest: dict[int, int] = {}
    for chain in chains:
        for here, there in pairwise([*chain, chain[0]] if is_ring else chain):
            source.setdefault(there, here)
            dest.setdefault(here, there)
    return [[here, there] for there, here in source.items()], [[there, here] for here, there in dest.items()]


def _ends(
    groups: list[tuple[int, Any]], edges: list[list[int]], rank: int
) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
    """Return the edges that end at a rank and those that start there, each as (the other rank, group)."""
    into = [(edges[index][0], group) for index, group in groups if edges[index][1] == rank]
    out = [(edges[index][1], group) for index, group in groups if edges[index][0] == rank]
    return into, out


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--hidden-size", type=int, help="default: 16 for each head")
    parser.add_argument("--num-heads", type=int, help="default: 4, or what all tensor-parallel degrees divide")
    parser.add_argument("--sequence-length", type=int, default=32)
    return parser.parse_args()


def _lines(me: dict[str, Any]) -> Iterator[str]:
    layers = ",".join(f"{first}-{last}" for first, last in me["chunks"])
    yield f"rank {me['rank']} stage {me['stage']} layers {layers}"
    yield f"domain {me['domain']} node {me['node']} device {me['local_rank']}"
    yield f"pipeline {me['pipeline']} copy {me['copy']} tensor {me['tensor_rank']}"


def main() -> int:
    """Train and print the rank map and the losses. Returns 0, or 143 after a stop that saved."""
    arguments, attempt = _arguments(), Attempt.of(os.environ)
    launch = attempt.launch() or json.loads(Path(__file__).with_name("ranks.json").read_text(encoding="utf-8"))
    local_rank = int(os.environ["LOCAL_RANK"])
    is_cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if is_cuda else "gloo")
    me = launch["ranks"][distributed.get_rank()]
    if distributed.get_world_size() != launch["world_size"] or local_rank != me["local_rank"]:
        sys.exit(f"this is not the launch of ranks.json: {distributed.get_world_size()} processes, {local_rank=}")
    degrees = lcm(*(stage["tensor_parallel"] for p in launch["plan"]["pipelines"] for stage in p["stages"]))
    heads = arguments.num_heads or lcm(4, degrees)
    size = Size(
        launch["num_layers"],
        hidden_size=arguments.hidden_size or 16 * heads,
        num_heads=heads,
        sequence_length=arguments.sequence_length,
    )
    stage = Stage(launch, size, device)
    # One write for the whole line: the processes of a node share this pipe, and print() may write it in pieces.
    sys.stdout.write(" ".join(_lines(me)) + "\n")
    sys.stdout.flush()
    number = _load(attempt, stage) if attempt.checkpoints else 0
    steps, is_stopping = attempt.steps or arguments.steps, False
    while number < steps and not is_stopping:
        start = time.perf_counter()
        stage_loss = stage.step(number)
        stage.update(number, arguments.learning_rate)
        # Summed with the loss: SIGTERM reaches the ranks at different times, and all stop after the same step.
        sums = torch.tensor([stage_loss if me["tensor_rank"] == 0 else 0.0, attempt.is_stopping], device=device)
        distributed.all_reduce(sums)
        loss, step_time_s = float(sums[0]), time.perf_counter() - start
        if me["rank"] == 0:
            print(f"step {number} loss {loss:.4f} time {step_time_s:.6f}s", flush=True)  # noqa: T201
        number += 1
        attempt.report(number, loss=loss, step_time_s=step_time_s)
        is_stopping = bool(sums[1] > 0)
        if attempt.checkpoints and (is_stopping or attempt.is_due(number) or number == steps):
            _save(attempt, stage, number)
    distributed.destroy_process_group()
    return 0 if number == steps else STOPPED


if __name__ == "__main__":
    sys.exit(main())
