"""One domain's process: does the tasks it is told, one JSON line each, and answers each with one.

Runs as `python -m strata.evaluation.testbed.worker RANK WORLD_SIZE MASTER_ADDRESS PORT INTERFACE` in the domain's
namespace. What trains is what `strata export --to torchrun` writes (`export/train.py`), with two things that a
cost model of asynchronous links takes for granted and plain gloo does not do: a message is on its way once it is
sent (gloo moves nothing before the other side has asked for it), and gradients are summed while the last backward
runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import distributed, nn
from torch.nn import functional

from strata.training.export.train import Stage
from strata.workload.tiny import Size

Tensor: TypeAlias = Any

_LEARNING_RATE: Final = 3e-3


class OverlappedStage(Stage):
    """A stage that asks for its messages a step ahead, and sums a layer's gradients as soon as they are final."""

    def __init__(self, launch: dict[str, Any], size: Size) -> None:
        super().__init__(launch, size, torch.device("cpu"))
        self.pending: dict[int, deque[tuple[Any, Tensor]]] = {}
        for edge in (*self.previous[:1], *self.next_back[:1]):
            self.pending[id(edge)] = deque(self._ask(edge) for _ in range(self.pipeline["microbatches"]))
        self.backwards_left = 0
        self.summing: list[tuple[Any, Tensor, list[Tensor]]] = []
        if self.data_groups:
            ranks = launch["data_groups"][self.data_groups[0][0]]["ranks"]
            for layer in self.layers.values():
                self._sum_when_final(layer, distributed.new_group(ranks))

    def step(self, number: int) -> float:
        """Do one step; return this stage's loss."""
        self.backwards_left = self.pipeline["microbatches"]
        return super().step(number)

    def _ask(self, edge: tuple[int, Any]) -> tuple[Any, Tensor]:
        x = torch.empty(self.plan["microbatch_size"], self.size.sequence_length, self.size.hidden_size)
        return distributed.irecv(x, edge[0], group=edge[1]), x

    def _receive(self, edge: tuple[int, Any]) -> Tensor:
        work, x = self.pending[id(edge)].popleft()
        work.wait()
        self.pending[id(edge)].append(self._ask(edge))
        return x

    def _backward(self, x: Tensor, y: Tensor, chunk: int) -> Tensor:
        self.backwards_left -= 1
        return super()._backward(x, y, chunk)

    def _sum_when_final(self, layer: nn.Module, group: Any) -> None:
        """Sum a layer's gradients in the last backward; a group a layer, for gloo runs but two sums of a group."""
        parameters = list(layer.parameters())
        missing = [len(parameters)]

        def gradient_done(_parameter: Tensor) -> None:
            if self.backwards_left:
                return
            missing[0] -= 1
            if missing[0] == 0:
                missing[0] = len(parameters)
                flat = torch.cat([p.grad.flatten() for p in parameters])
                work = distributed.all_reduce(flat, group=group, async_op=True)
                self.summing.append((work, flat, parameters))

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(gradient_done)

    def _sum_gradients(self) -> None:
        for work, flat, parameters in self.summing:
            work.wait()
            for p, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad.copy_(summed.view_as(p))
        self.summing.clear()

    def timed_microbatch(self) -> tuple[list[float], list[float]]:
        """Work through one microbatch of the whole model layer by layer: forward and backward seconds of each."""
        forward_s, backward_s, edges = [], [], []
        y: Tensor = None
        for index, layer in enumerate(self.layers.values()):
            start = time.perf_counter()
            x = self._tokens(0, 0)[:, :-1] if index == 0 else y.detach().requires_grad_()
            y = layer(x)
            if index == len(self.layers) - 1:
                y = functional.cross_entropy(y.flatten(0, 1), self._tokens(0, 0)[:, 1:].flatten())
            forward_s.append(time.perf_counter() - start)
            edges.append((x, y))
        gradient = None
        for x, y in reversed(edges):
            start = time.perf_counter()
            y.backward(gradient)
            gradient = x.grad
            backward_s.append(time.perf_counter() - start)
        return forward_s, backward_s[::-1]


