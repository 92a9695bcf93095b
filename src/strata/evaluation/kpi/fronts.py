"""How much of an exact Pareto front a set of plans covers: coverage at eps, hypervolume, IGD+.

All objectives are minimised. Points are [N, 3]; everything is measured in units of the front's own range (nadir
- ideal), so a front without extent in an objective has no tolerance there.

References: Zitzler & Thiele 1998 (hypervolume); Ishibuchi et al. 2015 (IGD+); facts of issue 4 (coverage).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Floats

EPSILONS: Final = (0.0, 0.01, 0.02, 0.05)
BEYOND_NADIR: Final = 0.1
"""The reference point of the hypervolume lies so much of the range beyond the nadir."""

FLAT: Final = 1e-6
"""An objective whose values differ by a smaller share than this has no extent; its unit is then this share."""

SAME: Final = 1e-9
"""Two sums of the same floats in another order differ by less than this share."""


def scaled(points: Floats, front: Floats) -> Floats:
    """Return points in units of the front's range: ideal 0, nadir 1 (without extent: FLAT of its size)."""
    low = front.min(axis=0)
    span = front.max(axis=0) - low
    size = np.where(span > FLAT * np.abs(front).max(axis=0), span, np.maximum(np.abs(low), 1e-300) * FLAT)
    return np.asarray((points - low) / size)


def coverage(candidates: Floats, front: Floats, *, eps: float) -> float:
    """Return the share of front points z with some found point s <= z + eps (nadir - ideal) in every objective."""
    if not len(candidates):
        return 0.0
    s, z = scaled(candidates, front), scaled(front, front)
    close = np.all(s[None, :, :] <= z[:, None, :] + eps + SAME, axis=-1)
    return float(np.mean(np.any(close, axis=1)))


def igd_plus(candidates: Floats, front: Floats) -> float:
    """Return the mean distance of front points to the found set, counting only where it is worse; inf of none."""
    if not len(candidates):
        return float("inf")
    s, z = scaled(candidates, front), scaled(front, front)
    worse = np.maximum(s[None, :, :] - z[:, None, :], 0.0)
    return float(np.sqrt((worse**2).sum(axis=-1)).min(axis=1).mean())


def hypervolume_ratio(candidates: Floats, front: Floats) -> float:
    """Return the volume the found set dominates / the volume the front dominates, up to the reference point."""
    reference = np.full(3, 1.0 + BEYOND_NADIR)
    whole = hypervolume(scaled(front, front), reference)
    return hypervolume(scaled(candidates, front), reference) / whole if len(candidates) else 0.0


def hypervolume(points: Floats, reference: Floats) -> float:
    """Return the volume [3 objectives] between some points and a reference point that is worse than them."""
    inside = points[(points < reference).all(axis=1)]
    order = inside[np.argsort(inside[:, 2], kind="stable")]
    total = 0.0
    for index, point in enumerate(order):
        top = order[index + 1, 2] if index + 1 < len(order) else reference[2]
        if top > point[2]:
            total += (top - point[2]) * _area(order[: index + 1, :2], reference[:2])
    return float(total)


def _area(points: Floats, reference: Floats) -> float:
    """Return the area between points in the plane and a reference point."""
    area, height = 0.0, float(reference[1])
    for x, y in points[np.lexsort((points[:, 1], points[:, 0]))]:
        if y < height:
            area += float((reference[0] - x) * (height - y))
            height = float(y)
    return area


def measures(candidates: Floats, front: Floats) -> dict[str, float]:
    """Return all of the above by stable name."""
    named = {f"coverage_eps_{round(100 * eps)}": coverage(candidates, front, eps=eps) for eps in EPSILONS}
    return {
        **named,
        "hypervolume_ratio": hypervolume_ratio(candidates, front),
        "igd_plus": igd_plus(candidates, front),
    }
