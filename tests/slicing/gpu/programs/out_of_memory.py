# ruff: noqa: T201
"""Takes device memory in blocks until PyTorch says no, survives that, and goes on; prints one line of JSON.

With --hold it keeps what it has until a line comes on stdin.
"""

import json
import sys

import torch

BLOCK = 256 << 20


def main() -> None:
    device = torch.device("cuda", 0)
    free, total = torch.cuda.mem_get_info(device)
    blocks = []
    said = ""
    try:
        while True:
            blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device=device))
    except torch.cuda.OutOfMemoryError as error:
        said = type(error).__name__
    full = len(blocks)
    reserved = torch.cuda.memory_reserved(device)
    if "--hold" in sys.argv:
        print(json.dumps({"bytes": full * BLOCK, "reserved": reserved}), flush=True)
        sys.stdin.readline()
    del blocks[full // 2 :]
    torch.cuda.empty_cache()
    # Goes on: what was given back can be taken, and the sums come out right.
    a = torch.arange(1024 * 1024, dtype=torch.float32, device=device).reshape(1024, 1024).remainder(7)
    is_right = torch.equal((a @ a).cpu(), a.cpu() @ a.cpu())
    again = 0
    try:
        while True:
            blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device=device))
            again += 1
    except torch.cuda.OutOfMemoryError:
        pass
    print(
        json.dumps(
            {
                "free": free,
                "total": total,
                "said": said,
                "blocks": full,
                "reserved": reserved,
                "again": again,
                "is_right": is_right,
            }
        )
    )


main()
