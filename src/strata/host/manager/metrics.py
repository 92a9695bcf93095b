"""Figures of scx_layered and of the kernel in Prometheus' words; delays add up to a histogram over the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from strata.host.manager.watch import Course
from strata.net.metrics import Metric, Registry, Row

LATENCY: Final = "l_runq_lat_hist"


class Delays(Metric):
    """Run-queue delays by layer [s]: scx_layered counts those of 2^b to 2^(b+1) us since it was asked last."""

    kind = "histogram"

    def __init__(self) -> None:
        super().__init__(
            "strata_scx_run_queue_delay_seconds", "How long threads waited for a CPU, by layer.", ("layer",)
        )
        self.counts: dict[str, list[int]] = {}
        self.sums: dict[str, float] = {}

    def add(self, layer: str, counts: list[int]) -> None:
        """Add the counts of one interval. The sum is of the buckets' lower bounds times 1.5: an estimate."""
        total = self.counts.setdefault(layer, [0] * len(counts))
        for bucket, count in enumerate(counts[: len(total)]):
            total[bucket] += count
            self.sums[layer] = self.sums.get(layer, 0.0) + 1.5e-6 * 2**bucket * count

    def rows(self) -> Any:
        """Yield cumulative buckets, sum and count."""
        for layer, counts in self.counts.items():
            total, named = 0, (("layer", layer),)
            for bucket, count in enumerate(counts):
                total += count
                bound = 1e-6 * 2 ** (bucket + 1) if bucket + 1 < len(counts) else math.inf
                yield f"{self.name}_bucket", (*named, ("le", f"{bound:g}" if bound < math.inf else "+Inf")), total
            yield f"{self.name}_sum", named, self.sums.get(layer, 0.0)
            yield f"{self.name}_count", named, total


class Figures(Metric):
    """All plain numbers of an answer, each under its own name."""

    def __init__(self) -> None:
        super().__init__("strata_scx_figure", "What scx_layered says of itself (scx_layered --help-stats).")
        self.stats: Mapping[str, Any] = {}

    kind = "gauge"

    def rows(self) -> Any:
        """Yield the machine's figures, and each layer's."""
        yield from _figures(self.name, self.stats, ())
        for layer, figures in _layers(self.stats):
            yield from _figures(self.name, figures, (("layer", layer),))


class Metrics:
    """What a scrape sees. `take` is called with each answer, `see` with each look."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.course = Course()
        self.events: Mapping[str, int] = {}
        self._figures, self._delays = Figures(), Delays()
        self.registry.gauge(
            "strata_scx_running",
            "Whether the kernel runs tasks by the policy now.",
            (),
            lambda: {(): float(self.course.verdict == "running")},
        )
        self.registry.gauge(
            "strata_scx_state",
            "What has become of scx_layered: 1 for the state it is in.",
            ("state",),
            lambda: {(self.course.verdict,): 1.0},
        )
        self.registry.gauge(
            "strata_scx_event",
            "The kernel's counters of /sys/kernel/sched_ext/root/events.",
            ("event",),
            lambda: {(name,): float(count) for name, count in self.events.items()},
        )
        self.unanswered = self.registry.counter(
            "strata_scx_unanswered_total", "How often scx_layered was asked and did not answer."
        )
        self.registry.metrics[self._figures.name] = self._figures
        self.registry.metrics[self._delays.name] = self._delays

    def take(self, stats: Mapping[str, Any]) -> None:
        """Take an answer."""
        self._figures.stats = stats
        for layer, figures in _layers(stats):
            counts = figures.get(LATENCY)
            if isinstance(counts, list) and all(isinstance(one, int) and one >= 0 for one in counts):
                self._delays.add(layer, counts)


def _layers(stats: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    layers = stats.get("layers")
    if not isinstance(layers, dict):
        return []
    return [(name, figures) for name, figures in layers.items() if isinstance(figures, dict)]


def _figures(name: str, stats: Mapping[str, Any], labels: tuple[tuple[str, str], ...]) -> list[Row]:
    return [
        (name, (*labels, ("name", key)), float(value))
        for key, value in stats.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
