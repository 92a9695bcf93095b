"""Links are due to be probed one by one: a slow one delays nobody for long, and none is forgotten."""

from itertools import pairwise

from strata.control.watch import Watch

PAIRS = [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")]


def looked_at(watch, until_s, *, takes_s, now_s=0.0):
    """Return when each link was looked at: it takes so long from when it is due."""
    seen = {pair: [] for pair in PAIRS}
    while now_s < until_s:
        pair, due_s = watch.next()
        now_s = max(now_s, due_s)
        seen[pair].append(now_s)
        watch.begun(pair, now_s)
        now_s += takes_s.get(pair, 0.0)
    return seen


def test_new_links_are_spread_over_an_interval_and_each_comes_back_after_one():
    watch = Watch(every_s=20.0)
    watch.keep(PAIRS, 0.0)
    seen = looked_at(watch, 60.0, takes_s={})
    assert [times[:3] for times in seen.values()] == [[x, x + 20, x + 40] for x in (0.0, 5.0, 10.0, 15.0)]


def test_a_link_that_takes_most_of_an_interval_leaves_all_others_theirs():
    watch = Watch(every_s=20.0)
    watch.keep(PAIRS, 0.0)
    seen = looked_at(watch, 400.0, takes_s={PAIRS[0]: 15.0})
    assert {b - a for times in seen.values() for a, b in pairwise(times)} == {20.0}


def test_where_probes_take_longer_than_an_interval_all_links_have_their_turns():
    watch = Watch(every_s=20.0)
    watch.keep(PAIRS, 0.0)
    seen = looked_at(watch, 1000.0, takes_s=dict.fromkeys(PAIRS, 15.0))
    assert {b - a for times in seen.values() for a, b in pairwise(times)} == {60.0}


def test_links_of_an_edited_fleet_are_taken_up_and_the_others_keep_their_turns():
    watch = Watch(every_s=20.0)
    watch.keep(PAIRS[:2], 0.0)
    watch.begun(PAIRS[0], 3.0)
    watch.keep(PAIRS[:1] + PAIRS[2:], 5.0)
    assert watch.next() == (PAIRS[2], 5.0)
    watch.begun(PAIRS[2], 5.0)
    watch.begun(PAIRS[3], 16.0)
    assert watch.next() == (PAIRS[0], 23.0)
    watch.keep([], 30.0)
    assert watch.next() is None
