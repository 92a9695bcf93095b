"""Flows share links max-min fair, links change and are cut, and every byte arrives once."""

import math

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.events.network import Flow, Network, fair_rates, joint_rates
from tests.support.laws import examples

WIRE = ("a", "b")


def flow(weight=1.0, limit=math.inf, priority=0):
    return Flow(None, 1.0, weight, limit, priority, simpy.Environment().event())


FLOWS = st.lists(
    st.builds(
        flow,
        weight=st.integers(1, 4).map(float),
        limit=st.sampled_from([0.1, 0.25, 0.5, math.inf]),
        priority=st.integers(0, 1),
    ),
    min_size=1,
    max_size=6,
)


class Sent:
    """Sends flows at given times and notes when each has left."""

    def __init__(self, flows, changes=()):
        self.env = simpy.Environment()
        self.network = Network(self.env, [WIRE])
        self.ended = [math.nan] * len(flows)
        self.loads = []
        for i, (at_s, work_s, options) in enumerate(flows):
            self.env.process(self.send(i, at_s, work_s, options))
        for at_s, change in changes:
            self.env.process(self.change(at_s, change))

    def send(self, i, at_s, work_s, options):
        yield self.env.timeout(at_s)
        yield self.network.send(WIRE, work_s, owner=i, **options)
        self.ended[i] = self.env.now

    def change(self, at_s, change):
        yield self.env.timeout(at_s)
        change(self.network)

    def run(self):
        while self.env.peek() < math.inf:
            before = self.env.now
            self.loads.append((self.env.peek() - before, *self.network.load(WIRE)))
            self.env.step()
        return self.ended


def ends(flows, changes=()):
    return Sent(flows, changes).run()


@given(flows=FLOWS, capacity=st.sampled_from([0.0, 0.3, 1.0, 1.5]))
def test_rates_are_max_min_fair(flows, capacity):
    rates = fair_rates(capacity, flows)
    assert sum(rates) <= capacity + 1e-12
    assert all(0 <= rate <= one.limit for rate, one in zip(rates, flows, strict=True))
    for rate, one in zip(rates, flows, strict=True):
        if rate < one.limit - 1e-12:
            # It could only grow if another shrank: one that has no more per weight, or goes first.
            assert sum(rates) == pytest.approx(capacity)
            for other_rate, other in zip(rates, flows, strict=True):
                if other.priority == one.priority:
                    assert other_rate / other.weight <= rate / one.weight + 1e-12
                elif other.priority < one.priority:
                    assert other_rate <= 1e-12


@given(
    flows=st.lists(
        st.tuples(
            st.floats(0, 20),
            st.floats(0.1, 10),
            st.fixed_dictionaries({"weight": st.sampled_from([1.0, 3.0]), "priority": st.integers(0, 1)}),
        ),
        min_size=1,
        max_size=6,
    ),
    factors=st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 2)), max_size=4),
)
@examples(60)
def test_no_link_is_over_its_capacity_and_every_byte_is_delivered_once(flows, factors):
    changes = [
        (at_s, lambda network, factor=factor: network.vary(WIRE, bandwidth_factor=factor))
        for at_s, factor in factors
    ]
    sent = Sent(flows, changes)
    assert all(math.isfinite(end) for end in sent.run())
    assert all(sum(rates) <= capacity + 1e-9 for _, capacity, rates in sent.loads)
    delivered = sum(length * sum(rates) for length, _, rates in sent.loads if math.isfinite(length))
    assert delivered == pytest.approx(sum(work_s for _, work_s, _ in flows))


PAIRS = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "a")]


