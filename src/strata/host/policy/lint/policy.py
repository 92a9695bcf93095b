"""All that is wrong with a policy, in the order of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strata.host.policy.codec import ParsedPolicy
from strata.host.policy.lint.conditions import conditions
from strata.host.policy.lint.fields import dropped, keys
from strata.host.policy.lint.finding import LintFinding, Place, finding_at
from strata.host.policy.lint.order import order
from strata.host.policy.lint.room import TargetMachine, room


def lint(policy: ParsedPolicy, *, site: TargetMachine | None = None) -> tuple[LintFinding, ...]:
    """Return all findings of a policy as it was read.

    site: the machine it is for; without one only what holds on any machine is told. Layers that could not be
    read are told as such; of these only what could be read is looked at, each part by itself.
    """
    layers = [Place(index, layer) for index, layer in enumerate(policy.layers) if layer is not None]
    partial = [Place(index, layer) for index, layer in enumerate(policy.partial) if layer is not None]
    unread = [fault.path for fault in policy.faults]
    # Only a list has layers to count.
    is_list = not any(fault.path == "" for fault in policy.faults)
    by_itself = [*conditions(partial), *keys(partial), *room(partial, site)]
    findings = [
        *(finding_at("policy-unreadable", fault.path, fault=fault.message) for fault in policy.faults),
        *(order(layers, count=len(policy.layers)) if is_list else ()),
        *dropped(policy.unknown),
        *(finding for finding in by_itself if not _is_of(unread, finding.reason.subject)),
    ]
    return tuple(sorted(findings, key=_place))


def _is_of(unread: Sequence[str], path: str) -> bool:
    """Whether a finding is about what could not be read: a part of it, or what it is a part of."""
    return any(path.startswith(part) or (path and part.startswith(path)) for part in unread)


def _place(finding: LintFinding) -> tuple[int, int]:
    index = re.match(r"\[(\d+)\]", finding.reason.subject)
    rank = ("error", "warning", "note").index(finding.severity)
    return (int(index[1]) if index else -1), rank
