"""The one figure of an attempt, from whatever the job leaves behind: a log, a Prometheus page, a Kineto trace."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.errors import UsageError
from strata.host.rollout.rollout import Plan, Unit

QPS_PATTERN: Final = r"(?i)\bqps\b\D{0,3}([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?\d+)?)"
"""`qps: 150,123.4`, `QPS=1.5e5`: how trainers write it."""
DCGM: Final = {Unit.SM_ACTIVE: "DCGM_FI_PROF_SM_ACTIVE", Unit.TENSOR_ACTIVE: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}
"""Fields of the DCGM exporter, a share of the cycles in 0..1 a GPU (seed 004: the common measure of all jobs)."""
WARM_UP: Final = 0.1
"""Of a log's or a trace's values: the first are of start-up, and left out (assumed)."""
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+(-?\d+))?\s*$")
_STEP: Final = re.compile(r"ProfilerStep#?\d+")


def measure(plan: Plan, path: str | Path) -> float:
    """Return the measure of an attempt from a file. Raises UsageError where the file holds none."""
    text = _text(path)
    if plan.unit is Unit.STEP_TIME:
        values = _after_warm_up(step_times_s(text, path))
        what = "no ProfilerStep"
    elif plan.unit in DCGM or plan.metric:
        name = plan.metric or DCGM[plan.unit]
        values, what = prometheus_values(text, name), f"no sample of {name}"
    else:
        pattern = plan.pattern or QPS_PATTERN
        values, what = _after_warm_up(log_values(text, pattern)), f"no line with {pattern}"
    if not values:
        raise UsageError(f"{path}: {what}: nothing to measure {plan.unit} by")
    # A median where single values go astray (a step that writes a checkpoint); over GPUs all count.
    value = float(np.mean(values) if plan.unit in DCGM else np.median(values))
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{path}: {plan.unit} is {value:g}: a ratio needs a positive value")
    return value


def log_values(text: str, pattern: str) -> list[float]:
    """Return the first group of a pattern, line by line. Raises UsageError for one that finds no number."""
    try:
        found = [match[1] for line in text.splitlines() if (match := re.search(pattern, line))]
        return [float(value.replace(",", "")) for value in found]
    except (re.error, IndexError) as error:
        raise UsageError(f"pattern {pattern!r}: {error}; its first group must be the number") from None
    except (ValueError, AttributeError):
        raise UsageError(f"pattern {pattern!r}: its first group is not a number everywhere") from None


def prometheus_values(text: str, name: str) -> list[float]:
    """Return one value a series of a metric: the mean of a gauge's samples, or the rate of a counter [1/s].

    A counter needs two samples with timestamps, as pages that were appended to each other have.
    """
    series: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    is_counter = name.endswith("_total") or re.search(rf"^# TYPE {re.escape(name)} counter", text, re.M)
    for found, labels, value, at_ms in _samples(text):
        if found == name:
            series[labels].append((value, at_ms))
    if not is_counter:
        return [float(np.mean([value for value, _ in samples])) for samples in series.values()]
    rates = []
    for samples in series.values():
        times = sorted((at_ms, value) for value, at_ms in samples if at_ms is not None)
        if len(times) < 2 or times[0][0] == times[-1][0]:
            raise UsageError(
                f"{name} is a counter: its rate needs two samples with timestamps",
                hint="append a page of the start and one of the end, or name a gauge",
            )
        rates.append((times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0]) * 1e3)
    return [float(np.sum(rates))] if rates else []


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


def _samples(text: str) -> Iterator[tuple[str, str, float, float | None]]:
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield match[1], match[2] or "", value, float(match[4]) if match[4] else None


def _after_warm_up(values: list[float]) -> list[float]:
    return values[int(WARM_UP * len(values)) :]


def _text(path: str | Path) -> str:
    try:
        raw = Path(path).read_bytes()
        return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode(errors="replace")
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
