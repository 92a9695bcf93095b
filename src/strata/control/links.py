"""What measurements of links say: noise told from change, for every link of the fleet.

Level and spread of a link come from `levels`; the measurements themselves are kept as far as decisions look back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.control import levels as level_filter
from strata.control.forecast import Forecast
from strata.control.levels import Levels, levels, noise_scale
from strata.control.outlook import MOST_ROWS
from strata.control.state import DomainView, LinkEstimate, LinkSeen
from strata.fleet.fleet import Fleet, Pair

DOWN: Final = 0.01
"""What a factor of 0 counts as in a logarithm."""

MOST_FACTOR: Final = 2.0

HAZARD: Final = 1 / 48
"""Chance of a change from one measurement to the next, before any was seen: once in four hours of 300 s."""

LEAST_NOISE: Final = 0.02
START_NOISE: Final = 0.18
"""Noise of the logarithm where little was measured: that of the seeds' ±30 %, and never below the first."""

_REMEMBERED: Final = 1024


def take_in(
    fleet: Fleet, estimates: Mapping[Pair, LinkEstimate], seen: Sequence[LinkSeen]
) -> dict[Pair, LinkEstimate]:
    """Return the estimates after some measurements; a link the fleet does not have is left out.

    Zero is a link that is down. A probe that lies is believed as far as it can be true: what is no bandwidth is
    left out, and no link is more than `MOST_FACTOR` times as fast as the fleet states it.
    """
    after = dict(estimates)
    fresh: list[Pair] = []
    for item in seen:
        pair = (item.source, item.dest)
        if pair not in fleet.links:
            continue
        nominal = fleet.links[pair].bandwidth_bytes_per_s
        factor = item.bandwidth_bytes_per_s / nominal
        if not 0 <= factor < np.inf:
            continue
        factor = min(float(factor), MOST_FACTOR)
        before = after.get(pair, LinkEstimate())
        if before.recent and item.at_s < before.recent[-1][0]:
            continue  # a clock that went back, or a report that comes late
        recent = (*before.recent, (item.at_s, factor))[-MOST_ROWS:]
        latency = item.latency_s if item.latency_s is not None else before.latency_s
        after[pair] = replace(before, recent=recent, seen_s=item.at_s, latency_s=latency)
        fresh.append(pair)
    by_length: dict[int, list[Pair]] = {}
    for pair in dict.fromkeys(fresh):
        by_length.setdefault(len(after[pair].recent), []).append(pair)
    for pairs in by_length.values():
        looked_at = [after[pair].recent[-level_filter.MOST_ROWS :] for pair in pairs]
        series = np.log(np.maximum([[f for _, f in recent] for recent in looked_at], DOWN)).T
        now = _levels(series.tobytes(), *series.shape)
        each = np.stack([np.exp(now.mean), now.noise, now.rows], axis=1).tolist()
        for pair, (mean, noise, rows) in zip(pairs, each, strict=True):
            recent = after[pair].recent
            since_s = recent[max(0, len(recent) - max(1, round(rows)))][0]
            after[pair] = replace(after[pair], factor=mean, spread=noise, since_s=since_s)
    return after


@lru_cache(maxsize=_REMEMBERED)
def _levels(series: bytes, rows: int, links: int) -> Levels:
    """Return the levels of logarithms [rows, links]; the rules that one trace is replayed for see the same."""
    values = np.frombuffer(series).reshape(rows, links)
    return levels(
        values, usual=np.median(values, axis=0), hazard=HAZARD,
        scale=noise_scale(values, least=LEAST_NOISE, start=START_NOISE),
    )  # fmt: skip


def history(
    fleet: Fleet, links: Mapping[Pair, LinkEstimate], domains: Mapping[str, DomainView] | None = None
) -> Floats:
    """Return factors [T, L] at every time a link was measured, links in the fleet's order, nominal until seen.

    What was not measured at a time is held from before. Where the speed of a domain changed, the speeds of all
    follow [T, L + K], in the fleet's order.
    """
    series = [links[pair].recent if pair in links else () for pair in fleet.links]
    if domains and any(view.recent for view in domains.values()):
        seen = (domains.get(domain.name) for domain in fleet.domains)
        # Nobody measures a domain before it changes: it was nominal then.
        series += [((-np.inf, 1.0), *view.recent) if view and view.recent else () for view in seen]
    if len({len(recent) for recent in series}) == 1 and series[0]:
        table = np.array(series)  # [L, T, 2]
        if (table[:, :, 0] == table[0, :, 0]).all() and (np.diff(table[0, :, 0]) > 0).all():
            return np.ascontiguousarray(table[:, :, 1].T)  # all measured together, as most often
    times = sorted({at_s for recent in series for at_s, _ in recent if at_s > -np.inf})[-MOST_ROWS:]
    rows = np.ones((max(1, len(times)), len(series)))
    for column, recent in enumerate(series):
        if recent:
            at = np.searchsorted([at_s for at_s, _ in recent], times, side="right") - 1
            factors = np.array([factor for _, factor in recent])
            rows[:, column] = np.where(at >= 0, factors[np.maximum(at, 0)], factors[0])
    return rows


def expected(fleet: Fleet, links: Mapping[Pair, LinkEstimate], decisions: int) -> Floats:
    """Return [L] the factor that each link is expected to have so many decisions ahead: see `Forecast`.

    Each by itself: that links of others change says nothing about how long the level of this one lasts.
    """
    rows = history(fleet, links)
    forecasts = (Forecast.of(rows[:, [link]], np.ones(1)) for link in range(rows.shape[1]))
    return np.array([max(0.0, float(forecast.ahead(decisions + 1)[-1, 0])) for forecast in forecasts])
