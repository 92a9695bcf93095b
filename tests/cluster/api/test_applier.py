"""Acting: what fails comes back and says what to do; events are counted, cut and paced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from strata.cluster.api.actions import Action, Apply, Delete, Event, Evict, Patch, Ref
from strata.cluster.api.applier import EVENTS_AT_ONCE, SAME_S, Applier
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, EVENT, NODE, POD, ObjectKind

T0 = 1_800_000_000.0
NODE_A, NODE_B = Ref(NODE, "a", uid="uid-a"), Ref(NODE, "b")
PATCH = Patch(NODE_A, {"spec": {}}, resource_version="7")


class Server:
    """Writes down what is asked; `refuse` gives the error of a call, by method and name."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.refuse: Callable[[str, str], int | None] = lambda method, name: None

    def _ask(self, method: str, name: str, *more: Any) -> None:
        self.asked.append((method, name, *more))
        if (status := self.refuse(method, name)) is not None:
            raise ApiFailed(f"{method} {name}", status=status, retry_after_s=5.0 if status == 429 else 0.0)

    def patch(
        self,
        kind: ObjectKind,
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, Any],
        subresource: str = "",
        resource_version: str = "",
    ) -> dict[str, Any]:
        self._ask("patch", name, subresource, resource_version)
        if kind is EVENT:
            if name not in self.events:
                raise ApiFailed("no such event", status=404)
            self.events[name] |= body
        return {}

    def create(self, kind: ObjectKind, obj: dict[str, Any]) -> dict[str, Any]:
        self._ask("create", obj["metadata"]["name"])
        assert obj["metadata"]["name"] not in self.events
        self.events[obj["metadata"]["name"]] = dict(obj)
        return obj

    def apply(self, kind: ObjectKind, obj: Mapping[str, Any], *, subresource: str = "") -> Mapping[str, Any]:
        self._ask("apply", obj["metadata"]["name"], subresource, obj)
        return obj

    def delete(self, kind: ObjectKind, name: str, namespace: str = "") -> None:
        self._ask("delete", name, namespace)

    def evict(self, name: str, namespace: str) -> None:
        self._ask("evict", name, namespace)


class World:
    def __init__(self) -> None:
        self.server, self.now_s, self.ids = Server(), T0, iter(range(10**6))
        self.applier = self.again()

    def again(self) -> Applier:
        api: Any = self.server
        return Applier(api, clock=lambda: self.now_s, new_id=lambda: f"{next(self.ids):06}", instance="pod-1")

    def do(self, *actions: Action) -> list[str]:
        return [failure.what for failure in self.applier.do(actions)]


def event(ref: Ref = NODE_A, reason: str = "NodeIsolated", message: str = "broken") -> Event:
    return Event(ref, reason, message, is_warning=True)


def test_every_action_is_asked_of_the_server() -> None:
    world = World()
    body = {"status": {"x": 1}}
    pod = Ref(POD, "p", "team")
    apply = Apply(Ref(COMPUTE_NODE, "n"), body, "status")
    assert world.do(PATCH, apply, Delete(pod), Evict(pod)) == []
    head = {"apiVersion": "ai.compute/v1alpha1", "kind": "ComputeNode", "metadata": {"name": "n"}}
    assert world.server.asked == [
        ("patch", "a", "", "7"),
        ("apply", "n", "status", {**body, **head}),
        ("delete", "p", "team"),
        ("evict", "p", "team"),
    ]


@pytest.mark.parametrize(
    ("status", "what"),
    [(409, "look-again"), (404, "look-again"), (429, "later"), (0, "later"), (503, "later"), (403, "refused"),
     (422, "refused")],
)  # fmt: skip
def test_what_failed_comes_back_with_what_to_do(status: int, what: str) -> None:
    world = World()
    world.server.refuse = lambda method, name: status
    (failure,) = world.applier.do([PATCH])
    assert (failure.action, failure.what, failure.error.status) == (PATCH, what, status)


def test_a_storm_of_conflicts_raises_nothing_and_claims_nothing() -> None:
    world = World()
    world.server.refuse = lambda method, name: 409 if method == "patch" else None
    refs = [Ref(NODE, f"n{i}") for i in range(200)]
    actions = [each for ref in refs for each in (Patch(ref, {}), event(ref))]
    failures = world.applier.do(actions)
    assert [failure.action for failure in failures] == actions
    assert {failure.what for failure in failures} == {"look-again"}
    assert world.server.events == {}
    world.server.refuse = lambda method, name: None
    assert world.do(*actions[:50]) == []


