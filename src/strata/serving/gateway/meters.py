"""What the gateway counts: one registry, the model as a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strata.prometheus import Registry


class Meters:
    """Counters and histograms; gauges read `status` (each model's `Core.status()`) when they are shown."""

    def __init__(self, status: Callable[[], Mapping[str, dict[str, Any]]]) -> None:
        self.registry = new = Registry()
        self.http = new.counter("strata_http_requests_total", "HTTP requests by status.", ["code"])
        self.requests = new.counter("strata_requests_total", "Requests that are over.", ["model", "outcome"])
        self.tokens = new.counter("strata_tokens_total", "Tokens read and written.", ["model", "kind"])
        self.attempts = new.counter("strata_attempts_total", "Attempts at requests.", ["model", "outcome"])
        self.instructions = new.counter("strata_instructions_total", "What schedulers said.", ["model", "kind"])
        self.faults = new.counter("strata_faults_total", "Faults of ours, each logged.", ["model", "at"])
        self.ttft = new.histogram("strata_ttft_seconds", "Arrival to first token.", ["model"])
        self.latency = new.histogram("strata_request_seconds", "Arrival to end.", ["model"])

        def gauge(name: str, text: str, read: Callable[[dict[str, Any]], float]) -> None:
            new.gauge(name, text, ["model"], lambda: {(model,): read(one) for model, one in status().items()})

        gauge("strata_ready", "Whether a pipeline serves.", lambda one: float(one["ready"]))
        gauge("strata_pipelines", "Pipelines, loading ones too.", lambda one: len(one["pipelines"]))
        gauge("strata_nodes", "Nodes that are in.", lambda one: len(one["nodes"]))
        gauge("strata_waiting_requests", "Requests without a route.", lambda one: one["requests"]["waiting"])
        gauge("strata_unfinished_requests", "Requests not over.", lambda one: one["requests"]["unfinished"])
