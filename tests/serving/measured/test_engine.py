"""One pipeline and its queue, against what can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from strata.serving.layout import Layout, Line, StageServer
from strata.serving.measured.engine import EngineRun
from strata.serving.planning.allocation import Stage
from strata.workload.requests import Request


def took(came, *, sequences=100, step_tokens=512, kv_tokens=10**6, decode=Line(0.01), prefill=Line(0.0, 1e-4)):  # noqa: B008
    stages = (Stage("a", 0, 1),)
    server = StageServer("a", 0, 1, decode, prefill, sequences, kv_tokens)
    layout = Layout(1, (server,), (stages,))
    run = EngineRun(layout, [Request(*one) for one in came], sequences=sequences, step_tokens=step_tokens)
    return run.run()


def test_one_request_is_read_and_then_decoded():
    times = took([(3.0, 100, 11)])
    assert times.ttft_s == pytest.approx([0.01])
    assert times.latency_s == pytest.approx([0.01 + 10 * 0.01])
    assert times.tpot_s(np.array([11.0])) == pytest.approx([0.01])
    assert np.isnan(took([(0.0, 100, 1)]).tpot_s(np.array([1.0]))).all()


def test_no_more_sequences_run_than_the_engine_takes():
    times = took([(0.0, 100, 101)] * 2, sequences=1)
    assert times.latency_s == pytest.approx([1.01, 2.02])
    assert times.ttft_s[1] == pytest.approx(1.02)


def test_who_does_not_fit_into_kv_memory_waits_until_another_ends():
    times = took([(0.0, 600, 101), (0.0, 600, 2)], kv_tokens=1000)
    assert times.ttft_s[1] > times.latency_s[0] == pytest.approx(0.06 + 100 * 0.01)


def test_where_kv_memory_runs_out_the_last_to_come_begins_anew():
    # Both fit as they come and not as they end: the second is read again with what it had said.
    free, tight = (took([(0.0, 400, 301), (0.0, 400, 301)], kv_tokens=tokens) for tokens in (10**6, 1000))
    assert tight.latency_s[0] == pytest.approx(free.latency_s[0], rel=0.02)
    assert tight.latency_s[1] > tight.latency_s[0]
    assert tight.ttft_s == pytest.approx(free.ttft_s)
    # 100 tokens, then the other's 200 alone, the prompt and those once more, and the last 200.
    assert tight.latency_s[1] == pytest.approx(0.08 + 3.0 + 0.05 + 2.0, rel=0.02)


def test_a_request_that_never_fits_has_no_times_and_holds_nobody_up():
    times = took([(0.0, 900, 200), (0.0, 100, 11)], kv_tokens=1000)
    assert np.isnan(times.latency_s[0])
    assert times.latency_s[1] == pytest.approx(0.11)
