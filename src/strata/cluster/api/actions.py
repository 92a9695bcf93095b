"""What the controller wants done, as data: decided purely, done by `applier.py`, compared in tests.

Every action may be done twice without harm: a patch says what should be, an event of the same things is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata.cluster.api.kinds import Object, ObjectKind, meta
from strata.decision import Reason


@dataclass(frozen=True, slots=True)
class Ref:
    """One object of the API server."""

    kind: ObjectKind
    name: str
    namespace: str = ""
    uid: str = ""

    def __str__(self) -> str:
        """`Kind/namespace/name`, without the namespace where there is none."""
        return "/".join(filter(None, (self.kind.kind, self.namespace, self.name)))


def ref_of(obj: Object, kind: ObjectKind) -> Ref:
    """Return an object's reference, in the version it was read in."""
    version = str(obj.get("apiVersion") or kind.api_version).rpartition("/")[2]
    name, namespace, uid = (str(meta(obj).get(key) or "") for key in ("name", "namespace", "uid"))
    return Ref(replace(kind, version=version), name, namespace, uid)


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON merge patch. With `resource_version` it fails where the object has changed since it was looked at."""

    ref: Ref
    body: Mapping[str, Any]
    subresource: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class Apply:
    """A server-side apply of a whole object of ours, or of its `subresource`."""

    ref: Ref
    body: Mapping[str, Any]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event on an object: `reason` is the token in CamelCase, `message` its sentence."""

    ref: Ref
    reason: str
    message: str
    is_warning: bool = False


def pascal(token: str) -> str:
    """Return a reason's token as conditions and events write it: `gang-placed` is `GangPlaced`."""
    return "".join(word.capitalize() for word in token.split("-"))


def event(ref: Ref, reason: Reason, *, is_warning: bool = False) -> Event:
    """Return the event that tells a reason."""
    return Event(ref, pascal(reason.token), str(reason), is_warning)


@dataclass(frozen=True, slots=True)
class Delete:
    """An object goes."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Evict:
    """A pod goes, which a PodDisruptionBudget may refuse for a while."""

    ref: Ref


Action = Patch | Apply | Event | Delete | Evict
