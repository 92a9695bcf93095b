"""The whole model in one process: what a chain of workers must say, token for token. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from strata.serving.worker.holder import Draw
from strata.serving.worker.kv import KvCache
from strata.serving.worker.model import LayerMaker
from strata.serving.worker.shape import Shape


@contextmanager
def one_thread() -> Iterator[None]:
    """Let this thread multiply matrices alone, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def generate(
    shape: Shape,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    stop_tokens: Sequence[int] = (),
) -> list[int]:
    """Return the tokens the whole model, in this process, says after a prompt; a stop token is not among them."""
    maker, cache = LayerMaker(shape), KvCache(shape.max_positions)
    part = maker.part(
        0, shape.num_layers, {n: maker.layer(n) for n in shape.hosted.layer_numbers(0, shape.num_layers)}
    )
    given, position, written = list(prompt), 0, list[int]()
    with one_thread():
        while len(written) < max_tokens and position + len(given) < shape.max_positions:
            hidden = part.run(cache, given, position=position)
            position += len(given)
            token = part.choose(hidden[-1:], [Draw(temperature, seed, position)])[0]
            if token in stop_tokens:
                break
            written.append(token)
            given = [token]
    return written
