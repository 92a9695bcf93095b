"""Room is made for a gang that fits nowhere by moving the gangs that lose least, and each of those goes on."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from strata.cluster.scheduling import defragment
from strata.cluster.scheduling.defragment import Movable, propose
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index, has_room, released
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from tests.cluster.builders import A100, B3, PROFILES, claim, cluster, node
from tests.support.laws import examples


def placed(index, *asked):
    """Gangs that were placed one after the other, and the index after them."""
    gangs = []
    for number, (wish, cost_s) in enumerate(asked):
        placement = evaluate(index, wish, PROFILES).choice.placement
        if placement is not None:
            index = index.placed(placement)
            gangs.append(Movable(f"Job/default/{number}", wish, placement, cost_s))
    return index, gangs


def scattered(*counts, cost_s=100.0):
    """Nodes of 8 devices, on each a gang of so many; all may move."""
    index = Index.of(cluster(*(node(f"n{i}") for i in range(len(counts)))))
    gangs = []
    for i, count in enumerate(counts):
        only = Index.of(cluster(*(node(f"n{j}", busy=() if j == i else range(8)) for j in range(len(counts)))))
        placement = evaluate(only, claim(count), PROFILES).choice.placement
        index = index.placed(placement)
        gangs.append(Movable(f"Job/default/{i}", claim(count), placement, cost_s * count))
    return index, gangs


def test_two_half_empty_nodes_make_room_for_a_whole_one_by_the_cheaper_move():
    index, gangs = scattered(4, 3, 6)
    wish = claim(8)
    assert evaluate(index, wish, PROFILES).choice.placement is None
    proposal = propose(index, wish, PROFILES, gangs)
    ((moved, after),) = proposal.moves
    assert (moved.gang, proposal.cost_device_s, proposal.is_least) == ("Job/default/1", 300.0, True)
    assert proposal.placement.nodes == ("n1",)
    assert after.nodes == ("n0",)


def test_who_could_go_nowhere_else_is_not_moved():
    index, gangs = scattered(5, 4)
    assert propose(index, claim(8), PROFILES, gangs) is None
    assert propose(index, claim(8), PROFILES, []) is None


def test_only_devices_that_the_gang_may_have_are_given_back():
    index, gangs = scattered(4, 4)
    assert propose(index, claim(8, accelerator=B3, substitution="never"), PROFILES, gangs) is None
    wish = claim(4, accelerator=A100, pods=3)
    assert propose(index, wish, PROFILES, gangs) is None


def test_a_gang_moves_on_so_that_another_may():
    """The one that is in the way fits only where a third has to leave."""
    where = cluster(node("n0"), node("n1"), node("n2", B3))
    index = Index.of(where)
    never = {"accelerator": A100, "substitution": "never"}
    asked = [(claim(4, **never), 10.0), (claim(8, accelerator=A100), 20.0)]
    index, gangs = placed(index, *asked)
    proposal = propose(index, claim(8, **never), PROFILES, gangs)
    assert {movable.gang: after.nodes for movable, after in proposal.moves} == {"Job/default/1": ("n2",)}


def test_where_too_many_sets_are_possible_one_is_made_from_which_none_can_be_left_out(monkeypatch):
    monkeypatch.setattr(defragment, "_MOST_TRIED", 1)
    index, (half, small, large) = scattered(4, 3, 6)
    cheap = replace(large, cost_device_s=1.0)  # looked at first, and fits nowhere else
    proposal = propose(index, claim(8), PROFILES, [half, small, cheap])
    assert not proposal.is_least
    assert [movable for movable, _ in proposal.moves] == [small]


HERE = st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(1, 9))
"""A gang of one pod: its node, its devices, its cost."""


@examples(90)
@given(there=st.lists(HERE, min_size=2, max_size=5), pods=st.integers(1, 2), devices=st.sampled_from((4, 6, 8)))
@example(there=[(0, 4, 2), (1, 3, 1), (2, 6, 5)], pods=1, devices=8)
@example(there=[(0, 2, 4), (0, 2, 4), (1, 3, 9), (2, 3, 1)], pods=2, devices=8)
def test_the_set_costs_least_and_everybody_has_a_place_of_their_own(there, pods, devices):
    index, gangs = Index.of(cluster(*(node(f"n{i}") for i in range(3)))), []
    used = [0, 0, 0]
    for at, count, cost in there:
        if used[at] + count > 8:
            continue
        place = PodPlace(f"n{at}", tuple(range(used[at], used[at] + count)))
        used[at] += count
        placement = Placement("pytorch-nvidia", (place,), count, 1e9, model=A100)
        index = index.placed(placement)
        gangs.append(Movable(f"Job/default/{len(gangs)}", claim(count), placement, float(cost)))
    waiting = claim(devices, pods)
    assume(evaluate(index, waiting, PROFILES).choice.placement is None)
    proposal = propose(index, waiting, PROFILES, gangs)
    costs = [cost for cost, some in subsets(gangs) if is_feasible(index, waiting, some)]
    event("feasible" if costs else "infeasible")
    if proposal is None:
        assert costs == []
        return
    assert proposal.is_least
    assert proposal.cost_device_s == pytest.approx(min(costs))
    for movable, _ in proposal.moves:
        index = index.with_nodes(released(index, movable.placement))
    for placement in (proposal.placement, *(after for _, after in proposal.moves)):
        assert has_room(index, placement)
        index = index.placed(placement)


def subsets(gangs):
    for some in chain.from_iterable(combinations(gangs, count) for count in range(1, len(gangs) + 1)):
        yield sum(each.cost_device_s for each in some), some


def is_feasible(index, waiting, some):
    """As the router would decide, written without looking at how `propose` does."""
    for movable in some:
        index = index.with_nodes(released(index, movable.placement))
    for wish in (waiting, *(movable.claim for movable in some)):
        placement = evaluate(index, wish, PROFILES).choice.placement
        if placement is None:
            return False
        index = index.placed(placement)
    return True
