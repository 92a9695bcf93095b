"""What routers decide on: nodes with the layers they serve, how long these take, and the hops between them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats
from strata.serving.planning.allocation import Pipeline


class Line(NamedTuple):
    """Seconds as a line over some units: sequences of a decode step, or tokens of a prompt."""

    fixed_s: float = 0.0
    per_unit_s: float = 0.0

    def at(self, units: float) -> float:
        """Return the seconds of so many units."""
        return self.fixed_s + self.per_unit_s * units

    def plus(self, other: Line) -> Line:
        """Return both, one after the other."""
        return Line(self.fixed_s + other.fixed_s, self.per_unit_s + other.per_unit_s)


FAR: Final = Line(0.1)
"""A hop nobody has measured: assumed to be one between continents."""


class HopTable(ABC):
    """Hops that are also known as an array, which is read many times faster than pair by pair."""

    @abstractmethod
    def get(self, pair: tuple[str, str], default: Line) -> Line:
        """Return the hop of a directed pair."""

    @abstractmethod
    def lines(self, sources: Sequence[str], dests: Sequence[str]) -> Floats:
        """Return fixed and per-unit seconds of all pairs [2, S, D]; nan for those that are not there."""


def decode_steps(sequences: float, at_once: float) -> int:
    """Return in how many steps, one after another, each of so many sequences gets a token."""
    return max(1, math.ceil(sequences / at_once))


class StepCurve(NamedTuple):
    """Seconds of a decode step by sequences, straight between those that are named, and by cached tokens."""

    sequences: tuple[float, ...]
    seconds: tuple[float, ...]
    cached_token_s: float

    def at(self, sequences: float, cached_tokens: float) -> float:
        """Return the seconds of a step over sequences that have so many tokens cached, all together."""
        i = min(max(bisect_left(self.sequences, sequences), 1), len(self.sequences) - 1)
        (left, right), (low, high) = self.sequences[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        return low + (high - low) * (sequences - left) / (right - left) + self.cached_token_s * cached_tokens


@dataclass(frozen=True, slots=True)
class StageServer:
    """A node and the layers [first, end) it serves.

    decode: of one step over its sequences, the head with the last stage; prefill: over the prompt's tokens.
    slots: sequences it serves at most; kv_tokens: tokens its KV memory holds for this range.
    step_sequences: those of one step at most, which `decode` is a line over; more take several, one after another.
    curve: what `decode` is a line through, for simulations. request_s: what each request takes besides that begins
    here, of nobody's time.
    """

    node_id: str
    first: int
    end: int
    decode: Line
    prefill: Line
    slots: int
    kv_tokens: int
    curve: StepCurve | None = None
    request_s: float = 0.0
    step_sequences: float = math.inf

    def token_s(self, sequences: float) -> float:
        """Return the seconds until each of so many sequences has its next token, at the usual context."""
        steps = decode_steps(sequences, self.step_sequences)
        return steps * self.decode.fixed_s + self.decode.per_unit_s * sequences

    def decode_s(self, sequences: float, cached_tokens: float) -> float:
        """Return the seconds of a step over sequences that have so many tokens cached, all together."""
        return self.token_s(sequences) if self.curve is None else self.curve.at(sequences, cached_tokens)


@dataclass(frozen=True, slots=True)
class Layout:
    """Who serves what. `hops[a, b]` is over tokens passed on; a pair that is not there is `far`.

    pipelines: the disjoint ones of the plan; routers that stitch may join any servers end to end.
    """

    num_layers: int
    servers: tuple[StageServer, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    hops: Mapping[tuple[str, str], Line] | HopTable = field(default_factory=dict)
    far: Line = FAR

    def hop(self, source: str, dest: str) -> Line:
        """Return the hop of a directed pair; none inside one node."""
        return Line() if source == dest else self.hops.get((source, dest), self.far)

    def lines(self, sources: Sequence[str], dests: Sequence[str]) -> Floats:
        """Return `hop` of all pairs [2, S, D]: fixed and per-unit seconds."""
        if isinstance(self.hops, HopTable):
            lines = self.hops.lines(sources, dests)
            lines = np.where(np.isnan(lines), np.array(self.far)[:, None, None], lines)
            lines[:, np.array(sources)[:, None] == np.array(dests)[None, :]] = 0.0
            return lines
        pairs = [self.hop(source, dest) for source in sources for dest in dests]
        return np.array(pairs, dtype=float).reshape(len(sources), len(dests), 2).transpose(2, 0, 1)

    def ring(self, nodes: list[str]) -> Line:
        """Return all hops of one decode step around a pipeline, the closing one included."""
        total = Line()
        if len(nodes) > 1:
            for source, dest in pairwise([*nodes, nodes[0]]):
                total = total.plus(self.hop(source, dest))
        return total


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes, and what was expected of it when it was sent there."""

    stages: Pipeline
    cached_tokens: int = 0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
