"""What the gateway counts: one registry, the model as a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strata.net.metrics import SECONDS, Counter, Histogram, Registry, read_gauge


class Meters:
    """Counters and histograms; gauges read `counts` (each model's `Core.counts()`) when they are shown."""

    def __init__(self, counts: Callable[[], Mapping[str, dict[str, int]]]) -> None:
        self.registry = new = Registry()
        self.http = Counter("strata_http_requests_total", "HTTP requests by status.", ["code"], registry=new)
        self.requests = Counter(
            "strata_requests_total", "Requests that are over.", ["model", "outcome"], registry=new
        )
        self.tokens = Counter("strata_tokens_total", "Tokens read and written.", ["model", "kind"], registry=new)
        self.attempts = Counter(
            "strata_attempts_total", "Attempts at requests.", ["model", "outcome"], registry=new
        )
        self.instructions = Counter(
            "strata_instructions_total", "Instructions of schedulers.", ["model", "kind"], registry=new
        )
        self.faults = Counter("strata_faults_total", "Faults of ours, each logged.", ["model", "at"], registry=new)
        self.ttft = Histogram(
            "strata_ttft_seconds", "Arrival to first token.", ["model"], buckets=SECONDS, registry=new
        )
        self.latency = Histogram(
            "strata_request_seconds", "Arrival to end.", ["model"], buckets=SECONDS, registry=new
        )

        def gauge(name: str, text: str, key: str) -> None:
            read_gauge(
                new, name, text, ["model"], lambda: {(model,): values[key] for model, values in counts().items()}
            )

        gauge("strata_ready", "Whether a pipeline serves.", "ready")
        gauge("strata_pipelines", "Pipelines, loading ones too.", "pipelines")
        gauge("strata_nodes", "Nodes that are in.", "nodes")
        gauge("strata_waiting_requests", "Requests without a route.", "waiting")
        gauge("strata_unfinished_requests", "Requests not over.", "unfinished")
