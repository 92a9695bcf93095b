"""Lanes of pools: how many waited when, whose names they have, and that no wait is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from strata.host.analysis.pool_lanes import COLUMNS, MOST_POOLS, OTHERS, pool_lanes, pool_of
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from tests.host.traces import IDLE, Text

T, HOG = ("trainer_main", 11), ("hog/1", 12)
CAUSES = ("woken", "preempted", "yielded")


def crowd(names: list[str]) -> Text:
    """A trainer that waits 10 of 100 ms for a hog, and others that are woken at 50 ms and never run."""
    text = Text().switch(0, 0, IDLE, HOG).wake(10, 0, T, by=HOG).switch(20, 0, HOG, T, "R")
    for number, name in enumerate(names):
        text.wake(50, 0, (name, 100 + number), by=T)
    return text.switch(100, 0, T, HOG, "S")


def waited_ms(lane: dict, wall_ms: float) -> float:
    return sum(sum(lane[cause]) for cause in CAUSES) * wall_ms / COLUMNS


def test_a_lane_is_as_high_as_threads_wait_and_only_then(tmp_path):
    view = TraceView(crowd([]).trace(tmp_path))
    launch, hog = pool_lanes(view)
    assert (launch["pool"], launch["is_critical"], launch["threads"]) == ("kernel-launch", True, 1)
    assert (launch["waited_ms"], launch["longest_ms"]) == (10, 10)
    woken = np.array(launch["woken"])
    at_ms = (np.arange(COLUMNS) + 0.5) * 100 / COLUMNS
    assert woken[(at_ms > 11) & (at_ms < 19)] == pytest.approx(1)
    assert woken[(at_ms < 9) | (at_ms > 21)] == pytest.approx(0)
    assert (hog["pool"], hog["is_critical"]) == ("hog", False)
    assert sum(hog["preempted"]) * 100 / COLUMNS == pytest.approx(80, abs=0.5)


def test_pools_beyond_the_most_are_one_lane_and_no_wait_is_lost(tmp_path):
    names = [f"late{chr(97 + number)}" for number in range(12)] + ["pt_data_worker", "pt_data_pin"]
    view = TraceView(crowd(names).trace(tmp_path))
    lanes = pool_lanes(view)
    assert len(lanes) == MOST_POOLS
    assert [lane["pool"] for lane in lanes][:3] == ["kernel-launch", "loading", "hog"]
    assert lanes[-1]["pool"] == OTHERS
    assert sum(lane["threads"] for lane in lanes) == 2 + len(names)
    for lane in lanes:
        assert waited_ms(lane, view.wall_ns / 1e6) == pytest.approx(lane["waited_ms"], rel=0.01)


def test_a_report_says_when_its_findings_were_worst_and_whose_lane_that_is(tmp_path):
    view = TraceView(crowd([]).trace(tmp_path))
    answer = json.loads(json.dumps(report_of(view).to_dict()))
    finding = next(item for item in answer["findings"] if item["token"] == "cpu-wait")
    assert (finding["pool"], finding["worst_ms"]) == ("kernel-launch", [10, 20])
    assert finding["pool"] in [lane["pool"] for lane in answer["lanes"]]


def test_a_trace_in_which_nobody_waited_has_no_lanes(tmp_path):
    text = Text().switch(0, 0, IDLE, T).switch(5, 0, T, IDLE)
    assert pool_lanes(TraceView(text.trace(tmp_path))) == []


@pytest.mark.parametrize(
    ("name", "pool"), [("pt_nccl_watchdg", "comms-monitor"), ("omp-17", "openmp"), ("cc1", "cc")]
)
def test_a_thread_without_a_known_pool_has_its_name_without_the_number(name, pool):
    assert pool_of(name) == pool
