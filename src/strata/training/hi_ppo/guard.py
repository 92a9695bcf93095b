"""The run-time guard: never act on a loss the exact model sees.

Between domains and inside them: it looks at Options and picks alone, whoever made them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Bools, Ints
from strata.decision import Reason
from strata.training.replan.options import SPANS, Options
from strata.training.replan.rules import hysteresis

SAFE: Final = hysteresis()


def guard(options: Options, picks: Ints) -> tuple[Ints, tuple[Reason | None, ...]]:
    """Return picks [B] that lose nothing the values show, and why each was replaced (None: it was not).

    A pick that is illegal, or of a row whose figures are not all finite, gives way to the safe rule, which does
    not see the options without figures. So does a switch that at no span earns its cost; where the safe rule's
    switch does not either, the option in use is kept. Where nothing is in use, a pick that is behind the safe
    rule's over every span gives way to that.
    Some option of every row must be legal and have figures, or be in use.
    """
    rows = np.arange(len(options))
    known = np.isfinite(options.value).all(axis=2) & np.isfinite(options.cost)
    missing: Bools = np.asarray((options.legal & ~known).any(axis=1))
    in_range = np.asarray((picks >= 0) & (picks < options.legal.shape[1]))
    illegal = ~(in_range & options.legal[rows, np.where(in_range, picks, 0)])
    clean = options if known.all() else _without(options, known)
    fallback = SAFE(clean)
    usable = np.where(illegal, 0, picks)
    losing = ~(illegal | missing) & (loses(clean, usable) | _behind(clean, usable, fallback))
    replaced = missing | illegal | losing
    chosen = np.where(replaced, fallback, picks)
    kept = np.maximum(options.current, 0)
    chosen = np.where(replaced & loses(clean, chosen), kept, chosen)
    # Nothing can be compared with a plan in use that has no figures: it stays.
    blind = (options.current >= 0) & options.legal[rows, kept] & ~known[rows, kept]
    chosen = np.where(blind, kept, chosen)
    reasons: list[Reason | None] = [None] * len(options)
    gain = clean.summed_gain()
    for row in np.flatnonzero(replaced).tolist():
        if missing[row]:
            reasons[row] = Reason("figures-not-finite", data={"count": int((options.legal & ~known)[row].sum())})
        elif illegal[row]:
            reasons[row] = Reason("pick-not-legal", data={"pick": int(picks[row])})
        else:
            reference = gain[row, fallback[row]] if options.current[row] < 0 else 0.0
            best = gain[row, picks[row]] - reference
            span = int(best.argmax())
            data = {"gain": float(best[span]), "steps": SPANS[span], "cost": float(options.cost[row, picks[row]])}
            reasons[row] = Reason("switch-never-pays", data=data)
    return np.asarray(chosen), tuple(reasons)


def loses(options: Options, picks: Ints) -> Bools:
    """Return [B]: whether a pick leaves a usable option in use for one that earns its cost at no span."""
    rows, kept = np.arange(len(options)), np.maximum(options.current, 0)
    can_keep = (options.current >= 0) & options.legal[rows, kept]
    pays = (options.summed_gain()[rows, picks] > options.cost[rows, picks, None]).any(axis=1)
    return np.asarray(can_keep & (picks != options.current) & ~pays)


def _behind(options: Options, picks: Ints, safe: Ints) -> Bools:
    """Return [B]: whether nothing is in use and a pick is worth less than the safe rule's over every span."""
    rows, gain = np.arange(len(options)), options.summed_gain()
    lead = gain[rows, picks] - options.cost[rows, picks, None]
    lead -= gain[rows, safe] - options.cost[rows, safe, None]
    return np.asarray((options.current < 0) & (lead < 0).all(axis=1))


def _without(options: Options, known: Bools) -> Options:
    """Return the options with those without figures made illegal and worthless."""
    return Options(
        np.where(known[..., None], options.value, 0.0), np.where(known, options.cost, 0.0), options.links,
        options.current, options.legal & known, options.preference, options.inside,
    )  # fmt: skip