@given(
    flows=st.lists(st.tuples(st.sampled_from(PAIRS), FLOWS.map(lambda each: each[0])), min_size=1, max_size=7),
    capacity=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
    uplinks=st.dictionaries(st.sampled_from([("a", "out"), ("c", "in"), ("b", "out")]), st.floats(0.1, 3)),
    bytes_per_s=st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=4, max_size=4),
)
@examples(60)
def test_rates_over_shared_uplinks_are_max_min_fair(flows, capacity, uplinks, bytes_per_s):
    """No message can have more bytes a second unless another that has no more, or goes first, has less."""
    room = dict(zip(PAIRS, capacity, strict=True))
    for pair, one in flows:
        one.bytes_per_s = bytes_per_s[PAIRS.index(pair)]
    rates = joint_rates(room, uplinks, flows)
    each = [rate * one.bytes_per_s / one.weight for rate, (_, one) in zip(rates, flows, strict=True)]
    places = {pair: [i for i, (other, _) in enumerate(flows) if other == pair] for pair in PAIRS}
    used = {pair: (sum(rates[i] for i in on), room[pair]) for pair, on in places.items()}
    for (site, way), most in uplinks.items():
        places[site, way] = [i for i, (pair, _) in enumerate(flows) if pair[way == "in"] == site]
        used[site, way] = sum(each[i] * flows[i][1].weight for i in places[site, way]), most
    assert all(now <= most * (1 + 1e-9) + 1e-12 for now, most in used.values())
    for i, (_, one) in enumerate(flows):
        if rates[i] < one.limit * (1 - 1e-9):
            full = [
                on for place, on in places.items() if i in on and used[place][0] >= used[place][1] * (1 - 1e-9)
            ]
            first = [j for on in full for j in on if flows[j][1].priority > one.priority]
            alike = [on for on in full if all(
                each[j] <= each[i] * (1 + 1e-9) + 1e-12 for j in on if flows[j][1].priority == one.priority
            )]  # fmt: skip
            assert alike or first


def test_without_uplinks_that_are_shared_each_link_is_by_itself():
    flows = [(pair, flow(weight=1.0 + k)) for k, pair in enumerate([*PAIRS, *PAIRS])]
    alone = [fair_rates(1.0, [one for other, one in flows if other == pair]) for pair in PAIRS]
    together = joint_rates(dict.fromkeys(PAIRS, 1.0), {}, flows)
    assert together == pytest.approx([*(first for first, _ in alone), *(second for _, second in alone)])


def test_flows_over_two_links_of_a_site_share_its_uplink():
    env = simpy.Environment()
    network, ended = Network(env, PAIRS, uplinks={"a": 5.0}), {}

    def send(pair, at_s, size_bytes):
        yield env.timeout(at_s)
        yield network.send(pair, size_bytes / 10.0, owner=pair, size_bytes=size_bytes)  # links of 10 B/s
        ended[pair] = env.now

    env.process(send(("a", "b"), 0, 10))
    env.process(send(("a", "c"), 0, 20))
    env.process(send(("c", "a"), 0, 10))
    env.process(send(("b", "c"), 0, 10))
    env.run()
    # Half of 5 B/s each until the shorter one is through; the other way and other sites are free of it.
    assert ended == {("a", "b"): 4.0, ("a", "c"): 6.0, ("c", "a"): 2.0, ("b", "c"): 1.0}


def test_two_flows_on_one_link_get_half_each():
    assert ends([(0, 4, {}), (0, 4, {})]) == [8, 8]
    # The second comes when half of the first has left; then each needs twice as long.
    assert ends([(0, 4, {}), (2, 4, {})]) == [6, 8]


def test_a_flow_of_three_messages_gets_three_shares():
    assert ends([(0, 3, {"weight": 3}), (0, 1, {})]) == [4, 4]


def test_what_a_slow_card_leaves_goes_to_the_other():
    assert ends([(0, 1, {"limit": 0.25}), (0, 3, {})]) == [4, 4]


def test_the_higher_priority_goes_first():
    assert ends([(0, 4, {}), (1, 2, {"priority": 1})]) == [6, 3]


def test_a_link_that_halves_for_ten_seconds_costs_five():
    slow = (3, lambda network: network.vary(WIRE, bandwidth_factor=0.5))
    well = (13, lambda network: network.vary(WIRE))
    assert ends([(0, 20, {})], [slow, well]) == [25]


def test_a_cut_link_costs_as_long_as_it_is_cut_and_two_cuts_must_both_be_mended():
    def cut(is_cut):
        return lambda network: network.cut(WIRE, is_cut=is_cut)

    assert ends([(0, 5, {})], [(2, cut(True)), (9, cut(False))]) == [12]
    assert ends([(0, 5, {})], [(2, cut(True)), (3, cut(True)), (9, cut(False)), (11, cut(False))]) == [14]


def test_a_dropped_flow_never_ends_and_leaves_its_share():
    found = ends([(0, 4, {}), (0, 4, {})], [(2, lambda network: network.drop(0))])
    assert np.isnan(found[0])
    assert found[1] == 5


@given(
    flows=st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.just({})), min_size=1, max_size=5),
    wider=st.floats(1, 3),
)
@examples(40)
def test_more_bandwidth_delays_nothing(flows, wider):
    change = (0.0, lambda network: network.vary(WIRE, bandwidth_factor=wider))
    for before, after in zip(ends(flows), ends(flows, [change]), strict=True):
        assert after <= before * (1 + 1e-9)
