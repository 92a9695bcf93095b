"""The controller between a server that answers late or not at all, and a watch that lags: no device goes twice."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from strata.cluster.api import jobs, kinds
from strata.cluster.api.kinds import ObjectKind
from tests.cluster.controller.controlled_cluster import KINDS, World, job
from tests.cluster.merge_patches import merged

OVER = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}


def key(name: str) -> ObjectKind:
    return KINDS[name > "c"]


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
DELIVERIES = st.tuples(st.sampled_from(KINDS), st.integers(1, 6))
EVENTS = st.one_of(
    st.tuples(st.just("submit"), NAMES, st.integers(1, 3), st.sampled_from([2, 4, 8])),
    st.tuples(st.just("deliver"), st.sampled_from(KINDS), st.integers(1, 6)),
    st.tuples(st.just("turn")),
    st.tuples(
        st.just("meanwhile"),
        st.lists(st.none() | st.tuples(st.sampled_from(KINDS), st.integers(1, 6)), max_size=6),
    ),
    st.tuples(st.just("touch"), NAMES),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("trouble"), st.lists(st.sampled_from(["", "refused", "lost"]), max_size=4).map(tuple)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 31.0, 601.0])),
    st.tuples(st.just("take over")),
)


LATE = [("submit", "a", 1, 2), ("deliver", kinds.JOB, 1), ("turn",), ("submit", "d", 1, 2)]
LATE += [("deliver", kinds.JOB_SET, 1), ("turn",)]


SCATTERED: list[tuple[Any, ...]] = []
for name, pods, devices in (("a", 1, 4), ("b", 1, 4), ("c", 1, 4)):
    SCATTERED += [("submit", name, pods, devices), ("deliver", kinds.JOB, 1), ("turn",), ("deliver", kinds.JOB, 6)]
SCATTERED += [("end", "b"), ("deliver", kinds.JOB, 1), ("submit", "d", 1, 8), ("deliver", kinds.JOB_SET, 1)]
SCATTERED += [("turn",), ("deliver", kinds.JOB, 6), ("turn",), ("deliver", kinds.JOB_SET, 6), ("turn",)]


@example(events=LATE, does_make_room=False)
@example(events=[LATE[0], LATE[1], ("trouble", ("lost",)), *LATE[2:]], does_make_room=False)
@example(events=SCATTERED, does_make_room=True)
@given(events=st.lists(EVENTS, min_size=5, max_size=40), does_make_room=st.booleans())
def test_whatever_is_late_lost_or_refused_no_device_is_given_twice(
    events: list[tuple[Any, ...]], does_make_room: bool
) -> None:
    world = World(does_make_room=does_make_room)
    server = world.server
    for what, *said in events:
        name = said[0] if said and isinstance(said[0], str) else ""
        kind = key(name)
        old = server.objects.get((kind.kind, name))
        if what == "submit" and old is None:
            server.put(kind, job(kind, *said))
        elif what == "deliver":
            world.deliver(*said)
        elif what == "turn":
            world.turn()
        elif what == "meanwhile":
            world.meanwhile(said[0])
        elif what == "touch" and old:
            server.put(kind, merged(old, {"status": {"ready": 0}}))
        elif what == "end" and old:
            server.put(kind, merged(old, OVER))
        elif what == "delete":
            server.remove(kind, name)
        elif what == "trouble":
            server.trouble = list(said[0])
        elif what == "wait":
            world.now_s += said[0]
        elif what == "take over":
            world.take_over()
        if what == "turn":
            world.meanwhile([])
        held = world.held()
        assert len(held) == len(set(held)), f"after {what} {said}: {sorted(held)}"


def test_a_place_that_somebody_takes_between_the_decision_and_its_assumption_is_not_given() -> None:
    world = World()
    world.server.put(kinds.JOB, job(kinds.JOB, "a", 2, 8))
    world.deliver(kinds.JOB, 1)
    world.turn()
    theirs = world.server.objects["Job", "a"]
    other = World()
    other.server.put(kinds.JOB_SET, job(kinds.JOB_SET, "d", 2, 8))
    other.deliver(kinds.JOB_SET, 1)
    other.server.put(kinds.JOB, theirs)
    # The lock is taken to heal, to move, for the snapshot, and to assume: before that another's job is heard of.
    other.meanwhile([None, None, None, (kinds.JOB, 1)])
    other.turn()
    held = other.held()
    assert len(held) == len(set(held)) == 16
    assert jobs.is_suspended(other.server.objects["JobSet", "d"])
