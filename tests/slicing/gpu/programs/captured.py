"""Captures a loop whose temporaries are 8 GiB together and 128 MiB at once, and replays it."""

import json
import sys

import torch

STEPS, SIZE = 128, 64 << 20


def main() -> None:
    device = torch.device("cuda", 0)
    total = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for step in range(STEPS):
            one = torch.full((SIZE // 4,), float(step), device=device)
            total += one[0]
            del one
    total.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    is_right = total.item() == 3 * sum(range(STEPS))
    sys.stdout.write(json.dumps({"sum": STEPS * SIZE, "is_right": is_right}) + "\n")


main()
