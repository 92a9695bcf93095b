"""Flows share links max-min fair, links change and are cut, and every byte arrives once."""

import math

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.events.network import Flow, Network, fair_rates
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
