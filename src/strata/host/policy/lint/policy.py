"""All that is wrong with a policy, in the order of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strata.host.policy.codec import Read
from strata.host.policy.lint.conditions import conditions
from strata.host.policy.lint.fields import dropped, keys
from strata.host.policy.lint.finding import At, Finding, found
from strata.host.policy.lint.order import order
from strata.host.policy.lint.room import Site, room


def lint(policy: Read, *, site: Site | None = None) -> tuple[Finding, ...]:
    """Return all findings of a policy as it was read.

    site: the machine it is for; without one only what holds on any machine is told. Layers that could not be
    read are told as such; of these only what could be read is looked at, each part by itself.
    """
    layers = [At(index, layer) for index, layer in enumerate(policy.layers) if layer is not None]
    partial = [At(index, layer) for index, layer in enumerate(policy.partial) if layer is not None]
    unread = [trouble.path for trouble in policy.troubles]
    # A file that is no list has no layers to count.
    is_list = not any(trouble.path == "" for trouble in policy.troubles)
    by_itself = [*conditions(partial), *keys(partial), *room(partial, site)]
    some = [
        *(found("policy-unreadable", trouble.path, fault=trouble.message) for trouble in policy.troubles),
        *(order(layers, count=len(policy.layers)) if is_list else ()),
        *dropped(policy.unknown),
        *(one for one in by_itself if not _is_of(unread, one.reason.subject)),
    ]
    return tuple(sorted(some, key=_place))


def _is_of(unread: Sequence[str], path: str) -> bool:
    """Whether a finding is about what could not be read: a part of it, or what it is a part of."""
    return any(path.startswith(one) or (path and one.startswith(path)) for one in unread)


def _place(finding: Finding) -> tuple[int, int]:
    index = re.match(r"\[(\d+)\]", finding.reason.subject)
    rank = ("error", "warning", "note").index(finding.severity)
    return (int(index[1]) if index else -1), rank