def steps(launch: dict[str, Any], size: dict[str, int], warmup: int, count: int) -> dict[str, Any]:
    """Train; return the seconds of each step after the warm-up, and this stage's losses."""
    stage = OverlappedStage(launch, Size(**size))
    seconds, losses = [], []
    distributed.barrier()
    start = time.perf_counter()
    for number in range(warmup + count):
        losses.append(stage.step(number))
        stage.update(number, _LEARNING_RATE)
        end = time.perf_counter()
        seconds.append(end - start)
        start = end
    distributed.barrier()
    return {"seconds": seconds[warmup:], "losses": losses}


def layers(launch: dict[str, Any], size: dict[str, int], warmup: int, count: int) -> dict[str, Any]:
    """Time the layers of the whole model and the update, all processes at once and none waiting for another."""
    stage = OverlappedStage(launch, Size(**size))
    results: dict[str, list[Any]] = defaultdict(list)
    distributed.barrier()
    for number in range(warmup + count):
        for _ in range(stage.pipeline["microbatches"]):
            forward_s, backward_s = stage.timed_microbatch()
            results["forward_s"].append(forward_s)
            results["backward_s"].append(backward_s)
        start = time.perf_counter()
        stage.update(number, _LEARNING_RATE)
        results["update_s"].append(time.perf_counter() - start)
    distributed.barrier()
    return {key: value[len(value) * warmup // (warmup + count) :] for key, value in results.items()}


def messages(num_bytes: int, warmup: int, count: int) -> dict[str, Any]:
    """Time a message from rank 0 to rank 1 and an empty answer, several in turn."""
    rank, total = distributed.get_rank(), warmup + count
    there = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(total)]
    back = [torch.zeros(1, dtype=torch.uint8) for _ in range(total)]
    receives = {0: back, 1: there}.get(rank, [])
    pending = [distributed.irecv(x, 1 - rank) for x in receives]
    distributed.barrier()
    seconds = []
    for index in range(total if rank < 2 else 0):
        start = time.perf_counter()
        if rank == 0:
            distributed.isend(there[index], 1).wait()
        pending[index].wait()
        if rank == 1:
            distributed.isend(back[index], 0).wait()
        seconds.append(time.perf_counter() - start)
    distributed.barrier()
    return {"seconds": seconds[warmup:]}


def sums(num_bytes: int, parts: int, warmup: int, count: int) -> dict[str, Any]:
    """Time a sum over all ranks, several parts at a time, each gathered and handed back as a layer's gradients."""
    ranks = list(range(distributed.get_world_size()))
    groups = [distributed.new_group(ranks) for _ in range(parts)]
    tensors = [torch.zeros(num_bytes // 8 // parts) for _ in range(2 * parts)]
    pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
    seconds = []
    for _ in range(warmup + count):
        distributed.barrier()
        start = time.perf_counter()
        summing = []
        for pair, group in zip(pairs, groups, strict=True):
            flat = torch.cat(pair)
            summing.append((distributed.all_reduce(flat, group=group, async_op=True), flat, pair))
        for work, flat, (first, other) in summing:
            work.wait()
            first.copy_(flat[: first.numel()])
            other.copy_(flat[first.numel() :])
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[warmup:]}


TASKS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "steps": steps,
    "layers": layers,
    "messages": messages,
    "sums": sums,
}


def main(rank: str, world_size: str, host: str, port: str, interface: str) -> None:
    """Join the others, then do tasks until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo prints to stdout
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    os.nice(-15)  # what else runs on the machine is no part of the measurement
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{host}:{port}", rank=int(rank), world_size=int(world_size)
    )
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        do = partial(TASKS[task.pop("do")], **task)
        print(json.dumps(do()), file=answers, flush=True)
    os._exit(0)  # messages asked for and never sent would keep gloo waiting


if __name__ == "__main__":
    main(*sys.argv[1:])
