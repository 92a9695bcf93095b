"""A trace of PyTorch's profiler on an H200 (torch 2.11): six layers, every third step behind a sleep of 20 ms."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from strata.host.analysis.kineto import kineto_trace

TRACE = Path(__file__).parent / "h200_kineto.json.gz"


def test_the_sleeps_between_steps_are_when_the_accelerator_was_idle():
    trace = kineto_trace(TRACE)
    order = np.argsort(trace.busy_start_ns)
    ends = np.maximum.accumulate(trace.busy_end_ns[order])
    gaps_ms = (trace.busy_start_ns[order][1:] - ends[:-1]) / 1e6
    assert [round(float(gap)) for gap in gaps_ms if gap > 5] == [22, 22]


def test_forward_and_optimizer_are_launched_by_the_program_and_the_backward_by_autograds_thread():
    trace = kineto_trace(TRACE)
    assert set(trace.busy_tid.tolist()) == {570, 610}
    assert set(trace.busy_device.tolist()) == {0}
    assert trace.launch_ns.size >= trace.busy_start_ns.size
