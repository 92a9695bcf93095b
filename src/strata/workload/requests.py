"""Requests of a served model: when they come, how long they are, and what they begin with alike.

Lengths: counted by us from the two files of Azure's LLM inference trace of 2023 (AzurePublicDataset,
https://github.com/Azure/AzurePublicDataset, CC-BY-4.0; Patel et al., Splitwise, ISCA 2024): 19 366 requests of
a conversation service and 8 819 of a coding one. Log-normal through p50 and p90, cut off at the longest seen:
the medians and upper tenths are calibrated, the shape between and below them is assumed. Means of such samples
are 5 and 19 % above the trace's for prompts, 9 and 12 % below for outputs. Prompt and output are drawn
independently, as they nearly are there (correlation of the logarithms 0.09 and 0.00).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats, Ints

MOST_CV: Final = 100.0
"""Beyond it nearly all gaps are 0, and their mean is not met by any sample one could draw."""
_CHUNK: Final = 1024
_P90: Final = 1.2815515655446004


class Request(NamedTuple):
    """One request: when it comes, how long its prompt is, and how many tokens it will generate.

    blocks: hashes of the leading blocks of its prompt that other requests may share.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Length:
    """Token counts: log-normal, at least 1 and at most `longest`. `sigma` 0 makes all of them the median."""

    median: float
    sigma: float
    longest: int

    @classmethod
    def through(cls, p50: float, p90: float, longest: int) -> Length:
        """Return the one with these two quantiles."""
        return cls(p50, math.log(p90 / p50) / _P90, longest)

    @classmethod
    def around(cls, mean: float, *, like: Length) -> Length:
        """Return the one with this mean and another's spread, the cut at `longest` left out of account."""
        longest = max(like.longest, math.ceil(8 * mean))
        return cls(mean / math.exp(like.sigma**2 / 2), like.sigma, longest)

    def sample(self, rng: np.random.Generator, n: int) -> Ints:
        """Return n of them."""
        drawn = self.median * np.exp(self.sigma * rng.standard_normal(n))
        return np.clip(np.rint(drawn), 1, self.longest).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of prompts and of outputs."""

    prompt: Length
    output: Length


CONVERSATION: Final = Lengths(Length.through(1020, 2734.5, 14050), Length.through(129, 424, 1000))
CODING: Final = Lengths(Length.through(1469, 5187.6, 7437), Length.through(13, 55, 1899))
LENGTHS: Final = {"conversation": CONVERSATION, "coding": CODING}


@dataclass(frozen=True, slots=True)
class SystemPrompts:
    """Every request begins with one of `count` texts of so many tokens, all equally often.

    block_tokens: how many tokens the router's prefix index counts as one block.
    """

    count: int
    tokens: int
    block_tokens: int

    def blocks(self, which: int) -> tuple[int, ...]:
        """Return the hashes of one of them: numbers that no other one has."""
        size = self.tokens // self.block_tokens
        return tuple(range(which * size + 1, (which + 1) * size + 1))


def arrivals(
    rng: np.random.Generator, rate_per_s: float, *, cv: float = 1.0, swing: float = 0.0, period_s: float = 86400.0
) -> Iterator[float]:
    """Yield arrival times [s] without end, `rate_per_s` of them a second on average.

    cv: coefficient of variation of the gaps, which are Gamma: 1 is Poisson, 0 a clock, above 1 comes in bursts
    (how BurstGPT's authors describe theirs, arXiv 2401.17644). swing: share by which the rate rises and falls,
    a sine over `period_s` that begins at the mean. Raises ValueError for figures without meaning.
    """
    if not (0 < rate_per_s < math.inf and 0 <= cv <= MOST_CV and 0 <= swing < 1 and period_s > 0):
        raise ValueError(f"rate {rate_per_s}, cv {cv}, swing {swing}, period {period_s}")
    counted = at_s = 0.0
    while True:
        for gap in _gaps(rng, cv).tolist():
            counted += gap
            at_s = _when(counted / rate_per_s, at_s, swing, period_s) if swing else counted / rate_per_s
            yield at_s


def _gaps(rng: np.random.Generator, cv: float) -> Floats:
    """Return gaps of mean 1."""
    return rng.gamma(1 / cv**2, cv**2, _CHUNK) if cv > 1e-3 else np.ones(_CHUNK)


def _when(mean_s: float, at_s: float, swing: float, period_s: float) -> float:
    """Return the time until which as much has come as in `mean_s` at the mean rate; not before `at_s`.

    Bisection of t + swing · period/2π · (1 - cos 2πt/period) = mean_s, which rises with t.
    """
    wave = swing * period_s / (2 * math.pi)
    low, high = max(at_s, mean_s - 2 * wave), mean_s
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        is_late = middle + wave * (1 - math.cos(2 * math.pi * middle / period_s)) > mean_s
        low, high = (low, middle) if is_late else (middle, high)
    return high


def requests(
    rng: np.random.Generator, times: Iterator[float], lengths: Lengths, *, prompts: SystemPrompts | None = None
) -> Iterator[Request]:
    """Yield requests at these times; a system prompt comes before the prompt that is drawn."""
    while chunk := list(islice(times, _CHUNK)):
        prompt = lengths.prompt.sample(rng, len(chunk)).tolist()
        output = lengths.output.sample(rng, len(chunk)).tolist()
        if prompts is None:
            yield from map(Request, chunk, prompt, output)
            continue
        which = rng.integers(prompts.count, size=len(chunk)).tolist()
        for at_s, more, out, prompt_index in zip(chunk, prompt, output, which, strict=True):
            yield Request(at_s, prompts.tokens + more, out, prompts.blocks(prompt_index))


def until(stream: Iterator[Request], end_s: float) -> Iterator[Request]:
    """Yield the requests before `end_s`."""
    return takewhile(lambda request: request.at_s < end_s, stream)
