"""Preferences that look for all plans of a front: each aimed into the largest gap that the answers leave."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import numpy as np

from strata.arrays import Floats

MARGIN: Final = 0.01
"""How far beyond the worst values known the first gap reaches, as a share of their range."""


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
