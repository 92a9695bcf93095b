"""Dynamics as people write them: `ou:20%/10min`, `outage:6h/10min`, or the name of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from strata import units
from strata.errors import UsageError
from strata.fleet.dynamics.noise import Diurnal, OrnsteinUhlenbeck, Uniform
from strata.fleet.dynamics.process import Process
from strata.fleet.dynamics.regimes import GOOD_DEGRADED_BAD, Regimes, outage, precursor
from strata.fleet.dynamics.replay import read_replay

FORMS: Final = "trace.csv, uniform:30%, ou:20%/10min, regimes:90%/5min, precursor, diurnal:40% or outage:6h/10min"


def parse_process(text: str, *, links: Sequence[str]) -> Process[Any]:
    """Read a process; a trace has columns named as in `links`.

    uniform: half-width of noise drawn anew at every step. ou: standard deviation of the logarithm, and the time
    in which noise is forgotten. regimes: chance to be in the same regime so much later. diurnal: amplitude of a
    daily wave. outage: mean times between failures, and to repair. Raises UsageError; BadFile for a bad trace.
    """
    kind, _, figures = text.partition(":")
    match kind, figures.split("/"):
        case "uniform", [half_width]:
            return Uniform(_share(half_width))
        case "ou", [sigma, tau]:
            return OrnsteinUhlenbeck(_share(sigma), _time_s(tau))
        case "regimes", [stay, later]:
            # At the chance of pure luck regimes would change infinitely fast.
            return Regimes.with_persistence(_share(stay, above=1 / len(GOOD_DEGRADED_BAD)), step_s=_time_s(later))
        case "precursor", [""]:
            return precursor()
        case "diurnal", [amplitude]:
            return Diurnal(_share(amplitude))
        case "outage", [up, down]:
            return outage(up_s=_time_s(up), down_s=_time_s(down))
    if Path(text).suffix or Path(text).is_file():
        return read_replay(text, links=links)
    raise UsageError(f"cannot read {text!r} as link dynamics", hint=FORMS)


def _share(text: str, *, above: float = 0.0) -> float:
    value = units.parse_share(text)
    if not above < value < 1:
        raise UsageError(f"{text} is not between {above:.0%} and 100%", hint=FORMS)
    return value


def _time_s(text: str) -> float:
    value = units.parse(text, "time")
    if value <= 0:
        raise UsageError(f"{text} is not a positive time", hint=FORMS)
    return value
