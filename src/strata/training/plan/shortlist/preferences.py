"""Preferences to ask with: weights of (time, utilisation, money) spread over all mixes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import numpy as np

from strata.arrays import Floats

MARGIN: Final = 0.01
"""How far beyond the worst values known the first gap reaches, as a share of their range."""


def preferences(count: int) -> Floats:
    """Return `count` preferences [count, 3], each summing to 1: the three corners, then a spread over the rest.

    The rest are points of the R2 sequence (Roberts 2018) folded onto the triangle: any first n are spread evenly.
    """
    steps = np.arange(1, max(0, count - 3) + 1)[:, None]
    root = 1.32471795724474602596  # x³ = x + 1
    u, v = ((0.5 + steps / np.array([root, root**2])) % 1.0).T
    fold = u + v > 1
    u, v = np.where(fold, 1 - u, u), np.where(fold, 1 - v, v)
    return np.concatenate([np.eye(3), np.stack([u, v, 1 - u - v], axis=1)])[:count]


def seeking(ideal: Floats, nadir: Floats) -> Generator[Floats, Floats, None]:
    """Yield preferences one at a time, each aimed into the largest gap between the answers sent so far.

    Send the (time, -utilisation, money) each preference was answered with. Ends when no gap is left: then every
    non-dominated plan has been answered. A gap is the box below a local upper bound u of the answers (Klamroth,
    Lacour, Vanderpooten 2015); the Tchebycheff weights 1 / (u - ideal) find a plan in it if there is one.
    """
    scale = np.maximum(nadir - ideal, 1e-12)
    gaps = np.array([[1.0 + MARGIN] * 3])
    for corner in np.eye(3):
        gaps = _split(gaps, ((yield corner) - ideal) / scale)
    while len(gaps):
        pick = int(np.argmax(np.maximum(gaps, 0.0).prod(axis=1)))
        weights = 1 / np.maximum(gaps[pick], 1e-9)
        answer = ((yield weights / weights.sum()) - ideal) / scale
        hit = (answer < gaps[pick] - 1e-9).all()
        gaps = _split(gaps, answer) if hit else np.delete(gaps, pick, axis=0)


def _split(gaps: Floats, answer: Floats) -> Floats:
    """Return the upper bounds [N, 3] of the boxes that hold no answer, once `answer` is known."""
    inside = (answer < gaps).all(axis=1)
    new = np.repeat(gaps[inside], 3, axis=0)
    for k in range(3):
        new[k::3, k] = answer[k]
    every = np.unique(np.concatenate([gaps[~inside], new[(new > 1e-9).all(axis=1)]]), axis=0)
    larger = (every[:, None] <= every[None]).all(axis=2) & ~np.eye(len(every), dtype=bool)
    return np.asarray(every[~larger.any(axis=1)])
