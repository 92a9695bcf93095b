"""What the gateway counts: one registry, the model as a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strata.net.metrics import Registry


class Meters:
    """Counters and histograms; gauges read `counts` (each model's `Core.counts()`) when they are shown."""

    def __init__(self, counts: Callable[[], Mapping[str, dict[str, int]]]) -> None:
        self.registry = new = Registry()
        self.http = new.counter("strata_http_requests_total", "HTTP requests by status.", ["code"])
        self.requests = new.counter("strata_requests_total", "Requests that are over.", ["model", "outcome"])
        self.tokens = new.counter("strata_tokens_total", "Tokens read and written.", ["model", "kind"])
        self.attempts = new.counter("strata_attempts_total", "Attempts at requests.", ["model", "outcome"])
        self.instructions = new.counter("strata_instructions_total", "What schedulers said.", ["model", "kind"])
        self.faults = new.counter("strata_faults_total", "Faults of ours, each logged.", ["model", "at"])
        self.ttft = new.histogram("strata_ttft_seconds", "Arrival to first token.", ["model"])
        self.latency = new.histogram("strata_request_seconds", "Arrival to end.", ["model"])

        def gauge(name: str, text: str, key: str) -> None:
            new.gauge(name, text, ["model"], lambda: {(model,): one[key] for model, one in counts().items()})

        gauge("strata_ready", "Whether a pipeline serves.", "ready")
        gauge("strata_pipelines", "Pipelines, loading ones too.", "pipelines")
        gauge("strata_nodes", "Nodes that are in.", "nodes")
        gauge("strata_waiting_requests", "Requests without a route.", "waiting")
        gauge("strata_unfinished_requests", "Requests not over.", "unfinished")
