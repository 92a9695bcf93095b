"""Figures of scx_layered and of the kernel in Prometheus' words; delays add up to a histogram over the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from strata.host.manager.watch import SchedulerRun
from strata.net.metrics import Counter, Registry, read_gauge

LATENCY: Final = "l_runq_lat_hist"


class Delays(Collector):
    """Run-queue delays by layer [s]: scx_layered counts those of 2^b to 2^(b+1) us since it was asked last."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self.sums: dict[str, float] = {}

    def add(self, layer: str, counts: list[int]) -> None:
        """Add the counts of one interval. The sum is of the buckets' lower bounds times 1.5: an estimate."""
        total = self.counts.setdefault(layer, [0] * len(counts))
        for bucket, count in enumerate(counts[: len(total)]):
            total[bucket] += count
            self.sums[layer] = self.sums.get(layer, 0.0) + 1.5e-6 * 2**bucket * count

    def collect(self) -> Iterator[Metric]:
        """Yield cumulative buckets, sum and count of each layer."""
        family = HistogramMetricFamily(
            "strata_scx_run_queue_delay_seconds", "How long threads waited for a CPU, by layer.", labels=["layer"]
        )
        for layer, counts in self.counts.items():
            bounds = [*(f"{1e-6 * 2 ** (bucket + 1):g}" for bucket in range(len(counts) - 1)), "+Inf"]
            cumulative = [float(total) for total in accumulate(counts)]
            family.add_metric([layer], list(zip(bounds, cumulative, strict=True)), self.sums.get(layer, 0.0))
        yield family


class Figures(Collector):
    """All plain numbers of an answer, each under its own name."""

    def __init__(self) -> None:
        self.stats: Mapping[str, Any] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the machine's figures, and each layer's."""
        # `Metric`, not GaugeMetricFamily: the machine's figures have one label, a layer's have two.
        family = Metric("strata_scx_figure", "What scx_layered reports (scx_layered --help-stats).", "gauge")
        _add_figures(family, self.stats, {})
        for layer, figures in _layers(self.stats):
            _add_figures(family, figures, {"layer": layer})
        yield family


class Metrics:
    """What a scrape sees. `take` is called with each answer, `see` with each look."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.course = SchedulerRun()
        self.events: Mapping[str, int] = {}
        self._figures, self._delays = Figures(), Delays()
        read_gauge(
            self.registry,
            "strata_scx_running",
            "Whether the kernel runs tasks by the policy now.",
            (),
            lambda: {(): float(self.course.verdict == "running")},
        )
        read_gauge(
            self.registry,
            "strata_scx_state",
            "What has become of scx_layered: 1 for the state it is in.",
            ("state",),
            lambda: {(self.course.verdict,): 1.0},
        )
        read_gauge(
            self.registry,
            "strata_scx_event",
            "The kernel's counters of /sys/kernel/sched_ext/root/events.",
            ("event",),
            lambda: {(name,): float(count) for name, count in self.events.items()},
        )
        self.unanswered = Counter(
            "strata_scx_unanswered_total",
            "How often scx_layered was asked and did not answer.",
            registry=self.registry,
        )
        self.registry.register(self._figures)
        self.registry.register(self._delays)

    def take(self, stats: Mapping[str, Any]) -> None:
        """Take an answer."""
        self._figures.stats = stats
        for layer, figures in _layers(stats):
            counts = figures.get(LATENCY)
            if isinstance(counts, list) and all(isinstance(value, int) and value >= 0 for value in counts):
                self._delays.add(layer, counts)


def _layers(stats: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    layers = stats.get("layers")
    if not isinstance(layers, dict):
        return []
    return [(name, figures) for name, figures in layers.items() if isinstance(figures, dict)]


def _add_figures(family: Metric, stats: Mapping[str, Any], labels: dict[str, str]) -> None:
    for key, value in stats.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            family.add_sample(family.name, {**labels, "name": key}, float(value))
