"""The one figure of an attempt, from whatever the job leaves behind: a log, a Prometheus page, a Kineto trace."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.errors import UsageError
from strata.host.rollout.rollout import RolloutPlan, Unit

QPS_PATTERN: Final = r"\b(?i:qps)\b\D{0,3}?(-?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?\d+)?[kKMG]?)\b"
"""`qps: 150,123.4`, `QPS=1.5e5`, `qps 150.1k`: how trainers write it."""
_TIMES: Final = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
DCGM: Final = {Unit.SM_ACTIVE: "DCGM_FI_PROF_SM_ACTIVE", Unit.TENSOR_ACTIVE: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}
"""Fields of the DCGM exporter, a share of the cycles in 0..1 a GPU (seed 004: the common measure of all jobs)."""
WARM_UP: Final = 0.1
"""Of a log's or a trace's values: the first are of start-up, and left out (assumed)."""
Sample = tuple[str, str, float, float | None]
"""Name, labels, value, seconds."""
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+(-?[\d.]+))?\s*$")
_STEP: Final = re.compile(r"ProfilerStep#?\d+")


def measure(plan: RolloutPlan, path: str | Path) -> float:
    """Return the measure of an attempt from a file. Raises UsageError where the file holds none."""
    text = _text(path)
    pattern = plan.pattern or (QPS_PATTERN if plan.unit is Unit.QPS else "")
    name = plan.metric or ("" if plan.pattern else DCGM.get(plan.unit, ""))
    if name:
        values, missing = prometheus_values(text, name), f"no sample of {name}"
    elif pattern:
        values, missing = _after_warm_up(log_values(text, pattern)), f"no line with {pattern}"
    else:
        values, missing = _after_warm_up(step_times_s(text, path)), "no ProfilerStep"
    if not values:
        raise UsageError(f"{path}: {missing}: nothing to measure {plan.unit} by")
    # A median where single values go astray (a step that writes a checkpoint); over GPUs all count.
    value = float(np.mean(values) if plan.unit in DCGM else np.median(values))
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{path}: {plan.unit} is {value:g}: a ratio needs a positive value")
    return value


def log_values(text: str, pattern: str) -> list[float]:
    """Return the first group of a pattern, line by line. Raises UsageError for one that finds no number."""
    try:
        figures = [match[1] for line in text.splitlines() if (match := re.search(pattern, line))]
        return [_number(value) for value in figures]
    except (re.error, IndexError) as error:
        raise UsageError(f"pattern {pattern!r}: {error}; its first group must be the number") from None
    except (ValueError, AttributeError):
        raise UsageError(f"pattern {pattern!r}: its first group is not a number everywhere") from None


def prometheus_values(text: str, name: str) -> list[float]:
    """Return one value a series of a metric: the mean of a gauge's samples, or the rate of a counter [1/s].

    From a page of metrics, or from what Prometheus answers to a query (`/api/v1/query_range`). A counter needs two
    samples with timestamps, as pages that were appended to each other have.
    """
    series: dict[tuple[str, str], list[tuple[float, float | None]]] = defaultdict(list)
    for metric, labels, value, at_s in _answered(text) if text.lstrip().startswith("{") else _samples(text):
        if metric in (name, "") and math.isfinite(value):
            series[metric, labels].append((value, at_s))
    is_counter = name.endswith("_total") or re.search(rf"^# TYPE {re.escape(name)} counter", text, re.M)
    # The answer to an expression, as rate(...), has no metric's name, and counts nothing up.
    if not is_counter or any(not metric for metric, _ in series):
        return [float(np.mean([value for value, _ in samples])) for samples in series.values()]
    rates = [_rate(name, samples) for samples in series.values()]
    return [float(np.sum(rates))] if rates else []


def _rate(name: str, samples: Iterable[tuple[float, float | None]]) -> float:
    times = sorted((at_s, value) for value, at_s in samples if at_s is not None)
    if len(times) < 2 or times[0][0] == times[-1][0]:
        raise UsageError(
            f"{name} is a counter: its rate needs two samples with timestamps",
            hint="append a page of the start and one of the end, or name a gauge",
        )
    # A counter that falls began anew, at 0.
    rises = (new - old if new >= old else new for (_, old), (_, new) in pairwise(times))
    return sum(rises) / (times[-1][0] - times[0][0])


def step_times_s(text: str, path: str | Path = "trace") -> list[float]:
    """Return the length of each step of a PyTorch-profiler trace [s], in order of time."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: no JSON: {error}") from None
    events = data.get("traceEvents", []) if isinstance(data, dict) else data if isinstance(data, list) else []
    steps: dict[Any, tuple[float, float]] = {}
    for event in events:
        # The same step is there again as `gpu_user_annotation`, from its first kernel to its last.
        if (
            isinstance(event, dict)
            and _STEP.match(str(event.get("name", "")))
            and event.get("cat") != "gpu_user_annotation"
            and isinstance(event.get("dur"), int | float)
            and isinstance(event.get("ts"), int | float)
        ):
            steps[event.get("pid"), event["name"]] = (event["ts"], event["dur"])
    return [dur / 1e6 for _, dur in sorted(steps.values())]


def _samples(text: str) -> Iterator[Sample]:
    # OpenMetrics, which ends so, has seconds; the older form has milliseconds.
    scale = 1.0 if text.rstrip().endswith("# EOF") else 1e-3
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value, at = float(match[3]), float(match[4]) * scale if match[4] else None
        except ValueError:
            continue
        yield match[1], match[2] or "", value, at


def _answered(text: str) -> Iterator[Sample]:
    """Yield the samples of an answer of Prometheus: a matrix or a vector; "" stands for no metric's name."""
    try:
        for result in json.loads(text)["data"]["result"]:
            labels = dict(result["metric"])
            name = str(labels.pop("__name__", ""))
            for at_s, value in result["values"] if "values" in result else [result["value"]]:
                yield name, json.dumps(labels, sort_keys=True), float(value), float(at_s)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"no answer of Prometheus: {error!r}", hint="curl the query_range of Prometheus, or a page of metrics"
        ) from None


def _number(text: str) -> float:
    times = _TIMES.get(text[-1:], 1.0)
    return times * float(text.rstrip("kKMG").replace(",", ""))


def _after_warm_up(values: list[float]) -> list[float]:
    return values[int(WARM_UP * len(values)) :]


def _text(path: str | Path) -> str:
    try:
        raw = Path(path).read_bytes()
        return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode(errors="replace")
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
