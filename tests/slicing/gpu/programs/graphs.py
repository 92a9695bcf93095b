# ruff: noqa: T201
"""A CUDA graph is captured and replayed, beside ordinary work; prints one line of JSON."""

import json

import torch


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).to(device)
    static = torch.randn(64, 512, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(static)
    is_same = True
    for _ in range(100):
        fresh = torch.randn(64, 512, device=device)
        static.copy_(fresh)
        graph.replay()
        with torch.no_grad():
            is_same &= torch.allclose(out, model(fresh), atol=1e-5)
    said = ""
    try:
        torch.empty(5 << 30, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError as error:
        said = type(error).__name__
    graph.replay()
    torch.cuda.synchronize()
    print(json.dumps({"is_same": bool(is_same), "said": said}))


main()
