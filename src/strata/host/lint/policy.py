"""All that is wrong with a policy, in the order of the file."""

from __future__ import annotations

import re

from strata.host.layers.codec import Read
from strata.host.lint.conditions import conditions
from strata.host.lint.fields import dropped, keys
from strata.host.lint.finding import At, Finding, found
from strata.host.lint.order import order
from strata.host.lint.room import Site, room


def lint(policy: Read, *, site: Site | None = None) -> tuple[Finding, ...]:
    """Return all findings of a policy as it was read.

    site: the machine it is for; without one only what holds on any machine is told. Layers that could not be
    read are told as such, and left out of everything else.
    """
    layers = [At(index, layer) for index, layer in enumerate(policy.layers) if layer is not None]
    # A file that is no list has no layers to count.
    is_list = not any(trouble.path == "" for trouble in policy.troubles)
    some = [
        *(found("policy-unreadable", trouble.path, fault=trouble.message) for trouble in policy.troubles),
        *(order(layers, count=len(policy.layers)) if is_list else ()),
        *conditions(layers),
        *dropped(policy.unknown),
        *keys(layers),
        *room(layers, site),
    ]
    return tuple(sorted(some, key=_place))


def _place(finding: Finding) -> tuple[int, int]:
    index = re.match(r"\[(\d+)\]", finding.reason.subject)
    rank = ("error", "warning", "note").index(finding.severity)
    return (int(index[1]) if index else -1), rank
