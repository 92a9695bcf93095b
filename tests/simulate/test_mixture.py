from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.svg import mixtures
from strata.simulate.timeline import Span, SpanKind
from tests.simulate.random_timelines import timelines


@given(timeline=timelines(), most=st.integers(1, 6), gap_s=st.floats(0, 10))
def test_shares_times_their_stretches_are_the_time_of_each_kind(timeline, most, gap_s):
    for spans in timeline.by_lane().values():
        parts = mixtures(spans, most=most, longest_gap_s=gap_s)
        assert [part.start_s for part in parts] == sorted(part.start_s for part in parts)
        assert not parts or parts[-1].shares == {}
        for kind in SpanKind:
            drawn = sum((b.start_s - a.start_s) * a.shares.get(kind, 0.0) for a, b in pairwise(parts))
            assert drawn == pytest.approx(sum(s.end_s - s.start_s for s in spans if s.kind is kind), abs=1e-9)


def test_a_steady_rhythm_is_one_level_and_a_long_wait_is_left_empty():
    spans = []
    for start in (*range(0, 400, 4), *range(500, 900, 4)):
        spans.append(Span("a", SpanKind.FORWARD, start, start + 1.0))
        spans.append(Span("a", SpanKind.BACKWARD, start + 1.0, start + 3.0))
    parts = mixtures(spans, most=40, longest_gap_s=20.0)
    # The last of a run has no wait after it.
    steady = [part.shares for part, after in pairwise(parts) if part.shares and after.shares]
    assert len(steady) > 10
    assert all(shares == pytest.approx({SpanKind.FORWARD: 0.25, SpanKind.BACKWARD: 0.5}) for shares in steady)
    assert [part.start_s for part in parts if not part.shares] == [399.0, 899.0]
    assert len(parts) < 50
