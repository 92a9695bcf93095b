"""How far apart colours are for people with and without colour blindness."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Final

import numpy as np

from strata.arrays import Floats

VISIONS: Final = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""Of linear sRGB, at severity 1. Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, table 1."""

_XYZ: Final = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE: Final = np.array([0.95047, 1.0, 1.08883])


def lab(colour: str, vision: str = "full") -> Floats:
    """Return CIELAB (D65) of `#rrggbb` as it is seen."""
    shares = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    ratio = _XYZ @ np.clip(VISIONS[vision] @ linear, 0, 1) / _WHITE
    x, y, z = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(first: Floats, second: Floats) -> float:
    """Return CIEDE2000 of two CIELAB colours. Sharma, Wu and Dalal, Color Research and Application 30(1), 2005."""
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean_chroma = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1 + 0.5 * (1 - np.sqrt(mean_chroma**7 / (mean_chroma**7 + 25.0**7)))
    c1, c2 = np.hypot(stretch * a1, b1), np.hypot(stretch * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, stretch * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    mean_hue = h1 + turn / 2 if c1 * c2 else h1 + h2
    lightness, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    waves = ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    tilt = 1 + sum(size * np.cos(np.radians(times * mean_hue + by)) for size, times, by in waves)
    light = 1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2)
    parts = (l2 - l1) / light, (c2 - c1) / (1 + 0.045 * chroma), hue / (1 + 0.015 * chroma * tilt)
    around = 60 * np.exp(-((((mean_hue % 360) - 275) / 25) ** 2))
    rotation = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(np.radians(around))
    return float(np.sqrt(sum(part**2 for part in parts) + rotation * parts[1] * parts[2]))


def nearest(colours: Iterable[str], vision: str) -> tuple[float, str, str]:
    """Return the two colours that are the hardest to tell apart, and how far they are."""
    return min((distance(lab(a, vision), lab(b, vision)), a, b) for a, b in combinations(sorted(colours), 2))
