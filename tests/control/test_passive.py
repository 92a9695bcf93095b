"""Transfers that jobs report stand for probes: the best of a while, each counted once."""

import pytest

from strata.control.passive import ROUND_TRIPS, Transfers, corroborated
from strata.control.state import LinkEstimate, LinkSeen, Snapshot, Transfer
from tests.support import builders

FLEET = builders.fleet(builders.domain("a"), builders.domain("b"), gbps=1.0, ms=10.0)
RATE = 1e9 / 8
LONG = ROUND_TRIPS * 2 * 0.01 * RATE


def transfer(share, *, at_s, num_bytes=LONG, source="a", dest="b"):
    return Transfer(source, dest, at_s, num_bytes, num_bytes / (share * RATE))


def test_a_link_is_as_fast_as_the_best_of_what_crossed_it_in_a_while():
    transfers = Transfers(FLEET, every_s=60.0)
    transfers.take_in([transfer(0.4, at_s=100.0), transfer(0.9, at_s=101.0)], 1000.0)
    assert transfers.seen(1030.0) == []
    transfers.take_in([transfer(0.5, at_s=140.0)], 1040.0)
    (seen,) = transfers.seen(1060.0)
    assert (seen.source, seen.dest, seen.at_s) == ("a", "b", 1060.0)
    assert seen.bandwidth_bytes_per_s == pytest.approx(0.9 * RATE)
    assert transfers.seen(2000.0) == []


def test_the_same_report_counts_once_however_often_it_is_seen():
    transfers, reports = Transfers(FLEET, every_s=60.0), [transfer(0.9, at_s=100.0)]
    transfers.take_in(reports, 1000.0)
    assert len(transfers.seen(1060.0)) == 1
    transfers.take_in([*reports, transfer(0.1, at_s=170.0)], 1070.0)
    assert [seen.bandwidth_bytes_per_s for seen in transfers.seen(1130.0)] == [pytest.approx(0.1 * RATE)]


@pytest.mark.parametrize(
    "of_no_use", [{"num_bytes": LONG / 2}, {"dest": "elsewhere"}, {"source": "b", "dest": "b"}]
)
def test_what_is_too_short_to_tell_or_crosses_no_link_says_nothing(of_no_use):
    transfers = Transfers(FLEET, every_s=60.0)
    transfers.take_in([transfer(0.1, at_s=100.0, **of_no_use)], 1000.0)
    assert transfers.seen(1e6) == []


def test_a_link_that_was_seen_is_not_probed():
    transfers = Transfers(FLEET, every_s=60.0)
    assert not transfers.covers(("a", "b"), 1000.0)
    transfers.take_in([transfer(0.9, at_s=100.0)], 1000.0)
    transfers.seen(1060.0)
    assert transfers.covers(("a", "b"), 1100.0)
    assert not transfers.covers(("b", "a"), 1100.0)
    assert not transfers.covers(("a", "b"), 1200.0)


@pytest.mark.parametrize(
    ("shares", "believed", "asked"),
    [
        pytest.param([0.9], 0.9, 1, id="as before"),
        pytest.param([0.0, 0.95, 1.0], 0.95, 3, id="one lie of nothing"),
        pytest.param([0.0, 0.0, 1.0], 0.0, 3, id="an outage"),
        pytest.param([40.0, 1.1, 1.0], 1.1, 3, id="one lie of too much"),
        pytest.param([0.1, 0.1, 0.12], 0.1, 3, id="a tenth"),
    ],
)
def test_a_probe_far_off_the_one_before_is_believed_by_the_second_of_three(shares, believed, asked):
    before = Snapshot(FLEET, links={("a", "b"): LinkEstimate(recent=((0.0, 1.0),))})
    probes = iter([LinkSeen("a", "b", 1.0, share * RATE) for share in shares])
    seen = corroborated(lambda: next(probes), before)
    assert seen.bandwidth_bytes_per_s == pytest.approx(believed * RATE)
    assert len(list(probes)) == len(shares) - asked


def test_a_link_that_stays_down_is_asked_once():
    before = Snapshot(FLEET, links={("a", "b"): LinkEstimate(recent=((0.0, 0.0),))})
    probes = iter([LinkSeen("a", "b", 1.0, 0.0)])
    assert corroborated(lambda: next(probes), before).bandwidth_bytes_per_s == 0.0
