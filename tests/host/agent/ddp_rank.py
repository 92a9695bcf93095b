"""One rank of a small torch job, DDP over gloo: `ddp_rank.py FILE` trains until it is killed, a line a step.

Each step is a fifth of a second of one CPU and one small all-reduce: all ranks go at the pace of the last, and
the last one waits for its own work, hardly for the threads that send.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SIZE, LAYERS, ROWS = 64, 8, 50_000


def train(path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(SIZE, SIZE) for _ in range(LAYERS)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(ROWS, SIZE)
    with open(path, "w") as progress:
        step = 0
        while True:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            progress.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
            progress.flush()


train(sys.argv[1])
