"""Counters, gauges and histograms in Prometheus' text format 0.0.4, for every server.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/. Not thread-safe: one event loop writes
and reads.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets from a dispatch to a long answer [s]."""

Row = tuple[str, tuple[tuple[str, str], ...], float]


class Metric:
    """One family: a name, what it means, and the names of its labels."""

    kind = "untyped"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)

    def _key(self, labels: dict[str, str]) -> tuple[str, ...]:
        assert labels.keys() == set(self.labels), f"{self.name} has labels {self.labels}"
        return tuple(labels[name] for name in self.labels)

    def _named(self, key: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.labels, key, strict=True))

    def rows(self) -> Iterator[Row]:
        """Yield the samples: name, labels, value."""
        raise NotImplementedError


Made = TypeVar("Made", bound=Metric)


class Counter(Metric):
    """Only grows. Without labels it is shown from the start, so that a rate over it is never absent."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self.values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def inc(self, value: float = 1.0, /, **labels: str) -> None:
        """Add `value`, which is not negative."""
        assert value >= 0, f"{self.name} only grows"
        key = self._key(labels)
        self.values[key] = self.values.get(key, 0.0) + value

    def rows(self) -> Iterator[Row]:
        """Yield one sample a set of labels."""
        for key, value in self.values.items():
            yield self.name, self._named(key), value


class Gauge(Metric):
    """Read when it is shown: `read` returns the value by label values, `()` where there are none."""

    kind = "gauge"

    def __init__(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], dict[tuple[str, ...], float]]
    ) -> None:
        super().__init__(name, text, labels)
        self.read = read

    def rows(self) -> Iterator[Row]:
        """Yield one sample a set of labels."""
        for key, value in self.read().items():
            yield self.name, self._named(key), value


class Histogram(Metric):
    """How often a value was at most each bound; `bounds` ascend, +Inf is added."""

    kind = "histogram"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float] = SECONDS
    ) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(bounds)
        self.counts: dict[tuple[str, ...], list[int]] = {}
        self.sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, /, **labels: str) -> None:
        """Count one value."""
        key = self._key(labels)
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value

    def rows(self) -> Iterator[Row]:
        """Yield cumulative buckets, sum and count."""
        for key, counts in self.counts.items():
            total, named = 0, self._named(key)
            for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
                total += count
                yield f"{self.name}_bucket", (*named, ("le", _number(bound))), total
            yield f"{self.name}_sum", named, self.sums[key]
            yield f"{self.name}_count", named, total


class Registry:
    """All metrics of one server, in the order they were made."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Add and return a counter."""
        return self._add(Counter(name, text, labels))

    def gauge(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], dict[tuple[str, ...], float]]
    ) -> Gauge:
        """Add and return a gauge."""
        return self._add(Gauge(name, text, labels, read))

    def histogram(self, name: str, text: str, labels: Sequence[str] = ()) -> Histogram:
        """Add and return a histogram of seconds."""
        return self._add(Histogram(name, text, labels))

    def _add(self, metric: Made) -> Made:
        assert metric.name not in self.metrics, f"{metric.name} is there twice"
        self.metrics[metric.name] = metric
        return metric

    def render(self) -> str:
        """Return the page that Prometheus scrapes."""
        lines = []
        for metric in self.metrics.values():
            text = metric.text.replace("\\", r"\\").replace("\n", r"\n")
            lines += [f"# HELP {metric.name} {text}", f"# TYPE {metric.name} {metric.kind}"]
            for name, labels, value in metric.rows():
                shown = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels)
                lines.append(f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else str(int(value)) if value == int(value) else repr(value)
