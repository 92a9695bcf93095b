# ruff: noqa: T201
"""Trains a small transformer for some seconds; prints its steps per second, for some kinds of work or all.

large: kernels that fill the device. small: many short kernels, and allocations: past PyTorch's cache, where a slow
library would show.
"""

import json
import sys
import time

import torch


def steps_per_s(width: int, batch: int, seconds: float) -> float:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        width, 8, 4 * width, batch_first=True, device="cuda", dtype=torch.bfloat16
    )
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(batch, 256, width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(data).float().square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        steps += 10
    return steps / (time.perf_counter() - begin)


def allocations_per_s(seconds: float) -> float:
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(20):
            torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(64 << 20))
            torch.cuda.empty_cache()
        count += 20
    return count / (time.perf_counter() - begin)


KINDS = {
    "large": lambda seconds: steps_per_s(4096, 16, seconds),
    "small": lambda seconds: steps_per_s(128, 2, seconds),
    "allocations": lambda seconds: allocations_per_s(seconds / 2),
}


def main() -> None:
    seconds, kinds = float(sys.argv[1]), sys.argv[2:] or KINDS
    print(json.dumps({kind: KINDS[kind](seconds) for kind in kinds}))


main()
