from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from strata.serving.routing.queue import PATIENCE, WaitingQueue
from tests.serving.routing.layouts import request
from tests.support.laws import examples


def anything(_request) -> bool:
    return True


def names(queue: WaitingQueue, now_s: float = 0.0, can=anything) -> list[str]:
    found = []
    while one := queue.pop(now_s, can):
        found.append(one.request_id)
    return found


def test_priority_goes_first_and_within_it_who_came_first():
    queue = WaitingQueue(10)
    for name, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        queue.push(request(name, priority=priority), 0.0)
    assert names(queue) == ["b", "d", "a", "c"]


def test_waiting_is_worth_a_priority_every_so_many_seconds():
    queue = WaitingQueue(10, aging_s=10.0)
    queue.push(request("old", priority=0), 0.0)
    queue.push(request("young", priority=2), 21.0)
    queue.push(request("middle", priority=2), 19.0)
    assert names(queue) == ["middle", "old", "young"]


@given(st.integers(0, 5), st.floats(0.1, 20))
@examples(40)
def test_a_stream_of_higher_priority_starves_nobody(priority, aging_s):
    queue, now = WaitingQueue(10_000, aging_s), 0.0
    queue.push(request("low"), now)
    for i in range(10_000):
        now += 0.5
        queue.push(request(f"h{i}", priority=priority), now)
        if queue.pop(now, anything).request_id == "low":
            break
    assert now <= priority * aging_s + 1.0


def test_small_ones_pass_a_large_one_but_not_for_ever():
    queue = WaitingQueue(1000)
    queue.push(request("large", prompt=500), 0.0)
    for i in range(PATIENCE + 5):
        queue.push(request(f"s{i}"), 0.0)

    def is_small(one):
        return one.prompt_tokens < 100

    assert names(queue, can=is_small) == [f"s{i}" for i in range(PATIENCE)]
    assert queue.pop(0.0, anything).request_id == "large"
    assert len(names(queue, can=is_small)) == 5


def test_only_the_first_few_are_tried():
    queue, asked = WaitingQueue(100), []
    for i in range(50):
        queue.push(request(f"r{i}"), 0.0)
    assert queue.pop(0.0, lambda one: asked.append(one.request_id), tries=3) is None
    assert asked == ["r0", "r1", "r2"]
    assert names(queue) == [f"r{i}" for i in range(50)]


def test_the_cancelled_are_gone_and_their_places_free():
    queue = WaitingQueue(2)
    assert queue.push(request("a"), 0.0)
    assert queue.push(request("b"), 0.0)
    assert not queue.push(request("c"), 0.0)
    assert queue.remove("a")
    assert not queue.remove("a")
    assert queue.push(request("a"), 1.0)
    assert len(queue) == 2
    assert names(queue) == ["b", "a"]


def test_the_interrupted_come_back_to_their_place_however_full():
    queue = WaitingQueue(1)
    queue.push(request("waits"), 5.0)
    assert queue.push(request("back", generated=3), 1.0, is_forced=True)
    assert names(queue) == ["back", "waits"]


def test_many_cancelled_do_not_pile_up():
    queue = WaitingQueue(10)
    for i in range(5000):
        queue.push(request(f"r{i}"), float(i))
        queue.remove(f"r{i}")
    assert len(queue._heap) < 100


def test_a_goal_shrinks_with_waiting_and_comes_back_whole():
    queue, seen = WaitingQueue(10), []
    queue.push(request("r", ttft_goal_s=2.0), 10.0)
    assert queue.pop(11.5, lambda one: seen.append(one.ttft_goal_s)) is None
    found = queue.pop(13.0, lambda one: seen.append(one.ttft_goal_s) or True)
    assert (seen, found.ttft_goal_s) == ([0.5, -1.0], 2.0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 20), st.integers(-3, 3)),
            st.tuples(st.just("remove"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("pop"), st.just(0), st.just(0)),
        ),
        max_size=60,
    )
)
@examples(80)
def test_it_answers_as_a_sorted_list_would(steps):
    queue, model = WaitingQueue(8, aging_s=4.0), []
    for now, (what, number, priority) in enumerate(steps):
        name, known = f"r{number}", {entry[2] for entry in model}
        if what == "push" and name not in known:
            assert queue.push(request(name, priority=priority), float(now)) == (len(model) < 8)
            if len(model) < 8:
                heapq.heappush(model, (now - 4.0 * priority, now, name))
        elif what == "remove":
            assert queue.remove(name) == (name in known)
            model = sorted(entry for entry in model if entry[2] != name)
        elif what == "pop":
            one = queue.pop(float(now), anything)
            assert (one.request_id if one else None) == (heapq.heappop(model)[2] if model else None)
        assert len(queue) == len(model)
