"""Doing actions: the one place of the controller with side effects.

Nothing is swallowed and nothing is tried again in here: what failed comes back with its action and a word on what
to do. A conflict means that the object is another than the one decided about: look again and decide again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from strata.cluster.api.actions import Action, Apply, Event, Evict, Patch, Ref
from strata.cluster.api.client import Api
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import EVENT, moment
from strata.cluster.api.older_definitions import FittingApply

SAME_S: Final = 600.0
"""Events about one object for one reason are counted as one while the last is not older."""
EVENTS_PER_S: Final = 10.0
EVENTS_AT_ONCE: Final = 100.0
"""A storm of events must not keep the API server from the rest; a minute of everyday ones goes through."""

_CONTROLLER: Final = "ai.compute/strata"
_MOST_REMEMBERED: Final = 4096
_LONGEST_NOTE: Final = 1024
_LONGEST_WORD: Final = 128
_LONGEST_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that was not done. what: look-again (the object changed or went), later (it may pass), refused.

    An action after a failed one about the same object is not tried, and comes back with the same error.
    """

    action: Action
    error: ApiFailed
    what: Literal["look-again", "later", "refused"]


@dataclass
class _EventSeries:
    name: str
    count: int
    last_s: float


@dataclass
class Applier:
    """clock: seconds since the epoch. new_id: a word no other event has. instance: which controller this is.

    may_act: asked before each action; once it says no, nothing more is done. failed: told of each failure.
    """

    api: Api
    clock: Callable[[], float]
    new_id: Callable[[], str]
    instance: str
    may_act: Callable[[], bool] = lambda: True
    failed: Callable[[Failure], None] = lambda failure: None
    _events: OrderedDict[tuple[Any, ...], _EventSeries] = field(default_factory=OrderedDict)
    _tokens: float = EVENTS_AT_ONCE
    _filled_s: float = float("inf")

    def __post_init__(self) -> None:
        self._apply = FittingApply(self.api)

    def do(self, actions: Iterable[Action]) -> tuple[Failure, ...]:
        """Do actions in order and return those that were not done."""
        failures: dict[Ref, Failure] = {}
        undone = []
        for action in actions:
            if not self.may_act():
                break
            failure = failures.get(action.ref)
            if failure is None:
                try:
                    self._perform(action)
                    continue
                except ApiFailed as error:
                    failure = Failure(action, error, _what(action, error))
                    # What becomes of an event says nothing of the object.
                    if not isinstance(action, Event):
                        failures[action.ref] = failure
            undone.append(Failure(action, failure.error, failure.what))
            self.failed(undone[-1])
        return tuple(undone)

    def _perform(self, action: Action) -> None:
        ref = action.ref
        if isinstance(action, Patch):
            self.api.patch(
                ref.kind,
                ref.name,
                ref.namespace,
                body=action.body,
                subresource=action.subresource,
                resource_version=action.resource_version,
            )
        elif isinstance(action, Apply):
            self._apply(ref.kind, _whole(action), subresource=action.subresource)
        elif isinstance(action, Event):
            self._send_event(action)
        elif isinstance(action, Evict):
            self.api.evict(ref.name, ref.namespace)
        else:
            self.api.delete(ref.kind, ref.name, ref.namespace)

    def _send_event(self, event: Event) -> None:
        """Write an event, or count it to one that says the same of the same object."""
        now_s = self.clock()
        self._take_token(now_s)
        key = (event.ref, event.reason, event.is_warning)
        same = self._events.get(key)
        if same is not None and now_s - same.last_s <= SAME_S:
            series = {"series": {"count": same.count + 1, "lastObservedTime": moment(now_s, "microseconds")}}
            try:
                self.api.patch(EVENT, same.name, _namespace(event.ref), body=series)
            except ApiFailed as error:
                if error.status != 404:  # 404: it has expired meanwhile
                    raise
            else:
                same.count, same.last_s = same.count + 1, now_s
                self._events.move_to_end(key)
                return
        body = _event_body(event, name=self.new_id(), instance=self.instance, now_s=now_s)
        self.api.create(EVENT, body)
        self._events[key] = _EventSeries(body["metadata"]["name"], 1, now_s)
        self._events.move_to_end(key)
        if len(self._events) > _MOST_REMEMBERED:
            self._events.popitem(last=False)

    def _take_token(self, now_s: float) -> None:
        self._tokens = min(EVENTS_AT_ONCE, self._tokens + max(0.0, now_s - self._filled_s) * EVENTS_PER_S)
        self._filled_s = now_s
        if self._tokens < 1:
            wait_s = (1 - self._tokens) / EVENTS_PER_S
            raise ApiFailed("too many events; this one was not sent", status=429, retry_after_s=wait_s)
        self._tokens -= 1


def _what(action: Action, error: ApiFailed) -> Literal["look-again", "later", "refused"]:
    if error.is_conflict or (error.status == 404 and not isinstance(action, Event)):
        return "look-again"
    return "later" if error.may_pass else "refused"


def _whole(action: Apply) -> Mapping[str, Any]:
    """Return the body with what every applied object has to say of itself."""
    ref = action.ref
    metadata = {"name": ref.name, **({"namespace": ref.namespace} if ref.namespace else {})}
    return {
        **action.body,
        "apiVersion": ref.kind.api_version,
        "kind": ref.kind.kind,
        "metadata": {**(action.body.get("metadata") or {}), **metadata},
    }


def _event_body(event: Event, *, name: str, instance: str, now_s: float) -> dict[str, Any]:
    """Return an event as events.k8s.io/v1 wants it: lengths are cut to what its validation allows."""
    ref = event.ref
    regarding = {"apiVersion": ref.kind.api_version, "kind": ref.kind.kind, "name": ref.name}
    more = {"namespace": ref.namespace, "uid": ref.uid}
    suffix = f".{name}"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": ref.name[: _LONGEST_NAME - len(suffix)].rstrip(".-") + suffix,
            "namespace": _namespace(ref),
        },
        "eventTime": moment(now_s, "microseconds"),
        "reportingController": _CONTROLLER,
        "reportingInstance": instance[:_LONGEST_WORD],
        "action": event.reason[:_LONGEST_WORD],
        "reason": event.reason[:_LONGEST_WORD],
        "type": "Warning" if event.is_warning else "Normal",
        "regarding": {**regarding, **{key: value for key, value in more.items() if value}},
        "note": _cut(event.message),
    }


def _cut(message: str) -> str:
    """Return a message in at most as many bytes as the API server counts."""
    data = message.encode()
    return message if len(data) <= _LONGEST_NOTE else data[: _LONGEST_NOTE - 3].decode(errors="ignore") + "…"


def _namespace(ref: Ref) -> str:
    # Events about what has no namespace live here, as those of the kubelet about its node do.
    return ref.namespace or "default"
