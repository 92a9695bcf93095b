"""The figure of an attempt, from logs, Prometheus pages, Kineto traces and DCGM pages."""

from __future__ import annotations

import gzip
import json

import pytest

from strata.errors import UsageError
from strata.host.rollout.measures import measure
from strata.host.rollout.rollout import RolloutPlan, Unit


def of(folder, text: str | bytes, unit: str = "qps", **more: str) -> float:
    file = folder / "attempt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return measure(RolloutPlan("p", Unit(unit), **more), file)


def test_the_median_of_a_log_without_its_warm_up(tmp_path):
    log = "starting\n" + "".join(f"step {i} loss 0.3 qps: {value}\n" for i, value in enumerate(
        ["1", *["150,000"] * 8, "3.0"]
    ))  # fmt: skip
    assert of(tmp_path, log) == 150_000
    assert of(tmp_path, "QPS=1.5e5\n") == 150_000
    assert of(tmp_path, "rate 7/s\nrate 9/s\n", pattern=r"rate (\d+)/s") == 8


def test_a_gauge_and_a_counter_of_prometheus(tmp_path):
    gauge = 'train_qps{rank="0",note="a } b"} 100\ntrain_qps{rank="1",note="a } b"} 300\ntrain_qps_other 7\n'
    assert of(tmp_path, gauge, metric="train_qps") == 200
    counter = (
        "# TYPE samples_total counter\n"
        'samples_total{rank="0"} 100 1000\nsamples_total{rank="1"} 0 1000\n'
        'samples_total{rank="0"} 300 3000\nsamples_total{rank="1"} 100 3000\n'
    )
    assert of(tmp_path, counter, metric="samples_total") == 150  # 200 + 100 in 2 s
    with pytest.raises(UsageError, match="counter: its rate needs two samples"):
        of(tmp_path, "samples_total 5\n", metric="samples_total")


def answer(*result):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(result)}})


def test_what_prometheus_answers_to_a_query_of_a_range(tmp_path):
    labels = {"__name__": "train_qps", "job": "ads-7"}
    values = [[1.7e9, "100"], [1.7e9 + 15, "NaN"], [1.7e9 + 30, "200"]]
    gauge = answer({"metric": labels, "values": values}, {"metric": {"__name__": "other"}, "values": [[1, "7"]]})
    assert of(tmp_path, gauge, metric="train_qps") == 150
    counter = answer({"metric": {"__name__": "samples_total"}, "values": [[10, "100"], [20, "50"], [30, "150"]]})
    assert of(tmp_path, counter, metric="samples_total") == 7.5  # it began anew: 50 and 100 in 20 s
    rate = answer({"metric": {}, "values": [[10, "3"], [20, "5"]]})
    assert of(tmp_path, rate, metric="samples_total") == 4
    now = answer({"metric": {"gpu": "0"}, "value": [10, "0.5"]}, {"metric": {"gpu": "1"}, "value": [10, "0.7"]})
    assert of(tmp_path, now, "sm-active") == pytest.approx(0.6)
    with pytest.raises(UsageError, match="no answer of Prometheus"):
        of(tmp_path, '{"status": "error", "error": "timeout"}', metric="train_qps")


def test_times_of_openmetrics_are_in_seconds(tmp_path):
    page = "# TYPE samples counter\nsamples_total 10 5.5\nsamples_total 20 7.5\n# EOF\n"
    assert of(tmp_path, page, metric="samples_total") == 5


def test_numbers_of_logs_keep_their_sign_and_their_thousands(tmp_path):
    assert of(tmp_path, "qps: 900.5k\nqps: 1.1M\n") == pytest.approx(1_000_250)
    assert of(tmp_path, "QPS - 150\n") == 150
    with pytest.raises(UsageError, match="a ratio needs a positive value"):
        of(tmp_path, "qps: -5\n")
    with pytest.raises(UsageError, match="no line with"):
        of(tmp_path, "qps: nan\nqps 150ms\n")


def test_a_pattern_or_a_metric_is_read_whatever_the_unit(tmp_path):
    assert of(tmp_path, "step took 0.5 s\n" * 3, "step-time", pattern=r"took (\S+) s") == 0.5
    assert of(tmp_path, "step_seconds 0.25\n", "step-time", metric="step_seconds") == 0.25
    assert of(tmp_path, "SM 70 %\n", "sm-active", pattern=r"SM (\d+)") == 70


def test_activity_is_the_mean_over_gpus(tmp_path):
    page = (
        "# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.\n"
        "# TYPE DCGM_FI_PROF_SM_ACTIVE gauge\n"
        'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA H200"} 0.8\n'
        'DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",modelName="NVIDIA H200"} 0.4\n'
        'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"} 0.3\nDCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1"} NaN\n'
    )
    assert of(tmp_path, page, "sm-active") == pytest.approx(0.6)
    assert of(tmp_path, page, "tensor-active") == pytest.approx(0.3)


def test_steps_of_a_kineto_trace_count_once(tmp_path):
    events = [
        {"ph": "X", "cat": cat, "name": f"ProfilerStep#{i}", "pid": pid, "tid": 1, "ts": 1e6 * i, "dur": dur}
        for i, dur in enumerate([9e6, 2e5, 3e5, 4e5, 2e5, 3e5, 4e5, 2e5, 3e5, 4e5])
        for cat, pid in (("user_annotation", 7), ("gpu_user_annotation", 0))
    ] + [{"ph": "X", "name": "aten::add", "ts": 1, "dur": 5}, {"ph": "M"}]
    trace = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    assert of(tmp_path, trace, "step-time") == pytest.approx(0.3)
    assert of(tmp_path, gzip.compress(trace), "step-time") == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("text", "unit", "more", "said"),
    [
        ("nothing here\n", "qps", {}, "no line with"),
        ("qps 0\n", "qps", {}, "a ratio needs a positive value"),
        ("x\n", "qps", {"pattern": "("}, "its first group must be the number"),
        ("x y\n", "qps", {"pattern": "x (y)"}, "is not a number"),
        ("x\n", "qps", {"pattern": "x"}, "its first group must be the number"),
        ("a 1\n", "qps", {"metric": "b"}, "no sample of b"),
        ("{", "step-time", {}, "no JSON"),
        ("[]", "step-time", {}, "no ProfilerStep"),
        ("7", "step-time", {}, "no ProfilerStep"),
        ("up 1\n", "sm-active", {}, "no sample of DCGM_FI_PROF_SM_ACTIVE"),
        (b"\x1f\x8bbroken", "qps", {}, "attempt: "),
        (b"\xff\xfe\x00", "qps", {}, "no line with"),
    ],
)
def test_a_file_without_the_measure_says_so(tmp_path, text, unit, more, said):
    with pytest.raises(UsageError, match=said):
        of(tmp_path, text, unit, **more)


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        measure(RolloutPlan("p"), tmp_path / "none")
