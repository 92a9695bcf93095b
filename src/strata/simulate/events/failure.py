"""Failures as people write them: `device:West@90s` and `link:West-East@10s+5s`."""

from __future__ import annotations

from strata import units
from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.simulate.events.work import DeviceFailure, LinkFailure

_HINT = "device:DOMAIN@90s, or link:A-B@10s+5s (from 10 s on, for 5 s)"


def parse_failure(text: str, fleet: Fleet) -> DeviceFailure | LinkFailure:
    """Read one failure. Raises UsageError where it is not one, or names what the fleet does not have."""
    kind, _, rest = text.partition(":")
    what, _, when = rest.rpartition("@")
    if kind == "device" and what and when:
        if what not in {domain.name for domain in fleet.domains}:
            raise UsageError(f"{text}: {fleet.name} has no domain {what!r}", hint=_known(fleet))
        return DeviceFailure(what, _seconds(text, when))
    at, _, duration = when.partition("+")
    if kind == "link" and what and at and duration:
        # A domain's name may hold a hyphen itself.
        pairs = [(what[:i], what[i + 1 :]) for i, letter in enumerate(what) if letter == "-"]
        matches = [pair for pair in pairs if pair in fleet.links or pair[::-1] in fleet.links]
        if not matches:
            raise UsageError(f"{text}: {fleet.name} has no link {what!r}", hint=_known(fleet))
        return LinkFailure(*matches[0], _seconds(text, at), _seconds(text, duration))
    raise UsageError(f"cannot read the failure {text!r}", hint=_HINT)


def _seconds(text: str, time: str) -> float:
    value = units.parse(time, "time")
    if value < 0:
        raise UsageError(f"{text}: {time} is negative", hint=_HINT)
    return value


def _known(fleet: Fleet) -> str:
    return "one of " + ", ".join(domain.name for domain in fleet.domains)
