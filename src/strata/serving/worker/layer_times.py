"""What a block of the model takes on this machine: measured once before the worker joins.

Rates of multiplying and copying say little of small layers, whose time is mostly that of starting kernels, and the
first plan is made before anybody has asked for anything. Needs torch at import.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final

import numpy as np
import torch

from strata.errors import UsageError
from strata.serving.hosted import HostedModel
from strata.serving.wire import Phase, StepSample
from strata.serving.worker.holder import ROWS, DecodeRow, StageMaker

BLOCK: Final = 1
"""The block after the first: it is given hidden states, and is the last one of no model with three."""
LEAST_LAYERS: Final = 3
"""A model of fewer is not worth cutting."""
PROMPT_TOKENS: Final = (16, 128)
REPEATS: Final = 40
LONG_S: Final = 0.2
"""Slow blocks are timed less often: what starts beside disturbs them less."""
KEPT: Final = 3


def measure_block(
    maker: StageMaker, model: HostedModel, *, memory_bytes: float, in_thread: Callable[[], None]
) -> tuple[StepSample, ...]:
    """Return measurements of prompts and decode steps; none where a block has no room here.

    in_thread: what the thread that runs layers does first. Raises what making a layer raises, and UsageError where
    the device has less memory left than the worker was promised.
    """
    if model.num_layers < LEAST_LAYERS or model.weight_bytes(BLOCK, BLOCK + 1) > memory_bytes:
        return ()
    with ThreadPoolExecutor(1, initializer=in_thread) as executor:
        try:
            return executor.submit(_measured, maker, model).result()
        except torch.OutOfMemoryError as error:
            message = f"a block of {model.name} has no room on this device: {str(error).partition('.')[0]}"
            raise UsageError(message, hint="end what else has its memory, or another --device") from None


def _measured(maker: StageMaker, model: HostedModel) -> tuple[StepSample, ...]:
    number = BLOCK + 1  # layers are numbered from the embedding on
    part = maker.part(BLOCK, BLOCK + 1, {number: maker.layer(number)})
    hidden = np.full((max(PROMPT_TOKENS), model.info.hidden_size), 0.01, np.float32)

    def prompt(tokens: int) -> None:
        part.prompt(maker.cache(tokens), hidden[:tokens], 0)

    def step(sequences: int) -> None:
        part.step([DecodeRow(maker.cache(1), hidden[0], 0) for _ in range(sequences)])

    prompts = [tokens for tokens in PROMPT_TOKENS if tokens <= model.max_positions]
    works: list[tuple[Phase, Callable[[int], None], int]] = [
        *(("prefill", prompt, tokens) for tokens in prompts),
        *(("decode", step, sequences) for sequences in (1, ROWS)),
    ]
    return tuple(
        StepSample(phase, BLOCK, BLOCK + 1, units, 0.0, each_s)
        for phase, work, units in works
        for each_s in _least_s(work, units)
    )


def _least_s(work: Callable[[int], None], units: int) -> list[float]:
    """Return the least times of many: what disturbs, as other workers that start here do, only adds.

    The first is left out: kernels are chosen and memory is taken then.
    """
    work(units)
    times_s, began_s = list[float](), perf_counter()
    while not times_s or (len(times_s) < REPEATS and perf_counter() - began_s < LONG_S):
        start_s = perf_counter()
        work(units)
        times_s.append(perf_counter() - start_s)
    return sorted(times_s)[:KEPT]
