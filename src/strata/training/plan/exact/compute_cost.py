"""What computing one microbatch takes in each domain, comparable between domains of unlike speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strata.arrays import Floats, Ints
from strata.simulate.compute import LayerSums
from strata.simulate.layer_shares import least_shares, most_shares


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """What one microbatch takes in each domain, arrays [domains]; unknown speed is inf work and no use.

    Layers may be handed out over domains whose layers differ in speed by different factors (measured profiles).
    However they are, Σ (time spent in d / work_s[d]) is at least 1, and Σ (device-seconds of use in d /
    useful_s[d]) at most 1. Where all layers differ by one factor these are the whole model's figures.
    """

    work_s: Floats
    useful_s: Floats
    forward_s: float
    """At most so long are all forwards of a microbatch together."""
    backward_s: float
    """The same for its backwards."""
    weight_share: float
    """At most such a share of a layer's work are its weight gradients (`pipeline_times.operations_s`)."""
    longest_s: Floats
    """One layer, the same in all domains, takes so long [domains]."""
    last_s: Floats
    """The last layer does: that of the last stage, which all others are upstream of [domains]."""
    update_s: Floats
    """What updating all parameters takes one stage's devices [domains]."""
    ways_s: tuple[Floats, Floats]
    """Forwards and backwards of a microbatch together [domains]."""

    @classmethod
    def of(cls, layers: Sequence[LayerSums | None], ranks: Sequence[int]) -> ComputeCost:
        """Return the compute cost of domains with these layer times on so many devices a stage."""
        known = [i for i, item in enumerate(layers) if item is not None]
        work_s, useful_s = np.full(len(layers), np.inf), np.zeros(len(layers))
        longest_s, last_s, update_s, forward_s, backward_s = np.zeros((5, len(layers)))
        if not known:
            return cls(work_s, useful_s, 0.0, 0.0, 0.0, longest_s, last_s, update_s, (forward_s, backward_s))
        picked = [item for item in layers if item is not None]
        sums = np.array([[item.work, item.useful, item.forward, item.backward] for item in picked])
        each, useful, *ways = np.diff(sums).transpose(1, 0, 2)
        work_s[known] = least_shares(each)
        useful_s[known] = most_shares(useful * np.array(ranks)[known, None])
        longest_s[known], last_s[known] = each[:, each.min(axis=0).argmax()], each[:, -1]
        for total, name in zip((update_s, forward_s, backward_s), ("update", "forward", "backward"), strict=True):
            total[known] = [getattr(item, name)[-1] for item in picked]
        most = [float(way.max(axis=0).sum()) for way in ways]
        share = min(1.0, float(np.max(useful / np.maximum(each, 1e-300)))) / 3
        return cls(work_s, useful_s, most[0], most[1], share, longest_s, last_s, update_s, (forward_s, backward_s))

    def of_domains(self, rows: Ints) -> ComputeCost:
        """Return the same for other domains, each like one of these."""
        arrays = (each[rows] for each in (self.longest_s, self.last_s, self.update_s))
        longest_s, last_s, update_s = arrays
        return replace(
            self, work_s=self.work_s[rows], useful_s=self.useful_s[rows], longest_s=longest_s, last_s=last_s,
            update_s=update_s, ways_s=(self.ways_s[0][rows], self.ways_s[1][rows]),
        )  # fmt: skip
