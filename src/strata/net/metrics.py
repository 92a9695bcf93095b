"""The /metrics page of a server, by prometheus_client: counters and histograms are the library's own, and
`read_gauge` and `read_counter` add values that live elsewhere and are read when Prometheus asks.

Each server has a registry of its own, never the library's global one: several run in one process (tests, a gateway
beside its workers), and a page that shows Python's garbage collector helps nobody who watches a scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "SECONDS", "Counter", "Histogram", "Registry", "read_counter", "read_gauge", "render"]

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
Registry = CollectorRegistry

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets from a dispatch to a long answer [s]."""

Values = Mapping[tuple[str, ...], float]
"""A value by the values of its labels; `()` where there are no labels."""

# A second series of start times for every counter: nobody reads them, and Prometheus finds restarts by itself.
disable_created_metrics()  # type: ignore[no-untyped-call]


def read_gauge(
    registry: Registry, name: str, text: str, labels: Sequence[str], read: Callable[[], Values]
) -> None:
    """Add a gauge whose values `read` returns when the page is asked for."""
    registry.register(_Read(GaugeMetricFamily, name, text, labels, read))


def read_counter(
    registry: Registry, name: str, text: str, labels: Sequence[str], read: Callable[[], Values]
) -> None:
    """Add a counter that something else counts; `read` returns its values when the page is asked for."""
    registry.register(_Read(CounterMetricFamily, name, text, labels, read))


def render(registry: Registry) -> str:
    """Return the page that Prometheus scrapes, in its text format 0.0.4."""
    return generate_latest(registry).decode()


class _Read(Collector):
    def __init__(
        self,
        family: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        labels: Sequence[str],
        read: Callable[[], Values],
    ) -> None:
        self.family, self.name, self.text, self.labels, self.read = family, name, text, labels, read

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the family without samples: without it the registry would read values to learn the name."""
        yield self.family(self.name, self.text, labels=self.labels)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the family with its values of now."""
        family = self.family(self.name, self.text, labels=self.labels)
        for labels, value in self.read().items():
            family.add_metric(labels, value)
        yield family