def test_a_failure_holds_back_what_follows_about_the_same_object_only() -> None:
    world = World()
    world.server.refuse = lambda method, name: 409 if name == "a" else None
    other = Patch(NODE_B, {})
    failures = world.applier.do([event(NODE_A, "Before"), PATCH, event(), other, event(NODE_B)])
    assert [failure.action for failure in failures] == [PATCH, event()]
    assert [event["reason"] for event in world.server.events.values()] == ["Before", "NodeIsolated"]


def test_an_eviction_that_is_refused_says_when_to_ask_again() -> None:
    world = World()
    world.server.refuse = lambda method, name: 429
    (failure,) = world.applier.do([Evict(Ref(POD, "p", "team"))])
    assert (failure.what, failure.error.retry_after_s) == ("later", 5.0)


def test_an_event_has_all_that_the_api_server_asks_for() -> None:
    world = World()
    world.do(event())
    assert list(world.server.events.values()) == [
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "a.000000", "namespace": "default"},
            "eventTime": "2027-01-15T08:00:00.000000Z",
            "reportingController": "ai.compute/strata",
            "reportingInstance": "pod-1",
            "action": "NodeIsolated",
            "reason": "NodeIsolated",
            "type": "Warning",
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "uid-a"},
            "note": "broken",
        }
    ]


def test_an_event_on_what_has_a_namespace_lives_there() -> None:
    world = World()
    world.do(Event(Ref(POD, "p" * 253, "team"), "Placed", "é" * 2000))
    (event,) = world.server.events.values()
    assert (event["metadata"]["namespace"], event["regarding"]["namespace"], event["type"]) == (
        "team", "team", "Normal",
    )  # fmt: skip
    assert len(event["metadata"]["name"]) == 253
    assert event["metadata"]["name"].endswith(".000000")
    assert 1000 < len(event["note"].encode()) <= 1024


def test_the_same_again_is_counted_and_not_made_anew() -> None:
    world = World()
    for i in range(4):
        world.now_s = T0 + i * SAME_S
        assert world.do(event(message=f"device {i}")) == []
    (written,) = world.server.events.values()
    assert written["series"] == {"count": 4, "lastObservedTime": "2027-01-15T08:30:00.000000Z"}
    world.now_s += SAME_S + 1
    assert world.do(event(), event(reason="NodeReleased"), event(NODE_B)) == []
    assert len(world.server.events) == 4


def test_an_event_that_has_expired_is_made_anew() -> None:
    world = World()
    world.do(event())
    world.server.events.clear()
    assert world.do(event()) == []
    assert [event.get("series") for event in world.server.events.values()] == [None]
    assert world.do(event()) == []
    assert [event["series"]["count"] for event in world.server.events.values()] == [2]


def test_an_event_that_is_refused_holds_nothing_back_and_is_not_counted() -> None:
    world = World()
    world.server.refuse = lambda method, name: 403 if method == "create" else None
    assert world.do(event(), PATCH) == ["refused"]
    world.server.refuse = lambda method, name: None
    assert world.do(event()) == []
    assert len(world.server.events) == 1


def test_a_storm_of_events_is_paced_and_what_is_left_out_comes_back() -> None:
    world = World()
    storm = [event(Ref(NODE, f"n{i}")) for i in range(500)]
    failures = world.applier.do([*storm, PATCH])
    assert len(world.server.events) == EVENTS_AT_ONCE
    assert [failure.action for failure in failures] == storm[int(EVENTS_AT_ONCE) :]
    assert {(one.what, one.error.retry_after_s) for one in failures} == {("later", 0.1)}
    assert world.server.asked[-1][0] == "patch"
    world.now_s += 2.0
    assert len(world.applier.do([failure.action for failure in failures])) == 400 - 20


def test_what_is_remembered_of_events_is_bounded() -> None:
    world = World()
    for i in range(5000):
        world.now_s += 1.0
        world.do(event(Ref(NODE, f"n{i}")))
    assert len(world.applier._events) == 4096
